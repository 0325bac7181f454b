// Slices of quants of two bits, d·(q − 1): two words per slice, in order from the lowest bits on.
#import formats/two_bits

struct Slice {
    q: vec2<u32>,
    d: f32,
}

fn ternary_quants(row: u32, slice: u32) -> vec2<u32> {
    let at = (slice * params.weight_rows + row) * 2u;
    return vec2<u32>(weight[at / 4u][at % 4u], weight[at / 4u][at % 4u + 1u]);
}

// The f16 of the plane behind the quants.
fn ternary_d(i: u32) -> f32 {
    let at = params.weight_cols / 16u * params.weight_rows + i / 2u;
    return unpack2x16float(weight[at / 4u][at % 4u])[i % 2u];
}

fn ternary_values(q: u32) -> vec4<f32> {
    return vec4<f32>(two_bits(q)) - 1.0;
}

fn slice_factors(s: Slice) -> vec2<f32> {
    return vec2<f32>(s.d, 0.0);
}

fn slice4(s: Slice, factors: vec2<f32>, c: u32) -> vec4<f32> {
    return factors.x * ternary_values(s.q[c / 4u] >> (c % 4u * 8u));
}
