// Quants of which two bits lie in a plane of pairs, as src/base/formats/planes.rs describes it.
#import formats/nibbles

// Two neighbouring pairs, in the lowest bits of the halves of `q`.
fn bit_pair(q: u32) -> u32 {
    return q & 0x00030003u;
}
