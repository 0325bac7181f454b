//! The weight format of merged matrices.

use crate::base::GgmlType;

/// The weight type of the merged matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MergeType {
    /// Q8_0 for quantized matrices, otherwise the type in the base. Q8_0 is the smallest type that preserves the adapter.
    ///
    /// Measured on the tiny model, with an adapter that changes the matrices by 1.1 % and the logits by a KL divergence of 0.25
    /// nats: stored in their own type (mostly Q4_K), 92 % of this effect is lost; in Q8_0, 0.04 %.
    #[default]
    Auto,
    /// The type of each matrix in the base: the file keeps its size.
    Keep,
    /// This type.
    To(GgmlType),
}

impl MergeType {
    /// Names in recipes and on the command line, with their types.
    pub const NAMES: [(&str, MergeType); 9] = [
        ("auto", MergeType::Auto),
        ("keep", MergeType::Keep),
        ("f32", MergeType::To(GgmlType::F32)),
        ("f16", MergeType::To(GgmlType::F16)),
        ("bf16", MergeType::To(GgmlType::BF16)),
        ("q8_0", MergeType::To(GgmlType::Q8_0)),
        ("q6_k", MergeType::To(GgmlType::Q6_K)),
        ("q5_k", MergeType::To(GgmlType::Q5_K)),
        ("q4_k", MergeType::To(GgmlType::Q4_K)),
    ];

    /// The type called `name`, in upper or lower case.
    pub fn from_name(name: &str) -> Option<MergeType> {
        MergeType::NAMES.into_iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, ty)| ty)
    }

    /// The merged type of a matrix that has the type `own` and rows of `cols` values.
    ///
    /// If rows are not a multiple of the block size, types fall back as in llama-quantize (`tensor_type_fallback`): Q4_K to
    /// Q5_0, Q6_K to Q8_0, and to F16 if rows are not a multiple of 32 either. Q5_K falls back to Q8_0, where llama-quantize takes Q5_1.
    pub fn of(self, own: GgmlType, cols: usize) -> GgmlType {
        use GgmlType::{BF16, F16, F32, Q4_K, Q5_0, Q8_0};
        let wanted = match self {
            MergeType::Keep => return own,
            MergeType::Auto if matches!(own, F32 | F16 | BF16) => return own,
            MergeType::Auto => Q8_0,
            MergeType::To(ty) => ty,
        };
        let fits = |ty: &GgmlType| cols.is_multiple_of(ty.block_len());
        let fallback = if wanted == Q4_K { Q5_0 } else { Q8_0 };
        [wanted, fallback].into_iter().find(fits).unwrap_or(F16)
    }
}
