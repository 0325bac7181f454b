// TQ2_0: d·(q − 1). Planes: pairs of bits (two words per slice), d (an f16 per block of 8 slices).
#import formats/ternary

fn load_slice(row: u32, slice: u32) -> Slice {
    return Slice(ternary_quants(row, slice), ternary_d(slice / 8u * params.weight_rows + row));
}

fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let slice = col4 / 8u;
    let q = ternary_quants(row, slice)[col4 % 8u / 4u] >> (col4 % 4u * 8u);
    return ternary_d(slice / 8u * params.weight_rows + row) * ternary_values(q);
}
