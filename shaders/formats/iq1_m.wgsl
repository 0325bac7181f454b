// IQ1_M: d·(1 + 2·scale)·(level ± ⅛). Planes: those of iq1.wgsl, whose 16 bits are, for each of four entries, its upper three bits and the
// sign of the eighth; headers (two words per block of 8 slices: d, then sixteen scales of 3 bits).
#import formats/iq1

struct Slice {
    q: vec2<u32>,
    high: u32,
    factors: vec2<f32>,     // of the halves
}

fn iq1_factors(row: u32, slice: u32) -> vec2<f32> {
    let sub = slice % 8u;
    let at = 1024u + (params.weight_cols / 256u * 12u * params.weight_rows) + (slice / 8u * params.weight_rows + row) * 2u;
    let header = vec2<u32>(weight[at / 4u][at % 4u], weight[at / 4u][at % 4u + 1u]);
    // 48 bits from the upper half of the first word on; the third pair of scales lies in both.
    let first = header.x >> min(16u + sub * 6u, 31u);
    let second = header.y >> (max(sub * 6u, 16u) - 16u);
    let both = (header.x >> 28u) | (header.y << 4u);
    let scales = select(select(second, both, sub == 2u), first, sub < 2u);
    return unpack2x16float(header.x).x * vec2<f32>(2u * (vec2<u32>(scales, scales >> 3u) & vec2<u32>(7u)) + 1u);
}

fn iq1_entry(low: u32, high: u32, eight: u32) -> u32 {
    return ((low >> (eight * 8u)) & 255u) | (((high >> (eight * 4u)) & 7u) << 8u);
}

// Levels with their eighth, whose sign is the upper bit of four.
fn iq1_values(q: u32, four: u32) -> vec4<f32> {
    return iq1_levels(q) - (0.875 + 0.25 * f32((four >> 3u) & 1u));
}

fn load_slice(row: u32, slice: u32) -> Slice {
    let low = iq1_low(row, slice);
    let high = iq1_high(row, slice);
    let first = two_entries(iq1_entry(low, high, 0u), iq1_entry(low, high, 1u));
    let second = two_entries(iq1_entry(low, high, 2u), iq1_entry(low, high, 3u));
    return Slice(vec2<u32>(first, second), high, iq1_factors(row, slice));
}

fn slice_factors(s: Slice) -> vec2<f32> {
    return s.factors;
}

fn slice4(s: Slice, factors: vec2<f32>, c: u32) -> vec4<f32> {
    return factors[c / 4u] * iq1_values(s.q[c / 4u] >> (c % 4u * 8u), s.high >> (c / 2u * 4u));
}

fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let slice = col4 / 8u;
    let c = col4 % 8u;
    let high = iq1_high(row, slice);
    let q = grid_entry(iq1_entry(iq1_low(row, slice), high, c / 2u)) >> (c % 2u * 8u);
    return iq1_factors(row, slice)[c / 4u] * iq1_values(q, high >> (c / 2u * 4u));
}
