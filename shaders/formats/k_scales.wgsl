// d·scale and dmin·minimum of slice `sub` (0..8) of a Q4_K or Q5_K block: d and dmin, then 12 bytes of 6-bit factors.
// Must match llama.cpp `get_scale_min_k4`.
fn k_factors(header: vec4<u32>, sub: u32) -> vec2<f32> {
    let shift = (sub % 4u) * 8u;
    let first = header.y >> shift;
    let second = header.z >> shift;
    let third = header.w >> shift;
    let low = vec2<u32>(first & 63u, second & 63u);
    let high = vec2<u32>((third & 15u) | (((first >> 6u) & 3u) << 4u), ((third >> 4u) & 15u) | (((second >> 6u) & 3u) << 4u));
    return unpack2x16float(header.x) * vec2<f32>(select(high, low, sub < 4u));
}
