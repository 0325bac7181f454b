// IQ3_S: d·(1 + 2·scale)·(±level). A table of 64 vec4s, then planes: the lower eight bits of eight entries (two words per slice); signs (a
// word per slice); the upper bit of the entries (two words per block of 8 slices); scales of 4 bits (a word per block); d (an f16 per block).
#import formats/iq3

// 1, 3, … or 15. Must match ggml's grid.
fn iq3_levels(q: u32) -> vec4<f32> {
    return vec4<f32>(1u + 2u * iq3_numbers(q));
}

fn iq3_quants(row: u32, slice: u32) -> vec2<u32> {
    let at = 256u + (slice * params.weight_rows + row) * 2u;
    return vec2<u32>(weight[at / 4u][at % 4u], weight[at / 4u][at % 4u + 1u]);
}

fn iq3_signs(row: u32, slice: u32) -> u32 {
    let at = 256u + (params.weight_cols / 16u + slice) * params.weight_rows + row;
    return weight[at / 4u][at % 4u];
}

fn iq3_high(row: u32, slice: u32) -> u32 {
    let i = slice / 8u * params.weight_rows + row;
    let at = 256u + params.weight_cols / 256u * 24u * params.weight_rows + i * 2u + slice % 8u / 4u;
    return weight[at / 4u][at % 4u] >> (slice % 4u * 8u);
}

fn iq3_factor(row: u32, slice: u32) -> f32 {
    let blocks = params.weight_cols / 256u;
    let i = slice / 8u * params.weight_rows + row;
    let at = 256u + blocks * 26u * params.weight_rows + i;
    let d_at = 256u + blocks * 27u * params.weight_rows + i / 2u;
    let scale = (weight[at / 4u][at % 4u] >> (slice % 8u * 4u)) & 15u;
    return unpack2x16float(weight[d_at / 4u][d_at % 4u])[i % 2u] * f32(1u + 2u * scale);
}

fn load_slice(row: u32, slice: u32) -> Slice {
    let q = eight_entries(iq3_quants(row, slice), iq3_high(row, slice));
    return Slice(q, iq3_signs(row, slice), iq3_factor(row, slice));
}

fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let slice = col4 / 8u;
    let c = col4 % 8u;
    let low = (iq3_quants(row, slice)[c / 4u] >> (c % 4u * 8u)) & 255u;
    let q = grid_entry(low | (((iq3_high(row, slice) >> c) & 1u) << 8u));
    return iq3_factor(row, slice) * with_signs(iq3_levels(q), iq3_signs(row, slice) >> (c * 4u));
}
