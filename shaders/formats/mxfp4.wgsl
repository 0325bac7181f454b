// MXFP4: 2^(e − 128)·level[q]. Planes: nibbles (a vec4 per slice), e (a byte per slice).
#import formats/e2m1

struct Slice {
    q: vec4<u32>,
    d: f32,
}

// Must match ggml's `ggml_e8m0_to_fp32_half`.
fn mxfp4_d(row: u32, slice: u32) -> f32 {
    let i = slice * params.weight_rows + row;
    let at = params.weight_cols / 32u * params.weight_rows * 4u + i / 4u;
    let e = (weight[at / 4u][at % 4u] >> (i % 4u * 8u)) & 255u;
    return bitcast<f32>(select((e - 1u) << 23u, 0x00200000u << (e & 1u), e < 2u));
}

fn load_slice(row: u32, slice: u32) -> Slice {
    return Slice(weight[slice * params.weight_rows + row], mxfp4_d(row, slice));
}

fn slice_factors(s: Slice) -> vec2<f32> {
    return vec2<f32>(s.d, 0.0);
}

fn slice4(s: Slice, factors: vec2<f32>, c: u32) -> vec4<f32> {
    return factors.x * e2m1_values(s.q[c / 2u] >> (c % 2u * 8u));
}

fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let slice = col4 / 8u;
    let q = weight[slice * params.weight_rows + row][col4 % 8u / 2u] >> (col4 % 2u * 8u);
    return mxfp4_d(row, slice) * e2m1_values(q);
}
