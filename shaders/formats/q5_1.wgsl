// Q5_1: d·q + m, bit 4 of each q apart. Planes: nibbles (a vec4 per slice), high bits (a word per slice), d and m (a word of two
// f16 per slice).
#import formats/nibbles

struct Slice {
    q: vec4<u32>,
    high: u32,
    factors: vec2<f32>,
}

fn q5_1_word(plane: u32, row: u32, slice: u32) -> u32 {
    let at = params.weight_cols / 32u * params.weight_rows * plane + slice * params.weight_rows + row;
    return weight[at / 4u][at % 4u];
}

fn q5_1_factors(row: u32, slice: u32) -> vec2<f32> {
    return unpack2x16float(q5_1_word(5u, row, slice));
}

fn q5_1_value(low: u32, high: u32, factors: vec2<f32>) -> vec4<f32> {
    let first = nibble_pair(low) | ((high & 0x00010001u) << 4u);
    let second = nibble_pair(low >> 4u) | ((high & 0x00020002u) << 3u);
    return factors.x * in_order(first, second) + factors.y;
}

fn load_slice(row: u32, slice: u32) -> Slice {
    return Slice(weight[slice * params.weight_rows + row], q5_1_word(4u, row, slice), q5_1_factors(row, slice));
}

fn slice_factors(s: Slice) -> vec2<f32> {
    return s.factors;
}

fn slice4(s: Slice, factors: vec2<f32>, c: u32) -> vec4<f32> {
    return q5_1_value(s.q[c / 2u] >> (c % 2u * 8u), s.high >> (c * 2u), factors);
}

fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let slice = col4 / 8u;
    let low = weight[slice * params.weight_rows + row][col4 % 8u / 2u] >> (col4 % 2u * 8u);
    return q5_1_value(low, q5_1_word(4u, row, slice) >> (col4 % 8u * 2u), q5_1_factors(row, slice));
}
