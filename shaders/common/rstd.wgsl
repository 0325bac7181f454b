// 1/√(mean of the squares + eps) from the sum of the squares of 4·width4 values. A sum that overflows would make the row zero, which
// nobody would see: the result becomes infinite instead.
fn rstd_of(sum: f32, width4: u32, eps: f32) -> f32 {
    let mean = sum / f32(width4 * 4u) + eps;
    let overflows = (bitcast<u32>(mean) & 0x7f800000u) == 0x7f800000u;
    return select(1.0 / sqrt(mean), mean, overflows);
}
