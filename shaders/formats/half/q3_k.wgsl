// Q3_K: d·(scale − 32)·(q − 4).
#import formats/half/pairs

fn half_factors(s: Slice) -> vec2<f16> {
    return vec2<f16>(slice_factors(s));
}

fn half4(s: Slice, factors: vec2<f16>, c: u32) -> vec4<f16> {
    let q = s.q[c / 4u] >> (c % 4u * 4u);
    let high = s.high >> (c * 2u);
    let first = from_1024(bit_pair(q) | ((high & 0x00010001u) << 2u)) - 1028h;
    let second = from_1024(bit_pair(q >> 2u) | ((high & 0x00020002u) << 1u)) - 1028h;
    let scale = vec2<f16>(factors[c / 4u]);
    return vec4<f16>(first * scale, second * scale);
}
