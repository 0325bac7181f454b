// Q5_K in bytes, as bytes/q4_k.wgsl describes them.
#import formats/q5_k

fn bytes8(s: Slice, j: u32) -> vec2<u32> {
    let low = vec2<u32>(s.q[j], s.q[j] >> 4u) & vec2<u32>(0x0f0f0f0fu);
    let h = s.high >> (j * 4u);
    let first = (vec2<u32>(h << 4u, h << 3u) & vec2<u32>(0x00100010u));
    return low | first | (vec2<u32>(h << 10u, h << 9u) & vec2<u32>(0x10001000u));
}

fn byte_factors(s: Slice) -> vec4<f32> {
    return k_factors(s.header, s.sub).xxyy;
}
