// BF16 as in the file: two values per word, each the upper half of an f32.
#import formats/slice_of_rows

fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let i = row * (params.weight_cols / 4u) + col4;
    let at = i % 2u * 2u;
    let w = vec2<u32>(weight[i / 2u][at], weight[i / 2u][at + 1u]);
    let high = w & vec2<u32>(0xffff0000u);
    return bitcast<vec4<f32>>(vec4<u32>(w.x << 16u, high.x, w.y << 16u, high.y));
}
