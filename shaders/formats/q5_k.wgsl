// Q5_K: as Q4_K, with bit 4 of each q apart. Planes: nibbles (a vec4 per slice), headers (a vec4 per block of 8 slices), high bits (a word
// per slice).
#import formats/k_scales
#import formats/nibbles

struct Slice {
    q: vec4<u32>,
    high: u32,
    header: vec4<u32>,
    sub: u32,
}

fn k_header(row: u32, slice: u32) -> vec4<u32> {
    return weight[(params.weight_cols / 32u + slice / 8u) * params.weight_rows + row];
}

fn k_high(row: u32, slice: u32) -> u32 {
    let at = (params.weight_cols / 32u + params.weight_cols / 256u) * params.weight_rows * 4u + slice * params.weight_rows + row;
    return weight[at / 4u][at % 4u];
}

fn k_value(q: u32, high: u32, factors: vec2<f32>) -> vec4<f32> {
    let first = nibble_pair(q) | ((high & 0x00010001u) << 4u);
    let second = nibble_pair(q >> 4u) | ((high & 0x00020002u) << 3u);
    return factors.x * in_order(first, second) - factors.y;
}

fn load_slice(row: u32, slice: u32) -> Slice {
    return Slice(weight[slice * params.weight_rows + row], k_high(row, slice), k_header(row, slice), slice % 8u);
}

fn slice_factors(s: Slice) -> vec2<f32> {
    return k_factors(s.header, s.sub);
}

fn slice4(s: Slice, factors: vec2<f32>, c: u32) -> vec4<f32> {
    return k_value(s.q[c / 2u] >> (c % 2u * 8u), s.high >> (c * 2u), factors);
}

fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let slice = col4 / 8u;
    let q = weight[slice * params.weight_rows + row][col4 % 8u / 2u] >> (col4 % 2u * 8u);
    return k_value(q, k_high(row, slice) >> (col4 % 8u * 2u), k_factors(k_header(row, slice), slice % 8u));
}
