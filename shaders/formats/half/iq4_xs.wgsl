// IQ4_XS: d·(scale − 32)·level[q].
#import formats/half/bytes

fn half_factors(s: Slice) -> f16 {
    return f16(slice_factors(s).x);
}

fn half4(s: Slice, factor: f16, c: u32) -> vec4<f16> {
    return factor * (bytes_from_1024(iq4_bytes(s.q[c / 2u] >> (c % 2u * 8u))) - 1152h);
}
