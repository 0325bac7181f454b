// BF16, as in the file: two a word, each the upper half of an f32.
fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let i = (row * params.weight_cols + col4 * 4u) / 2u;
    let w = vec2<u32>(weight[i], weight[i + 1u]);
    let high = w & vec2<u32>(0xffff0000u);
    return bitcast<vec4<f32>>(vec4<u32>(w.x << 16u, high.x, w.y << 16u, high.y));
}
