// Slices of IQ3: four bits number a level.
#import formats/grid

struct Slice {
    q: vec4<u32>,
    signs: u32,
    factor: f32,
}

fn iq3_numbers(q: u32) -> vec4<u32> {
    return (vec4<u32>(q) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(7u);
}

fn slice_factors(s: Slice) -> vec2<f32> {
    return vec2<f32>(s.factor, 0.0);
}

fn slice4(s: Slice, factors: vec2<f32>, c: u32) -> vec4<f32> {
    return factors.x * with_signs(iq3_levels(s.q[c / 2u] >> (c % 2u * 16u)), s.signs >> (c * 4u));
}

// The entries of a slice by the lower eight bits of their numbers and by a bit above them.
fn eight_entries(low: vec2<u32>, high: u32) -> vec4<u32> {
    let first = (low.xxyy >> vec4<u32>(0u, 16u, 0u, 16u)) & vec4<u32>(255u);
    let second = (low.xxyy >> vec4<u32>(8u, 24u, 8u, 24u)) & vec4<u32>(255u);
    let i = first | ((vec4<u32>(high) << vec4<u32>(8u, 6u, 4u, 2u)) & vec4<u32>(256u));
    let j = second | ((vec4<u32>(high) << vec4<u32>(7u, 5u, 3u, 1u)) & vec4<u32>(256u));
    return vec4<u32>(two_entries(i.x, j.x), two_entries(i.y, j.y), two_entries(i.z, j.z), two_entries(i.w, j.w));
}
