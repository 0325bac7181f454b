// TQ1_0: d·(q − 1), q a digit of base 3, as in a block of the file. Planes: 32 bytes (five slices), 16 bytes (half of the rest, twice), 4 bytes
// (sixteen values) and d (an f16) per block of 8 slices.
struct Slice {
    first: vec4<u32>,
    second: vec4<u32>,
    d: f32,
    sub: u32,
}

fn tq1_d(row: u32, block: u32) -> f32 {
    let i = block * params.weight_rows + row;
    let at = params.weight_cols / 256u * 13u * params.weight_rows + i / 2u;
    return unpack2x16float(weight[at / 4u][at % 4u])[i % 2u];
}

// The digit number `n` of four bytes. Must match ggml's `dequantize_row_tq1_0`.
fn tq1_digits(word: u32, n: u32) -> vec4<f32> {
    let power = select((0x1b090301u >> (n * 8u)) & 255u, 81u, n > 3u);
    let bytes = (vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u);
    return vec4<f32>((((bytes * power) & vec4<u32>(255u)) * 3u) >> vec4<u32>(8u)) - 1.0;
}

fn load_slice(row: u32, slice: u32) -> Slice {
    let rows = params.weight_rows;
    let blocks = params.weight_cols / 256u;
    let block = slice / 8u;
    let sub = slice % 8u;
    let i = block * rows + row;
    let d = tq1_d(row, block);
    if sub < 5u {
        return Slice(weight[i * 2u], weight[i * 2u + 1u], d, sub);
    }
    let sixteen = weight[blocks * rows * 2u + i];
    let at = blocks * rows * 12u + i;
    return Slice(sixteen, select(sixteen, vec4<u32>(weight[at / 4u][at % 4u]), sub == 7u), d, sub);
}

fn slice_factors(s: Slice) -> vec2<f32> {
    return vec2<f32>(s.d, 0.0);
}

fn slice4(s: Slice, factors: vec2<f32>, c: u32) -> vec4<f32> {
    let word = select(s.second[c % 4u], s.first[c % 4u], c < 4u);
    let of_rest = select((s.sub - 5u) * 2u + c / 4u, c - 4u, s.sub == 7u && c > 3u);
    return factors.x * tq1_digits(word, select(of_rest, s.sub, s.sub < 5u));
}

fn weight4(row: u32, col4: u32) -> vec4<f32> {
    let s = load_slice(row, col4 / 8u);
    return slice4(s, slice_factors(s), col4 % 8u);
}
