// Quants of slices: two neighbours lie in the halves of a word (src/base/planes.rs).

// Two neighbouring nibbles, in the lowest bits of the halves of `q`.
fn nibble_pair(q: u32) -> u32 {
    return q & 0x000f000fu;
}

// Joins two pairs, in order.
fn in_order(first: u32, second: u32) -> vec4<f32> {
    return vec4<f32>(vec4<u32>(first & 0xffffu, first >> 16u, second & 0xffffu, second >> 16u));
}

// 1 + q/16 of four nibbles q, two in each half of `q`. They become the highest bits of mantissas, which takes no conversion.
fn sixteenths(q: u32) -> vec4<f32> {
    let highest = vec4<u32>(q << 19u, q << 3u, q << 15u, q >> 1u) & vec4<u32>(0x780000u);
    return bitcast<vec4<f32>>(highest | vec4<u32>(0x3f800000u));
}
