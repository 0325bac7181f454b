// NVFP4: a float of 8 bits times half of a doubled level, rounded once.
#import formats/half/bytes

fn half_factors(s: Slice) -> vec2<f16> {
    return vec2<f16>(s.factors);
}

fn half4(s: Slice, factors: vec2<f16>, c: u32) -> vec4<f16> {
    return factors[c / 4u] * (bytes_from_1024(e2m1_bytes(s.q[c / 2u] >> (c % 2u * 8u))) - 1040h);
}
