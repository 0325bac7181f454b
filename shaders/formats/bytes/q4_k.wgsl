// Q4_K in bytes.
#import formats/q4_k

// Quants of values 0, 4, 1, 5 of eight, and of 2, 6, 3, 7, in bytes.
fn bytes8(s: Slice, j: u32) -> vec2<u32> {
    return vec2<u32>(s.q[j], s.q[j] >> 4u) & vec2<u32>(0x0f0f0f0fu);
}

// Factors of the quants in the first and in the second half of a slice, and the minimums under them.
fn byte_factors(s: Slice) -> vec4<f32> {
    return k_factors(s.header, s.sub).xxyy;
}
