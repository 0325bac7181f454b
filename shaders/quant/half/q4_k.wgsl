// Q4_K: d·scale·(q − 8) + (8·d·scale − dmin·minimum). The second term is small where values spread around zero, and what f16
// cuts off d·scale is a third factor: what is left is the rounding of the value itself.
#import quant/half/pairs

fn half_factors(s: Slice) -> vec3<f16> {
    let factors = slice_factors(s);
    let scale = upper(factors.x);
    return vec3<f16>(f16(scale), f16(factors.x - scale), f16(8.0 * factors.x - factors.y));
}

fn half4(s: Slice, factors: vec3<f16>, c: u32) -> vec4<f16> {
    let q = s.q[c / 2u] >> (c % 2u * 8u);
    let first = from_1024(nibble_pair(q)) - 1032h;
    let second = from_1024(nibble_pair(q >> 4u)) - 1032h;
    return vec4<f16>(
        fma(first, factors.xx, fma(first, factors.yy, factors.zz)),
        fma(second, factors.xx, fma(second, factors.yy, factors.zz)),
    );
}
