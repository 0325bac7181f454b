// Quants of slices: two neighbours lie in the halves of a word (src/base/planes.rs).

// Two neighbouring nibbles, in the lowest bits of the halves of `q`.
fn nibble_pair(q: u32) -> u32 {
    return q & 0x000f000fu;
}

// Joins two pairs, in order.
fn in_order(first: u32, second: u32) -> vec4<f32> {
    return vec4<f32>(vec4<u32>(first & 0xffffu, first >> 16u, second & 0xffffu, second >> 16u));
}
