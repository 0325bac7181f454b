// F16, as in the file: two a word.
fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let i = (row * params.weight_cols + col4 * 4u) / 2u;
    return vec4<f32>(unpack2x16float(weight[i]), unpack2x16float(weight[i + 1u]));
}
