// Values of a slice in f16, for formats that are read in f32.
fn half_factors(s: Slice) -> vec2<f32> {
    return slice_factors(s);
}

fn half4(s: Slice, factors: vec2<f32>, c: u32) -> vec4<f16> {
    return vec4<f16>(slice4(s, factors, c));
}
