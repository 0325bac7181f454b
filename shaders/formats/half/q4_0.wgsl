// Q4_0: d·(q − 8), rounded once.
#import formats/half/pairs

fn half_factors(s: Slice) -> f16 {
    return f16(s.d);
}

fn half4(s: Slice, d: f16, c: u32) -> vec4<f16> {
    let q = s.q[c / 2u] >> (c % 2u * 8u);
    let first = from_1024(nibble_pair(q)) - 1032h;
    let second = from_1024(nibble_pair(q >> 4u)) - 1032h;
    return d * vec4<f16>(first, second);
}
