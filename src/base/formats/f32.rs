//! F32: 32-bit floats. Kernels read them as in the file.

use super::{Format, GgmlType, Scales, each};

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::F32,
    reader: "f32",
    byte_reader: None,
    file_type: 0,
    decode: |bytes, out| each(bytes, out, |b: &[u8; 4], y: &mut [f32; 1]| y[0] = f32::from_le_bytes(*b)),
    scales: Scales::UpperHalf,
    table: &[],
    planes: &[],
    write: |out, bytes| out.copy(bytes),
};
