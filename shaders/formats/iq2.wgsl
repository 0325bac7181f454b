// Slices of IQ2: two bits number a level.
#import formats/grid
#import formats/two_bits

struct Slice {
    q: vec2<u32>,
    signs: u32,
    factors: vec2<f32>,     // of the halves
}

// 8, 25 or 43. Must match ggml's grids.
fn iq2_levels(q: u32) -> vec4<f32> {
    let n = two_bits(q);
    return vec4<f32>(8u + 17u * n + (n >> vec4<u32>(1u)));
}

fn iq2_factors(d: f32, scales: u32) -> vec2<f32> {
    return 0.25 * d * (0.5 + vec2<f32>(vec2<u32>(scales, scales >> 4u) & vec2<u32>(15u)));
}

fn slice_factors(s: Slice) -> vec2<f32> {
    return s.factors;
}

fn slice4(s: Slice, factors: vec2<f32>, c: u32) -> vec4<f32> {
    return factors[c / 4u] * with_signs(iq2_levels(s.q[c / 4u] >> (c % 4u * 8u)), s.signs >> (c * 4u));
}
