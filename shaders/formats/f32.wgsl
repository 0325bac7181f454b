// F32 as in the file.
#import formats/slice_of_rows

fn weight4(row: u32, col4: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(weight[row * (params.weight_cols / 4u) + col4]);
}
