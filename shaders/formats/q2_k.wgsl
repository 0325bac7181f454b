// Q2_K: d·scale·q − dmin·minimum. Planes: scales and minima of 4 bits (a vec4 per block of 8 slices), pairs of bits (two words per
// slice), d and dmin (a word of two f16 per block).
#import formats/pairs_of_bits

struct Slice {
    q: vec2<u32>,
    scales: u32,    // a byte for each half of the slice, in the low half: scale and minimum
    d: vec2<f32>,
}

fn q2_scales(row: u32, slice: u32) -> u32 {
    return weight[slice / 8u * params.weight_rows + row][slice % 8u / 2u] >> (slice % 2u * 16u);
}

fn q2_pairs(row: u32, slice: u32) -> vec2<u32> {
    let at = params.weight_cols / 256u * params.weight_rows * 4u + (slice * params.weight_rows + row) * 2u;
    return vec2<u32>(weight[at / 4u][at % 4u], weight[at / 4u][at % 4u + 1u]);
}

fn q2_d(row: u32, slice: u32) -> vec2<f32> {
    let at = (params.weight_cols / 256u * 20u + slice / 8u) * params.weight_rows + row;
    return unpack2x16float(weight[at / 4u][at % 4u]);
}

fn q2_value(q: u32, factors: vec2<f32>) -> vec4<f32> {
    return factors.x * in_order(bit_pair(q), bit_pair(q >> 2u)) - factors.y;
}

fn load_slice(row: u32, slice: u32) -> Slice {
    return Slice(q2_pairs(row, slice), q2_scales(row, slice), q2_d(row, slice));
}

fn slice_factors(s: Slice) -> vec4<f32> {
    return s.d.xyxy * vec4<f32>((vec4<u32>(s.scales) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u));
}

fn slice4(s: Slice, factors: vec4<f32>, c: u32) -> vec4<f32> {
    return q2_value(s.q[c / 4u] >> (c % 4u * 4u), select(factors.zw, factors.xy, c < 4u));
}

fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let slice = col4 / 8u;
    let half = col4 / 4u % 2u;
    let q = q2_pairs(row, slice)[half] >> (col4 % 4u * 4u);
    let scales = q2_scales(row, slice) >> (half * 8u);
    return q2_value(q, q2_d(row, slice) * vec2<f32>(vec2<u32>(scales, scales >> 4u) & vec2<u32>(15u)));
}
