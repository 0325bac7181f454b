// Q6_K: d·scale·(q − 32). Planes: low nibbles (a vec4 per slice), i8 scales (a vec4 per block of 8 slices), high pairs (two words per
// slice), d (an f16 per block).
#import formats/nibbles

struct Slice {
    low: vec4<u32>,
    high: vec2<u32>,
    scales: u32,    // the two scales of the slice, in the low half
    d: f32,
}

fn q6_scales(row: u32, slice: u32) -> u32 {
    let rows = params.weight_rows;
    return weight[(params.weight_cols / 32u + slice / 8u) * rows + row][slice % 8u / 2u] >> (slice % 2u * 16u);
}

fn q6_high(row: u32, slice: u32) -> vec2<u32> {
    let rows = params.weight_rows;
    let at = (params.weight_cols / 32u + params.weight_cols / 256u) * rows * 4u + (slice * rows + row) * 2u;
    return vec2<u32>(weight[at / 4u][at % 4u], weight[at / 4u][at % 4u + 1u]);
}

fn q6_d(row: u32, slice: u32) -> f32 {
    let rows = params.weight_rows;
    let start = ((params.weight_cols / 32u) * 6u + params.weight_cols / 256u * 4u) * rows;
    let i = slice / 8u * rows + row;
    let at = start + i / 2u;
    return unpack2x16float(weight[at / 4u][at % 4u])[i % 2u];
}

// factor·(q − 32), exactly. The bits of q become the highest of a mantissa, that of 1 + q/64, which takes no conversion.
fn q6_value(low: u32, high: u32, factor: f32) -> vec4<f32> {
    let nibbles = vec4<u32>(low << 17u, low << 1u, low << 13u, low >> 3u) & vec4<u32>(0x1e0000u);
    let pairs = vec4<u32>(high << 21u, high << 5u, high << 19u, high << 3u) & vec4<u32>(0x600000u);
    return factor * (64.0 * bitcast<vec4<f32>>(nibbles | pairs | vec4<u32>(0x3f800000u)) - 96.0);
}

fn load_slice(row: u32, slice: u32) -> Slice {
    return Slice(weight[slice * params.weight_rows + row], q6_high(row, slice), q6_scales(row, slice), q6_d(row, slice));
}

fn slice_factors(s: Slice) -> vec2<f32> {
    let scales = bitcast<vec2<i32>>(vec2<u32>(s.scales << 24u, s.scales << 16u)) >> vec2<u32>(24u);
    return s.d * vec2<f32>(scales);
}

fn slice4(s: Slice, factors: vec2<f32>, c: u32) -> vec4<f32> {
    return q6_value(s.low[c / 2u] >> (c % 2u * 8u), s.high[c / 4u] >> (c % 4u * 4u), factors[c / 4u]);
}

fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let slice = col4 / 8u;
    let half = col4 / 4u % 2u;
    let low = weight[slice * params.weight_rows + row][col4 % 8u / 2u] >> (col4 % 2u * 8u);
    let high = q6_high(row, slice)[half] >> (col4 % 4u * 4u);
    let scale = f32(bitcast<i32>(q6_scales(row, slice) << (24u - half * 8u)) >> 24u);
    return q6_value(low, high, q6_d(row, slice) * scale);
}
