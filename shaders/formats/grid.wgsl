// Points of a grid. A matrix begins with the table of its format (src/base/formats/grids.rs).

// Entry `i`, of 16 bits.
fn grid_entry(i: u32) -> u32 {
    let at = i / 2u;
    return (weight[at / 4u][at % 4u] >> (i % 2u * 16u)) & 0xffffu;
}

// Two neighbouring entries, the first in the low half.
fn two_entries(first: u32, second: u32) -> u32 {
    return grid_entry(first) | (grid_entry(second) << 16u);
}

// Four values, negative where the bit is set.
fn with_signs(values: vec4<f32>, bits: u32) -> vec4<f32> {
    let signs = (vec4<u32>(bits) << vec4<u32>(31u, 30u, 29u, 28u)) & vec4<u32>(0x80000000u);
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(values) ^ signs);
}

// The signs of eight values by seven of them: their number of minus signs is even. Must match ggml's `ksigns_iq2xs`.
fn eight_signs(bits: u32) -> u32 {
    let seven = bits & 127u;
    return seven | ((countOneBits(seven) & 1u) << 7u);
}

// The signs of 32 values by four times seven bits.
fn slice_signs(bits: u32) -> u32 {
    let low = eight_signs(bits) | (eight_signs(bits >> 7u) << 8u);
    return low | (eight_signs(bits >> 14u) << 16u) | (eight_signs(bits >> 21u) << 24u);
}
