// Q8_0: 32 values d·q. Planes: q (8 words a block), d (f16).
fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let block = row * (params.weight_cols / 32u) + col4 / 8u;
    let d = unpack2x16float(weight[params.weight_blocks * 8u + block / 2u])[block & 1u];
    let q = weight[block * 8u + col4 % 8u];
    let signed = bitcast<vec4<i32>>(vec4<u32>(q << 24u, q << 16u, q << 8u, q)) >> vec4<u32>(24u);
    return d * vec4<f32>(signed);
}
