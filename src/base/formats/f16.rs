//! F16: 16-bit floats of IEEE 754. Kernels read them as in the file.

use super::{Format, GgmlType, Scales, each, f32_of};

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::F16,
    reader: "f16",
    byte_reader: None,
    file_type: 1,
    decode: |bytes, out| each(bytes, out, |b: &[u8; 2], y: &mut [f32; 1]| y[0] = f32_of(*b)),
    scales: Scales::Halves(&[0]),
    table: &[],
    planes: &[],
    write: |out, bytes| out.copy(bytes),
};
