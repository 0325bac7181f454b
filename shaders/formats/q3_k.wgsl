// Q3_K: d·(scale − 32)·(q − 4), bit 2 of each q apart. Planes: pairs of bits (two words per slice), low nibbles of the scales (two
// words per block of 8 slices), high bits (a word per slice), high bits of the scales (a word per block), d (an f16 per block).
#import formats/pairs_of_bits

struct Slice {
    q: vec2<u32>,
    high: u32,
    scales: vec2<u32>,
    d: f32,
}

fn q3_pairs(row: u32, slice: u32) -> vec2<u32> {
    let at = (slice * params.weight_rows + row) * 2u;
    return vec2<u32>(weight[at / 4u][at % 4u], weight[at / 4u][at % 4u + 1u]);
}

fn q3_high(row: u32, slice: u32) -> u32 {
    let at = (params.weight_cols / 256u * 18u + slice) * params.weight_rows + row;
    return weight[at / 4u][at % 4u];
}

// The scales of both halves of the slice, from 0 to 63.
fn q3_scales(row: u32, slice: u32) -> vec2<u32> {
    let rows = params.weight_rows;
    let blocks = params.weight_cols / 256u;
    let low_at = blocks * 16u * rows + (slice / 8u * rows + row) * 2u + slice % 8u / 4u;
    let high_at = (blocks * 26u + slice / 8u) * rows + row;
    let low = weight[low_at / 4u][low_at % 4u] >> (slice % 4u * 8u);
    let high = weight[high_at / 4u][high_at % 4u] >> (slice % 8u * 4u);
    return (vec2<u32>(low, low >> 4u) & vec2<u32>(15u)) | ((vec2<u32>(high << 4u, high << 2u)) & vec2<u32>(48u));
}

fn q3_d(row: u32, slice: u32) -> f32 {
    let i = slice / 8u * params.weight_rows + row;
    let at = params.weight_cols / 256u * 27u * params.weight_rows + i / 2u;
    return unpack2x16float(weight[at / 4u][at % 4u])[i % 2u];
}

fn q3_quants(low: u32, high: u32) -> vec4<f32> {
    let first = bit_pair(low) | ((high & 0x00010001u) << 2u);
    let second = bit_pair(low >> 2u) | ((high & 0x00020002u) << 1u);
    return in_order(first, second) - 4.0;
}

fn load_slice(row: u32, slice: u32) -> Slice {
    return Slice(q3_pairs(row, slice), q3_high(row, slice), q3_scales(row, slice), q3_d(row, slice));
}

fn slice_factors(s: Slice) -> vec2<f32> {
    return s.d * (vec2<f32>(s.scales) - 32.0);
}

fn slice4(s: Slice, factors: vec2<f32>, c: u32) -> vec4<f32> {
    return factors[c / 4u] * q3_quants(s.q[c / 4u] >> (c % 4u * 4u), s.high >> (c * 2u));
}

fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let slice = col4 / 8u;
    let half = col4 / 4u % 2u;
    let q = q3_quants(q3_pairs(row, slice)[half] >> (col4 % 4u * 4u), q3_high(row, slice) >> (col4 % 8u * 2u));
    return q3_d(row, slice) * (f32(q3_scales(row, slice)[half]) - 32.0) * q;
}
