//! The weight format of merged matrices.

use crate::base::GgmlType;
use crate::base::quantize::ENCODED;

/// The weight type of the merged matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MergeType {
    /// Q8_0 for quantized matrices, otherwise the type in the base. Q8_0 is the smallest type that preserves the adapter.
    ///
    /// Measured on the tiny model, with an adapter that changes the matrices by 1.1 % and the logits by a KL divergence of 0.25
    /// nats: stored in their own type (mostly Q4_K), 92 % of this effect is lost; in Q8_0, 0.04 %.
    #[default]
    Auto,
    /// The type of each matrix in the base, or [`encoded`] where nothing here writes it: the file keeps about its size.
    Keep,
    /// This type.
    To(GgmlType),
}

impl MergeType {
    /// Names in recipes and on the command line, with their types.
    pub const NAMES: [(&str, MergeType); 18] = [
        ("auto", MergeType::Auto),
        ("keep", MergeType::Keep),
        ("f32", MergeType::To(GgmlType::F32)),
        ("f16", MergeType::To(GgmlType::F16)),
        ("bf16", MergeType::To(GgmlType::BF16)),
        ("q8_0", MergeType::To(GgmlType::Q8_0)),
        ("q6_k", MergeType::To(GgmlType::Q6_K)),
        ("q5_k", MergeType::To(GgmlType::Q5_K)),
        ("q5_1", MergeType::To(GgmlType::Q5_1)),
        ("q5_0", MergeType::To(GgmlType::Q5_0)),
        ("q4_k", MergeType::To(GgmlType::Q4_K)),
        ("q4_1", MergeType::To(GgmlType::Q4_1)),
        ("q4_0", MergeType::To(GgmlType::Q4_0)),
        ("iq4_nl", MergeType::To(GgmlType::IQ4_NL)),
        ("iq4_xs", MergeType::To(GgmlType::IQ4_XS)),
        ("mxfp4", MergeType::To(GgmlType::MXFP4)),
        ("q3_k", MergeType::To(GgmlType::Q3_K)),
        ("q2_k", MergeType::To(GgmlType::Q2_K)),
    ];

    /// The type called `name`, in upper or lower case.
    pub fn from_name(name: &str) -> Option<MergeType> {
        MergeType::NAMES.into_iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, ty)| ty)
    }

    /// The merged type of a matrix that has the type `own` and rows of `cols` values.
    ///
    /// If rows are not a multiple of the block size, types fall back as in llama-quantize (`tensor_type_fallback`): Q2_K and
    /// Q3_K to Q4_0, IQ4_XS to IQ4_NL, Q4_K to Q5_0, Q5_K to Q5_1, Q6_K to Q8_0, and all of them to F16 if rows are not a
    /// multiple of 32 either.
    pub fn of(self, own: GgmlType, cols: usize) -> GgmlType {
        use GgmlType::{
            BF16, F16, F32, IQ4_NL, IQ4_XS, Q2_K, Q3_K, Q4_0, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0,
        };
        let wanted = match self {
            MergeType::Keep if encoded(own) == own => return own,
            MergeType::Keep => encoded(own),
            MergeType::Auto if matches!(own, F32 | F16 | BF16) => return own,
            MergeType::Auto => Q8_0,
            MergeType::To(ty) => ty,
        };
        let fits = |ty: &GgmlType| cols.is_multiple_of(ty.block_len());
        let fallback = match wanted {
            Q2_K | Q3_K => Q4_0,
            IQ4_XS => IQ4_NL,
            Q4_K => Q5_0,
            Q5_K => Q5_1,
            Q6_K => Q8_0,
            blocks_of_32 => blocks_of_32,
        };
        [wanted, fallback].into_iter().find(fits).unwrap_or(F16)
    }
}

/// The type in which a matrix of the type `own` is written: itself, or the nearest type of its size or a larger one that has an encoder.
/// Those of IQ1 to IQ3 need an importance matrix.
pub fn encoded(own: GgmlType) -> GgmlType {
    use GgmlType::{IQ3_S, IQ3_XXS, NVFP4, Q2_K, Q3_K, Q4_K};
    match own {
        own if ENCODED.contains(&own) => own,
        IQ3_XXS | IQ3_S => Q3_K,
        NVFP4 => Q4_K,
        _ => Q2_K,
    }
}
