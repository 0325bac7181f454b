// IQ2_XS: d·(½ + scale)/4·(±level). A table of 64 vec4s, then planes: two words per slice, in each two numbers of an entry in nine bits and
// seven signs; scales of 4 bits (two words per block of 8 slices); d (an f16 per block).
#import formats/iq2

fn iq2_quants(row: u32, slice: u32) -> vec2<u32> {
    let at = 256u + (slice * params.weight_rows + row) * 2u;
    return vec2<u32>(weight[at / 4u][at % 4u], weight[at / 4u][at % 4u + 1u]);
}

fn iq2_slice_factors(row: u32, slice: u32) -> vec2<f32> {
    let blocks = params.weight_cols / 256u;
    let i = slice / 8u * params.weight_rows + row;
    let at = 256u + blocks * 16u * params.weight_rows + i * 2u + slice % 8u / 4u;
    let d_at = 256u + blocks * 18u * params.weight_rows + i / 2u;
    let d = unpack2x16float(weight[d_at / 4u][d_at % 4u])[i % 2u];
    return iq2_factors(d, weight[at / 4u][at % 4u] >> (slice % 4u * 8u));
}

fn load_slice(row: u32, slice: u32) -> Slice {
    let w = iq2_quants(row, slice);
    let low = w & vec2<u32>(511u);
    let high = (w >> vec2<u32>(16u)) & vec2<u32>(511u);
    let signs = vec2<u32>(
        eight_signs(w.x >> 9u) | (eight_signs(w.x >> 25u) << 8u),
        eight_signs(w.y >> 9u) | (eight_signs(w.y >> 25u) << 8u),
    );
    let q = vec2<u32>(two_entries(low.x, high.x), two_entries(low.y, high.y));
    return Slice(q, signs.x | (signs.y << 16u), iq2_slice_factors(row, slice));
}

fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let slice = col4 / 8u;
    let half = col4 % 8u / 4u;
    let four = col4 % 2u;
    let w = iq2_quants(row, slice)[half] >> (col4 / 2u % 2u * 16u);
    let q = grid_entry(w & 511u) >> (four * 8u);
    return iq2_slice_factors(row, slice)[half] * with_signs(iq2_levels(q), eight_signs(w >> 9u) >> (four * 4u));
}
