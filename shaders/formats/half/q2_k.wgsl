// Q2_K: d·scale·(q − 2) + (2·d·scale − dmin·minimum). The second term is small where values are centred on zero, so that its rounding
// loses little.
#import formats/half/pairs

fn half_factors(s: Slice) -> vec4<f16> {
    let factors = slice_factors(s);
    return vec4<f16>(vec4<f32>(factors.x, 2.0 * factors.x - factors.y, factors.z, 2.0 * factors.z - factors.w));
}

fn half4(s: Slice, factors: vec4<f16>, c: u32) -> vec4<f16> {
    let q = s.q[c / 4u] >> (c % 4u * 4u);
    let first = from_1024(bit_pair(q)) - 1026h;
    let second = from_1024(bit_pair(q >> 2u)) - 1026h;
    let own = select(factors.zw, factors.xy, c < 4u);
    return vec4<f16>(fma(first, own.xx, own.yy), fma(second, own.xx, own.yy));
}
