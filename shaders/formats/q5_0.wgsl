// Q5_0: d·(q − 16), with bit 4 of each q apart. Planes: nibbles (a vec4 per slice), high bits (a word per slice), d (an f16 per slice).
#import formats/nibbles

struct Slice {
    q: vec4<u32>,
    high: u32,
    d: f32,
}

fn q5_high(row: u32, slice: u32) -> u32 {
    let at = params.weight_cols / 32u * params.weight_rows * 4u + slice * params.weight_rows + row;
    return weight[at / 4u][at % 4u];
}

fn q5_d(row: u32, slice: u32) -> f32 {
    let i = slice * params.weight_rows + row;
    let at = params.weight_cols / 32u * params.weight_rows * 5u + i / 2u;
    return unpack2x16float(weight[at / 4u][at % 4u])[i % 2u];
}

fn q5_value(low: u32, high: u32, d: f32) -> vec4<f32> {
    let first = nibble_pair(low) | ((high & 0x00010001u) << 4u);
    let second = nibble_pair(low >> 4u) | ((high & 0x00020002u) << 3u);
    return d * (in_order(first, second) - 16.0);
}

fn load_slice(row: u32, slice: u32) -> Slice {
    return Slice(weight[slice * params.weight_rows + row], q5_high(row, slice), q5_d(row, slice));
}

fn slice_factors(s: Slice) -> vec2<f32> {
    return vec2<f32>(s.d, 0.0);
}

fn slice4(s: Slice, factors: vec2<f32>, c: u32) -> vec4<f32> {
    return q5_value(s.q[c / 2u] >> (c % 2u * 8u), s.high >> (c * 2u), factors.x);
}

fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let slice = col4 / 8u;
    let low = weight[slice * params.weight_rows + row][col4 % 8u / 2u] >> (col4 % 2u * 8u);
    return q5_value(low, q5_high(row, slice) >> (col4 % 8u * 2u), q5_d(row, slice));
}
