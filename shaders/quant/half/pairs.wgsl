// Quants as f16 without a conversion: as the lowest bits of a number from 1024 on, whose last bit is worth 1.
fn from_1024(pair: u32) -> vec2<f16> {
    return vec2<f16>(unpack2x16float(pair | 0x64006400u));
}

// Two neighbouring nibbles of a slice (src/weights/planes.rs) in the lowest bits of the halves of `q`.
fn nibble_pair(q: u32) -> u32 {
    return q & 0x000f000fu;
}
