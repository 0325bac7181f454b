// Q4_0 in bytes, as bytes/q4_k.wgsl describes them.
#import formats/q4_0

fn bytes8(s: Slice, j: u32) -> vec2<u32> {
    return vec2<u32>(s.q[j], s.q[j] >> 4u) & vec2<u32>(0x0f0f0f0fu);
}

fn byte_factors(s: Slice) -> vec4<f32> {
    return vec4<f32>(s.d, s.d, 8.0 * s.d, 8.0 * s.d);
}
