// Q6_K in bytes, as bytes/q4_k.wgsl describes them. Bytes hold 0 to 63, so that 32 factors are the minimum.
#import formats/q6_k

fn bytes8(s: Slice, j: u32) -> vec2<u32> {
    let low = vec2<u32>(s.low[j], s.low[j] >> 4u) & vec2<u32>(0x0f0f0f0fu);
    let h = s.high[j / 2u] >> (j % 2u * 8u);
    let first = vec2<u32>(h << 4u, h << 2u) & vec2<u32>(0x00300030u);
    return low | first | (vec2<u32>(h << 8u, h << 6u) & vec2<u32>(0x30003000u));
}

fn byte_factors(s: Slice) -> vec4<f32> {
    let factors = slice_factors(s);
    return vec4<f32>(factors, 32.0 * factors);
}
