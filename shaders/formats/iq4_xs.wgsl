// IQ4_XS: d·(scale − 32)·level[q]. Planes: nibbles (a vec4 per slice), headers (two words per block of 8 slices: d and the upper bits
// of the scales, then their lower bits).
#import formats/iq4_levels

struct Slice {
    q: vec4<u32>,
    header: vec2<u32>,
    sub: u32,
}

fn iq4_xs_header(row: u32, slice: u32) -> vec2<u32> {
    let at = params.weight_cols / 32u * params.weight_rows * 4u + (slice / 8u * params.weight_rows + row) * 2u;
    return vec2<u32>(weight[at / 4u][at % 4u], weight[at / 4u][at % 4u + 1u]);
}

fn iq4_xs_factor(header: vec2<u32>, sub: u32) -> f32 {
    let scale = ((header.y >> (sub * 4u)) & 15u) | (((header.x >> (16u + sub * 2u)) & 3u) << 4u);
    return unpack2x16float(header.x).x * (f32(scale) - 32.0);
}

fn load_slice(row: u32, slice: u32) -> Slice {
    return Slice(weight[slice * params.weight_rows + row], iq4_xs_header(row, slice), slice % 8u);
}

fn slice_factors(s: Slice) -> vec2<f32> {
    return vec2<f32>(iq4_xs_factor(s.header, s.sub), 0.0);
}

fn slice4(s: Slice, factors: vec2<f32>, c: u32) -> vec4<f32> {
    return factors.x * iq4_values(s.q[c / 2u] >> (c % 2u * 8u));
}

fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let slice = col4 / 8u;
    let q = weight[slice * params.weight_rows + row][col4 % 8u / 2u] >> (col4 % 2u * 8u);
    return iq4_xs_factor(iq4_xs_header(row, slice), slice % 8u) * iq4_values(q);
}
