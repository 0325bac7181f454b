// Q8_0: d·q. Planes: q (two vec4s per slice), d (an f16 per slice).
struct Slice {
    first: vec4<u32>,
    second: vec4<u32>,
    d: f32,
}

fn q8_d(row: u32, slice: u32) -> f32 {
    let i = slice * params.weight_rows + row;
    let at = params.weight_cols / 32u * params.weight_rows * 8u + i / 2u;
    return unpack2x16float(weight[at / 4u][at % 4u])[i % 2u];
}

fn q8_value(q: u32, d: f32) -> vec4<f32> {
    return d * vec4<f32>(bitcast<vec4<i32>>(vec4<u32>(q << 24u, q << 16u, q << 8u, q)) >> vec4<u32>(24u));
}

fn load_slice(row: u32, slice: u32) -> Slice {
    let at = (slice * params.weight_rows + row) * 2u;
    return Slice(weight[at], weight[at + 1u], q8_d(row, slice));
}

fn slice_factors(s: Slice) -> vec2<f32> {
    return vec2<f32>(s.d, 0.0);
}

fn slice4(s: Slice, factors: vec2<f32>, c: u32) -> vec4<f32> {
    return q8_value(select(s.second[c % 4u], s.first[c % 4u], c < 4u), factors.x);
}

fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let slice = col4 / 8u;
    let at = (slice * params.weight_rows + row) * 2u + col4 / 4u % 2u;
    return q8_value(weight[at][col4 % 4u], q8_d(row, slice));
}
