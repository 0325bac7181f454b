// Q6_K: d·scale·(q − 32), with what f16 cuts off the two d·scale of a slice as two more factors.
#import quant/half/pairs

fn half_factors(s: Slice) -> vec4<f16> {
    let factors = slice_factors(s);
    let scales = vec2<f32>(upper(factors.x), upper(factors.y));
    return vec4<f16>(vec2<f16>(scales), vec2<f16>(factors - scales));
}

fn half4(s: Slice, factors: vec4<f16>, c: u32) -> vec4<f16> {
    let q = s.low[c / 2u] >> (c % 2u * 8u);
    let high = s.high[c / 4u] >> (c % 4u * 4u);
    let first = from_1024(nibble_pair(q) | ((high & 0x00030003u) << 4u)) - 1056h;
    let second = from_1024(nibble_pair(q >> 4u) | ((high & 0x000c000cu) << 2u)) - 1056h;
    let scale = vec2<f16>(factors[c / 4u]);
    let rest = vec2<f16>(factors[2u + c / 4u]);
    return vec4<f16>(fma(first, scale, first * rest), fma(second, scale, second * rest));
}
