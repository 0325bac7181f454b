// Q4_K: 256 values d·scale·q − dmin·minimum in 36 words, as in the file: d and dmin, 3 words of scales, 32 of nibbles.
#import quant/k_scales

fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let at = (row * (params.weight_cols / 256u) + col4 / 64u) * 36u;
    let sub = col4 % 64u / 8u;
    let factors = unpack2x16float(weight[at]) * k_scale_min(at + 1u, sub);
    let q = (weight[at + 4u + sub / 2u * 8u + col4 % 8u] >> (sub % 2u * 4u)) & 0x0f0f0f0fu;
    return factors.x * vec4<f32>(unpack4xU8(q)) - factors.y;
}
