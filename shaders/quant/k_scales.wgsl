// Scale and minimum of sub-block `sub` (0..8) of a Q4_K or Q5_K block whose 12 packed bytes start at word `at`.
// Must match llama.cpp `get_scale_min_k4`.
fn k_scale_min(at: u32, sub: u32) -> vec2<f32> {
    let shift = (sub % 4u) * 8u;
    let first = weight[at] >> shift;
    let second = weight[at + 1u] >> shift;
    if sub < 4u {
        return vec2<f32>(f32(first & 63u), f32(second & 63u));
    }
    let third = weight[at + 2u] >> shift;
    let scale = (third & 15u) | ((first >> 6u) & 3u) << 4u;
    let minimum = ((third >> 4u) & 15u) | ((second >> 6u) & 3u) << 4u;
    return vec2<f32>(f32(scale), f32(minimum));
}
