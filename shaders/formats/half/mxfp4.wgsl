// MXFP4: 2^(e − 128)·level[q], exact where it is a normal f16.
#import formats/half/bytes

fn half_factors(s: Slice) -> f16 {
    return f16(s.d);
}

fn half4(s: Slice, d: f16, c: u32) -> vec4<f16> {
    return d * (bytes_from_1024(e2m1_bytes(s.q[c / 2u] >> (c % 2u * 8u))) - 1040h);
}
