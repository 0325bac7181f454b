// NVFP4: a float of 8 bits times half of a doubled level. Planes: nibbles (a vec4 per slice), scales (two bytes per slice).
#import formats/e2m1

struct Slice {
    q: vec4<u32>,
    factors: vec2<f32>,     // of the halves
}

// Half of a float of 8 bits. Must match ggml's `ggml_ue4m3_to_fp32`.
fn nvfp4_d(x: u32) -> f32 {
    let exponent = (x >> 3u) & 15u;
    let normal = bitcast<f32>(((exponent + 119u) << 23u) | ((x & 7u) << 20u));
    let value = select(normal, f32(x & 7u) / 1024.0, exponent == 0u);
    return select(value, 0.0, x == 127u);
}

fn nvfp4_factors(row: u32, slice: u32) -> vec2<f32> {
    let i = slice * params.weight_rows + row;
    let at = params.weight_cols / 32u * params.weight_rows * 4u + i / 2u;
    let scales = weight[at / 4u][at % 4u] >> (i % 2u * 16u);
    return vec2<f32>(nvfp4_d(scales & 255u), nvfp4_d((scales >> 8u) & 255u));
}

fn load_slice(row: u32, slice: u32) -> Slice {
    return Slice(weight[slice * params.weight_rows + row], nvfp4_factors(row, slice));
}

fn slice_factors(s: Slice) -> vec2<f32> {
    return s.factors;
}

fn slice4(s: Slice, factors: vec2<f32>, c: u32) -> vec4<f32> {
    return factors[c / 4u] * e2m1_values(s.q[c / 2u] >> (c % 2u * 8u));
}

fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let slice = col4 / 8u;
    let q = weight[slice * params.weight_rows + row][col4 % 8u / 2u] >> (col4 % 2u * 8u);
    return nvfp4_factors(row, slice)[col4 % 8u / 4u] * e2m1_values(q);
}
