// Q5_K: as Q4_K with bit 4 of each q apart, in 44 words: d and dmin, 3 of scales, 8 of high bits, 32 of nibbles.
#import quant/k_scales

fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let at = (row * (params.weight_cols / 256u) + col4 / 64u) * 44u;
    let sub = col4 % 64u / 8u;
    let factors = unpack2x16float(weight[at]) * k_scale_min(at + 1u, sub);
    let low = (weight[at + 12u + sub / 2u * 8u + col4 % 8u] >> (sub % 2u * 4u)) & 0x0f0f0f0fu;
    let high = (weight[at + 4u + col4 % 8u] >> sub) & 0x01010101u;
    return factors.x * vec4<f32>(unpack4xU8(low | high << 4u)) - factors.y;
}
