// F32, as in the file.
fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let i = row * params.weight_cols + col4 * 4u;
    return bitcast<vec4<f32>>(vec4<u32>(weight[i], weight[i + 1u], weight[i + 2u], weight[i + 3u]));
}
