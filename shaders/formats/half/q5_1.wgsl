// Q5_1: d·(q − 16) + (16·d + m). The second term is small where values spread around zero, so that little is lost by its
// rounding.
#import formats/half/pairs

fn half_factors(s: Slice) -> vec2<f16> {
    return vec2<f16>(vec2<f32>(s.factors.x, 16.0 * s.factors.x + s.factors.y));
}

fn half4(s: Slice, factors: vec2<f16>, c: u32) -> vec4<f16> {
    let q = s.q[c / 2u] >> (c % 2u * 8u);
    let high = s.high >> (c * 2u);
    let first = from_1024(nibble_pair(q) | ((high & 0x00010001u) << 4u)) - 1040h;
    let second = from_1024(nibble_pair(q >> 4u) | ((high & 0x00020002u) << 3u)) - 1040h;
    return vec4<f16>(fma(first, factors.xx, factors.yy), fma(second, factors.xx, factors.yy));
}
