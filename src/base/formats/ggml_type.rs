//! [`GgmlType`]: ids, names and block sizes of all of ggml's formats.

use super::{FORMATS, Format};

/// A tensor's element or block format. Discriminants are the file's type ids (ggml.h, `enum ggml_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, non_camel_case_types)] // ggml's own names
#[repr(u32)]
pub enum GgmlType {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q8_1 = 9,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    Q8_K = 15,
    IQ2_XXS = 16,
    IQ2_XS = 17,
    IQ3_XXS = 18,
    IQ1_S = 19,
    IQ4_NL = 20,
    IQ3_S = 21,
    IQ2_S = 22,
    IQ4_XS = 23,
    I8 = 24,
    I16 = 25,
    I32 = 26,
    I64 = 27,
    F64 = 28,
    IQ1_M = 29,
    BF16 = 30,
    TQ1_0 = 34,
    TQ2_0 = 35,
    MXFP4 = 39,
    NVFP4 = 40,
    Q1_0 = 41,
    Q2_0 = 42,
}

use GgmlType::*;

impl GgmlType {
    /// The formats with kernels and decoders.
    pub const SUPPORTED: [GgmlType; FORMATS.len()] = {
        let mut types = [F32; FORMATS.len()];
        let mut i = 0;
        while i < types.len() {
            types[i] = FORMATS[i].ty;
            i += 1;
        }
        types
    };

    /// Every format whose size is known.
    pub const ALL: [GgmlType; 35] = [
        F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K, IQ2_XXS, IQ2_XS,
        IQ3_XXS, IQ1_S, IQ4_NL, IQ3_S, IQ2_S, IQ4_XS, I8, I16, I32, I64, F64, IQ1_M, BF16, TQ1_0, TQ2_0,
        MXFP4, NVFP4, Q1_0, Q2_0,
    ];

    /// The format with this id in files; `None` where ggml has no such format, or has removed it.
    pub fn from_id(id: u32) -> Option<GgmlType> {
        GgmlType::ALL.into_iter().find(|&ty| ty as u32 == id)
    }

    /// `(values, bytes)` of one block. Source: ggml-common.h.
    const fn block(self) -> (usize, usize) {
        match self {
            F32 | I32 => (1, 4),
            F16 | BF16 | I16 => (1, 2),
            I8 => (1, 1),
            F64 | I64 => (1, 8),
            Q4_0 | IQ4_NL => (32, 18),
            Q4_1 => (32, 20),
            Q5_0 => (32, 22),
            Q5_1 => (32, 24),
            Q8_0 => (32, 34),
            Q8_1 => (32, 36),
            Q2_K => (256, 84),
            Q3_K | IQ3_S => (256, 110),
            Q4_K => (256, 144),
            Q5_K => (256, 176),
            Q6_K => (256, 210),
            Q8_K => (256, 292),
            IQ2_XXS | TQ2_0 => (256, 66),
            IQ2_XS => (256, 74),
            IQ3_XXS => (256, 98),
            IQ1_S => (256, 50),
            IQ2_S => (256, 82),
            IQ4_XS => (256, 136),
            IQ1_M => (256, 56),
            TQ1_0 => (256, 54),
            MXFP4 => (32, 17),
            NVFP4 => (64, 36),
            Q1_0 => (128, 18),
            Q2_0 => (64, 18),
        }
    }

    /// Values in one block; rows are whole blocks.
    pub const fn block_len(self) -> usize {
        self.block().0
    }

    /// Bytes of one block in the file.
    pub const fn block_bytes(self) -> usize {
        self.block().1
    }

    /// GGML's name: `Q4_K`.
    pub fn name(self) -> String {
        format!("{self:?}")
    }

    /// Names of several formats, separated by commas.
    pub fn names(types: &[GgmlType]) -> String {
        types.iter().map(|ty| ty.name()).collect::<Vec<_>>().join(", ")
    }

    /// Whether kernels and decoders exist for this format.
    pub fn supported(self) -> bool {
        self.format().is_some()
    }

    /// Everything about the format; `None` without kernels and decoders.
    pub fn format(self) -> Option<&'static Format> {
        FORMATS.into_iter().find(|format| format.ty == self)
    }

    /// The file of `shaders/formats/` that reads it, without `.wgsl`.
    ///
    /// # Panics
    /// Panics on a format without kernels, which models are never loaded with.
    pub fn reader(self) -> &'static str {
        self.format().unwrap_or_else(|| panic!("{} has no kernels", self.name())).reader
    }

    /// The file of `shaders/formats/` that reads it as integers in bytes; `None` where there is none.
    pub fn byte_reader(self) -> Option<&'static str> {
        self.format().and_then(|format| format.byte_reader)
    }

    /// The table with which every matrix of the format begins on the device; empty for most.
    pub fn table(self) -> &'static [u8] {
        self.format().map_or(&[], |format| format.table)
    }

    /// Whether kernels read a matrix as it is in the file, row by row, instead of as planes of slices.
    pub fn is_row_by_row(self) -> bool {
        self.format().is_some_and(|format| format.planes.is_empty())
    }
}
