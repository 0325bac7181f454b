// Q4_0: 32 values d·(q − 8); low nibbles first, then high ones. Planes: q (4 words a block), d (f16).
fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let block = row * (params.weight_cols / 32u) + col4 / 8u;
    let d = unpack2x16float(weight[params.weight_blocks * 4u + block / 2u])[block & 1u];
    let c = col4 % 8u;
    let q = (weight[block * 4u + c % 4u] >> (c / 4u * 4u)) & 0x0f0f0f0fu;
    return d * (vec4<f32>(unpack4xU8(q)) - 8.0);
}
