// Q1_0: d where the bit is set, −d elsewhere. Planes: bits (a word per slice), d (an f16 per block of 4 slices).
struct Slice {
    bits: u32,
    d: f32,
}

fn q1_bits(row: u32, slice: u32) -> u32 {
    let at = slice * params.weight_rows + row;
    return weight[at / 4u][at % 4u];
}

fn q1_d(row: u32, slice: u32) -> f32 {
    let i = slice / 4u * params.weight_rows + row;
    let at = params.weight_cols / 32u * params.weight_rows + i / 2u;
    return unpack2x16float(weight[at / 4u][at % 4u])[i % 2u];
}

fn q1_values(bits: u32, d: f32) -> vec4<f32> {
    return select(vec4<f32>(-d), vec4<f32>(d), (vec4<u32>(bits) & vec4<u32>(1u, 2u, 4u, 8u)) != vec4<u32>());
}

fn load_slice(row: u32, slice: u32) -> Slice {
    return Slice(q1_bits(row, slice), q1_d(row, slice));
}

fn slice_factors(s: Slice) -> vec2<f32> {
    return vec2<f32>(s.d, 0.0);
}

fn slice4(s: Slice, factors: vec2<f32>, c: u32) -> vec4<f32> {
    return q1_values(s.bits >> (c * 4u), factors.x);
}

fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let slice = col4 / 8u;
    return q1_values(q1_bits(row, slice) >> (col4 % 8u * 4u), q1_d(row, slice));
}
