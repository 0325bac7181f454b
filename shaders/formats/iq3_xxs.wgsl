// IQ3_XXS: d·(½ + scale)/2·(±level). A table of 32 vec4s, then planes: eight entries in bytes (two words per slice); four times seven signs
// with the scale above them (a word per slice); d (an f16 per block of 8 slices).
#import formats/iq3

// 4, 12, …, 52 or 62. Must match ggml's grid.
fn iq3_levels(q: u32) -> vec4<f32> {
    let n = iq3_numbers(q);
    return vec4<f32>(4u + 8u * n + 2u * ((n + 1u) >> vec4<u32>(3u)));
}

fn iq3_quants(row: u32, slice: u32) -> vec2<u32> {
    let at = 128u + (slice * params.weight_rows + row) * 2u;
    return vec2<u32>(weight[at / 4u][at % 4u], weight[at / 4u][at % 4u + 1u]);
}

fn iq3_word(row: u32, slice: u32) -> u32 {
    let at = 128u + (params.weight_cols / 16u + slice) * params.weight_rows + row;
    return weight[at / 4u][at % 4u];
}

fn iq3_factor(row: u32, slice: u32, word: u32) -> f32 {
    let i = slice / 8u * params.weight_rows + row;
    let at = 128u + params.weight_cols / 256u * 24u * params.weight_rows + i / 2u;
    return 0.5 * unpack2x16float(weight[at / 4u][at % 4u])[i % 2u] * (0.5 + f32(word >> 28u));
}

fn load_slice(row: u32, slice: u32) -> Slice {
    let word = iq3_word(row, slice);
    return Slice(eight_entries(iq3_quants(row, slice), 0u), slice_signs(word), iq3_factor(row, slice, word));
}

fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let slice = col4 / 8u;
    let c = col4 % 8u;
    let word = iq3_word(row, slice);
    let q = grid_entry((iq3_quants(row, slice)[c / 4u] >> (c % 4u * 8u)) & 255u);
    return iq3_factor(row, slice, word) * with_signs(iq3_levels(q), eight_signs(word >> (c / 2u * 7u)) >> (c % 2u * 4u));
}
