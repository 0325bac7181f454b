// IQ2_S: d·(½ + scale)/4·(±level). A table of 128 vec4s, then planes: two words per slice, which are the lower eight bits of four entries
// and 32 signs; headers (a vec4 per block of 8 slices: a byte per slice with the upper bits of its entries, then one with its scales); d
// (an f16 per block).
#import formats/iq2

fn iq2_quants(row: u32, slice: u32) -> vec2<u32> {
    let at = 512u + (slice * params.weight_rows + row) * 2u;
    return vec2<u32>(weight[at / 4u][at % 4u], weight[at / 4u][at % 4u + 1u]);
}

// The upper bits of the slice's entries, and its scales, in the lowest byte.
fn iq2_header(row: u32, slice: u32) -> vec2<u32> {
    let header = weight[128u + (params.weight_cols / 64u + slice / 8u) * params.weight_rows + row];
    let word = slice % 8u / 4u;
    return vec2<u32>(header[word], header[2u + word]) >> vec2<u32>(slice % 4u * 8u);
}

fn iq2_d(row: u32, slice: u32) -> f32 {
    let i = slice / 8u * params.weight_rows + row;
    let at = 512u + params.weight_cols / 256u * 20u * params.weight_rows + i / 2u;
    return unpack2x16float(weight[at / 4u][at % 4u])[i % 2u];
}

fn load_slice(row: u32, slice: u32) -> Slice {
    let w = iq2_quants(row, slice);
    let header = iq2_header(row, slice);
    let low = (vec4<u32>(w.x) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u);
    let high = (vec4<u32>(header.x) << vec4<u32>(8u, 6u, 4u, 2u)) & vec4<u32>(768u);
    let i = low | high;
    let q = vec2<u32>(two_entries(i.x, i.y), two_entries(i.z, i.w));
    return Slice(q, w.y, iq2_factors(iq2_d(row, slice), header.y));
}

fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let slice = col4 / 8u;
    let c = col4 % 8u;
    let w = iq2_quants(row, slice);
    let header = iq2_header(row, slice);
    let i = ((w.x >> (c / 2u * 8u)) & 255u) | (((header.x >> (c / 2u * 2u)) & 3u) << 8u);
    let factor = iq2_factors(iq2_d(row, slice), header.y)[c / 4u];
    return factor * with_signs(iq2_levels(grid_entry(i) >> (c % 2u * 8u)), w.y >> (c * 4u));
}
