// Q6_K: 256 values d·scale·(q − 32). Planes: low nibbles (32 words a block), high pairs (16), i8 scales (4), d (f16).
fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let n = params.weight_blocks;
    let block = row * (params.weight_cols / 256u) + col4 / 64u;
    let half = col4 % 64u / 32u;
    let quarter = col4 % 32u / 8u;
    let c = col4 % 8u;
    let low = weight[block * 32u + half * 16u + quarter % 2u * 8u + c] >> (quarter / 2u * 4u);
    let high = weight[n * 32u + block * 16u + half * 8u + c] >> (quarter * 2u);
    let q = (low & 0x0f0f0f0fu) | (high & 0x03030303u) << 4u;
    let s = half * 8u + quarter * 2u + c / 4u;
    let packed = bitcast<i32>(weight[n * 48u + block * 4u + s / 4u] << (24u - s % 4u * 8u));
    let d = unpack2x16float(weight[n * 52u + block / 2u])[block & 1u];
    return d * f32(packed >> 24u) * (vec4<f32>(unpack4xU8(q)) - 32.0);
}
