// IQ2_XXS: d·(½ + scale)/4·(±level). A table of 32 vec4s, then planes: two words per slice, which are four entries in bytes, and four times
// seven signs with the scale above them; d (an f16 per block of 8 slices).
#import formats/iq2

fn iq2_quants(row: u32, slice: u32) -> vec2<u32> {
    let at = 128u + (slice * params.weight_rows + row) * 2u;
    return vec2<u32>(weight[at / 4u][at % 4u], weight[at / 4u][at % 4u + 1u]);
}

fn iq2_factor(row: u32, slice: u32, word: u32) -> f32 {
    let i = slice / 8u * params.weight_rows + row;
    let at = 128u + params.weight_cols / 256u * 16u * params.weight_rows + i / 2u;
    return 0.25 * unpack2x16float(weight[at / 4u][at % 4u])[i % 2u] * (0.5 + f32(word >> 28u));
}

fn load_slice(row: u32, slice: u32) -> Slice {
    let w = iq2_quants(row, slice);
    let q = vec2<u32>(two_entries(w.x & 255u, (w.x >> 8u) & 255u), two_entries((w.x >> 16u) & 255u, w.x >> 24u));
    return Slice(q, slice_signs(w.y), vec2<f32>(iq2_factor(row, slice, w.y)));
}

fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let slice = col4 / 8u;
    let eight = col4 % 8u / 2u;
    let four = col4 % 2u;
    let w = iq2_quants(row, slice);
    let q = grid_entry((w.x >> (eight * 8u)) & 255u) >> (four * 8u);
    return iq2_factor(row, slice, w.y) * with_signs(iq2_levels(q), eight_signs(w.y >> (eight * 7u)) >> (four * 4u));
}
