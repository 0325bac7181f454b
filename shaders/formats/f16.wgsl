// F16 as in the file: two values per word.
#import formats/slice_of_rows

fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let i = row * (params.weight_cols / 4u) + col4;
    let at = i % 2u * 2u;
    return vec4<f32>(unpack2x16float(weight[i / 2u][at]), unpack2x16float(weight[i / 2u][at + 1u]));
}
