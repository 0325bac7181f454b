// Q4_K: d·scale·q − dmin·minimum. Planes: nibbles (a vec4 per slice), headers (a vec4 per block of 8 slices).
#import formats/k_scales
#import formats/nibbles

struct Slice {
    q: vec4<u32>,
    header: vec4<u32>,
    sub: u32,
}

fn k_header(row: u32, slice: u32) -> vec4<u32> {
    return weight[(params.weight_cols / 32u + slice / 8u) * params.weight_rows + row];
}

fn k_value(q: u32, factors: vec2<f32>) -> vec4<f32> {
    return 16.0 * factors.x * sixteenths(q) - (16.0 * factors.x + factors.y);
}

fn load_slice(row: u32, slice: u32) -> Slice {
    return Slice(weight[slice * params.weight_rows + row], k_header(row, slice), slice % 8u);
}

fn slice_factors(s: Slice) -> vec2<f32> {
    return k_factors(s.header, s.sub);
}

fn slice4(s: Slice, factors: vec2<f32>, c: u32) -> vec4<f32> {
    return k_value(s.q[c / 2u] >> (c % 2u * 8u), factors);
}

fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let slice = col4 / 8u;
    let q = weight[slice * params.weight_rows + row][col4 % 8u / 2u] >> (col4 % 2u * 8u);
    return k_value(q, k_factors(k_header(row, slice), slice % 8u));
}
