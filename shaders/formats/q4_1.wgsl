// Q4_1: d·q + m. Planes: nibbles (a vec4 per slice), d and m (a word of two f16 per slice).
#import formats/nibbles

struct Slice {
    q: vec4<u32>,
    factors: vec2<f32>,
}

fn q4_1_factors(row: u32, slice: u32) -> vec2<f32> {
    let at = params.weight_cols / 32u * params.weight_rows * 4u + slice * params.weight_rows + row;
    return unpack2x16float(weight[at / 4u][at % 4u]);
}

fn q4_1_value(q: u32, factors: vec2<f32>) -> vec4<f32> {
    return factors.x * in_order(nibble_pair(q), nibble_pair(q >> 4u)) + factors.y;
}

fn load_slice(row: u32, slice: u32) -> Slice {
    return Slice(weight[slice * params.weight_rows + row], q4_1_factors(row, slice));
}

fn slice_factors(s: Slice) -> vec2<f32> {
    return s.factors;
}

fn slice4(s: Slice, factors: vec2<f32>, c: u32) -> vec4<f32> {
    return q4_1_value(s.q[c / 2u] >> (c % 2u * 8u), factors);
}

fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let slice = col4 / 8u;
    let q = weight[slice * params.weight_rows + row][col4 % 8u / 2u] >> (col4 % 2u * 8u);
    return q4_1_value(q, q4_1_factors(row, slice));
}
