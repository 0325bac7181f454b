//! The factors of Q4_K and Q5_K blocks: `d`, `dmin`, and 6-bit scales and minima. Twin: shaders/formats/k_scales.wgsl.

/// The six-bit scale and minimum of sub-block `j` of 8. Must match ggml-quants.c `get_scale_min_k4`.
pub(crate) fn scale_min(j: usize, packed: &[u8; 12]) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
    };
    (f32::from(scale), f32::from(min))
}

/// `d`, `dmin` and scales as one entry of a plane.
pub(super) fn header_of(d: [u8; 2], dmin: [u8; 2], scales: [u8; 12]) -> [u8; 16] {
    let mut header = [0; 16];
    header[..2].copy_from_slice(&d);
    header[2..4].copy_from_slice(&dmin);
    header[4..].copy_from_slice(&scales);
    header
}
