// Slices of formats that stay row by row, as in the file. Zeros fill the last slice of a row.
struct Slice {
    row: u32,
    col4: u32,
}

fn load_slice(row: u32, slice: u32) -> Slice {
    return Slice(row, slice * 8u);
}

fn slice_factors(s: Slice) -> vec2<f32> {
    return vec2<f32>();
}

fn slice4(s: Slice, factors: vec2<f32>, c: u32) -> vec4<f32> {
    let col4 = s.col4 + c;
    if col4 * 4u >= params.weight_cols {
        return vec4<f32>();
    }
    return weight4(s.row, col4);
}
