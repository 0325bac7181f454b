// IQ1_S: d·(1 + 2·scale)·(level ± ⅛). Planes: those of iq1.wgsl, whose 16 bits are the upper three bits of four entries, the scale, and the
// sign of the eighth; d (an f16 per block of 8 slices).
#import formats/iq1

struct Slice {
    q: vec2<u32>,
    factors: vec2<f32>,     // of everything, and what is added to a level's number
}

fn iq1_factors(row: u32, slice: u32, high: u32) -> vec2<f32> {
    let i = slice / 8u * params.weight_rows + row;
    let at = 1024u + params.weight_cols / 256u * 12u * params.weight_rows + i / 2u;
    let d = unpack2x16float(weight[at / 4u][at % 4u])[i % 2u];
    return vec2<f32>(d * f32(2u * ((high >> 12u) & 7u) + 1u), -0.875 - 0.25 * f32(high >> 15u));
}

fn iq1_entry(low: u32, high: u32, eight: u32) -> u32 {
    return ((low >> (eight * 8u)) & 255u) | (((high >> (eight * 3u)) & 7u) << 8u);
}

fn load_slice(row: u32, slice: u32) -> Slice {
    let low = iq1_low(row, slice);
    let high = iq1_high(row, slice);
    let first = two_entries(iq1_entry(low, high, 0u), iq1_entry(low, high, 1u));
    let second = two_entries(iq1_entry(low, high, 2u), iq1_entry(low, high, 3u));
    return Slice(vec2<u32>(first, second), iq1_factors(row, slice, high));
}

fn slice_factors(s: Slice) -> vec2<f32> {
    return s.factors;
}

fn slice4(s: Slice, factors: vec2<f32>, c: u32) -> vec4<f32> {
    return factors.x * (iq1_levels(s.q[c / 4u] >> (c % 4u * 8u)) + factors.y);
}

fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let slice = col4 / 8u;
    let high = iq1_high(row, slice);
    let factors = iq1_factors(row, slice, high);
    let q = grid_entry(iq1_entry(iq1_low(row, slice), high, col4 % 8u / 2u)) >> (col4 % 2u * 8u);
    return factors.x * (iq1_levels(q) + factors.y);
}
