//! BF16: the upper 16 bits of 32-bit floats. Kernels read them as in the file.

use half::bf16;

use super::{Format, GgmlType, Scales, each};

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::BF16,
    reader: "bf16",
    byte_reader: None,
    file_type: 32,
    decode: |bytes, out| {
        each(bytes, out, |b: &[u8; 2], y: &mut [f32; 1]| y[0] = bf16::from_le_bytes(*b).to_f32())
    },
    scales: Scales::UpperHalf,
    table: &[],
    planes: &[],
    write: |out, bytes| out.copy(bytes),
};
