// Q5_0: 32 values d·(q − 16), bit 4 of each q apart. Planes: low bits (4 words a block), high bits (1 word), d (f16).
fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let block = row * (params.weight_cols / 32u) + col4 / 8u;
    let d = unpack2x16float(weight[params.weight_blocks * 5u + block / 2u])[block & 1u];
    let c = col4 % 8u;
    let low = (weight[block * 4u + c % 4u] >> (c / 4u * 4u)) & 0x0f0f0f0fu;
    let high = weight[params.weight_blocks * 4u + block] >> (c * 4u);
    let bits = (vec4<u32>(high) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(1u);
    return d * (vec4<f32>(unpack4xU8(low) + bits * 16u) - 16.0);
}
