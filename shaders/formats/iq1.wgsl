// Parts of IQ1: a table of 256 vec4s, then the lower eight bits of four entries (a word per slice), then 16 bits per slice.
#import formats/grid
#import formats/two_bits

fn iq1_low(row: u32, slice: u32) -> u32 {
    let at = 1024u + slice * params.weight_rows + row;
    return weight[at / 4u][at % 4u];
}

fn iq1_high(row: u32, slice: u32) -> u32 {
    let i = slice * params.weight_rows + row;
    let at = 1024u + params.weight_cols / 32u * params.weight_rows + i / 2u;
    return (weight[at / 4u][at % 4u] >> (i % 2u * 16u)) & 0xffffu;
}

// Four levels, plus 1.
fn iq1_levels(q: u32) -> vec4<f32> {
    return vec4<f32>(two_bits(q));
}
