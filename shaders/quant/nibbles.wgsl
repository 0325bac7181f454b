// Four values of a slice's nibbles (src/weights/planes.rs), of which `q` holds the first two in the lowest bits of its halves: as
// bytes, in the order 0, 2, 1, 3.
fn nibble_bytes(q: u32) -> u32 {
    return (q & 0x000f000fu) | ((q & 0x00f000f0u) << 4u);
}

// Bit 4 of each, for four values of a slice's high bits.
fn bit_bytes(high: u32) -> u32 {
    return ((high & 0x00010001u) << 4u) | ((high & 0x00020002u) << 11u);
}

// Bits 4 and 5 of each, for four values of a slice's high pairs.
fn pair_bytes(high: u32) -> u32 {
    return ((high & 0x00030003u) << 4u) | ((high & 0x000c000cu) << 10u);
}

fn in_order(bytes: u32) -> vec4<f32> {
    return vec4<f32>(unpack4xU8(bytes).xzyw);
}
