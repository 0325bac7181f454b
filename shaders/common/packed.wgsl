// Rows as operands of cooperative matrices: [K/16, T/16, 16, 16], matrices of 16 rows and 16 columns, each contiguous. And the power of two
// that brings a row's largest value into [½, 1), from that value's exponent.

// The place of vec4 `c` of row `row`; `tiles` is the stride between columns of matrices.
fn packed_at(tiles: u32, row: u32, c: u32) -> u32 {
    return ((c / 4u) * tiles + row / 16u) * 64u + row % 16u * 4u + c % 4u;
}

// x rounded to f16, for a kernel that stores tiles and goes on with their values. `zero` is 0, which no driver knows: NVIDIA's leaves out a
// conversion to f16 and back.
fn rounded4(x: vec4<f32>, zero: u32) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(pack2x16float(x.xy) | zero), unpack2x16float(pack2x16float(x.zw) | zero));
}

// Rows that are written: those of the last matrices are filled up with zeros.
fn padded(rows: u32) -> u32 {
    return (rows + 15u) / 16u * 16u;
}

fn most4(x: vec4<f32>) -> f32 {
    let a = abs(x);
    return max(max(a.x, a.y), max(a.z, a.w));
}

// The exponent bits of the largest value, clamped so that both powers are normal numbers.
fn exponent(most: f32) -> u32 {
    return clamp(bitcast<u32>(most) >> 23u, 1u, 252u);
}

// 2^(126 − e), from the bits of e.
fn scaling(e: u32) -> f32 {
    return bitcast<f32>((253u - e) << 23u);
}

// 2^(e − 126), which undoes scaling(e).
fn undoing(e: u32) -> f32 {
    return bitcast<f32>((e + 1u) << 23u);
}
