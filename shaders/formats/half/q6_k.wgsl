// Q6_K: d·scale·(q − 32).
#import formats/half/pairs

fn half_factors(s: Slice) -> vec2<f16> {
    return vec2<f16>(slice_factors(s));
}

fn half4(s: Slice, factors: vec2<f16>, c: u32) -> vec4<f16> {
    let q = s.low[c / 2u] >> (c % 2u * 8u);
    let high = s.high[c / 4u] >> (c % 4u * 4u);
    let first = from_1024(nibble_pair(q) | ((high & 0x00030003u) << 4u)) - 1056h;
    let second = from_1024(nibble_pair(q >> 4u) | ((high & 0x000c000cu) << 2u)) - 1056h;
    let scale = vec2<f16>(factors[c / 4u]);
    return vec4<f16>(first * scale, second * scale);
}
