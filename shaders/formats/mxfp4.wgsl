// MXFP4: 2^(e − 128)·level[q]. Planes: nibbles (a vec4 per slice), e (a byte per slice).
#import formats/levels

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

// Four levels plus 16. Bit 3 is the sign; sizes are the nibbles of a word. Must match ggml's `kvalues_mxfp4`.
fn mxfp4_bytes(q: u32) -> vec4<u32> {
    let n = level_numbers(q);
    let size = (vec4<u32>(0xc8643210u) >> ((n & vec4<u32>(7u)) * 4u)) & vec4<u32>(15u);
    return select(16u - size, 16u + size, n < vec4<u32>(8u));
}

fn mxfp4_values(q: u32) -> vec4<f32> {
    return vec4<f32>(mxfp4_bytes(q)) - 16.0;
}

fn load_slice(row: u32, slice: u32) -> Slice {
    return Slice(weight[slice * params.weight_rows + row], mxfp4_d(row, slice));
}

fn slice_factors(s: Slice) -> vec2<f32> {
    return vec2<f32>(s.d, 0.0);
}

fn slice4(s: Slice, factors: vec2<f32>, c: u32) -> vec4<f32> {
    return factors.x * mxfp4_values(s.q[c / 2u] >> (c % 2u * 8u));
}

fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let slice = col4 / 8u;
    let q = weight[slice * params.weight_rows + row][col4 % 8u / 2u] >> (col4 % 2u * 8u);
    return mxfp4_d(row, slice) * mxfp4_values(q);
}
