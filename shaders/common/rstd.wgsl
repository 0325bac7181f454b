// 1/√(mean of the squares + eps), of their sum over 4·width4 values. As in rms_norm.wgsl: one that overflows becomes infinite, not
// zero.
fn rstd_of(sum: f32, width4: u32, eps: f32) -> f32 {
    let mean = sum / f32(width4 * 4u) + eps;
    let overflows = (bitcast<u32>(mean) & 0x7f800000u) == 0x7f800000u;
    return select(1.0 / sqrt(mean), mean, overflows);
}
