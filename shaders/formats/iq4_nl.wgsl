// IQ4_NL: d·level[q]. Planes: nibbles (a vec4 per slice), d (an f16 per slice).
#import formats/iq4_levels

struct Slice {
    q: vec4<u32>,
    d: f32,
}

fn iq4_nl_d(row: u32, slice: u32) -> f32 {
    let i = slice * params.weight_rows + row;
    let at = params.weight_cols / 32u * params.weight_rows * 4u + i / 2u;
    return unpack2x16float(weight[at / 4u][at % 4u])[i % 2u];
}

fn load_slice(row: u32, slice: u32) -> Slice {
    return Slice(weight[slice * params.weight_rows + row], iq4_nl_d(row, slice));
}

fn slice_factors(s: Slice) -> vec2<f32> {
    return vec2<f32>(s.d, 0.0);
}

fn slice4(s: Slice, factors: vec2<f32>, c: u32) -> vec4<f32> {
    return factors.x * iq4_values(s.q[c / 2u] >> (c % 2u * 8u));
}

fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let slice = col4 / 8u;
    let q = weight[slice * params.weight_rows + row][col4 % 8u / 2u] >> (col4 % 2u * 8u);
    return iq4_nl_d(row, slice) * iq4_values(q);
}
