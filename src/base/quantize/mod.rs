//! f32 → GGML's block formats: the published algorithms of llama.cpp's `quantize_row_*_ref`, without importance matrix.
//!
//! `search` finds scales, `blocks` packs them; [`super::formats`] decodes what is made here.

mod blocks;
mod search;

use std::num::NonZero;
use std::thread;

use bytemuck::Pod;
use half::{bf16, f16};

use super::GgmlType;

/// Why values cannot be stored in a format.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// An infinite value, or not a number.
    #[error("the value {value} at position {at} is not a finite number")]
    NotFinite {
        /// Index into the values.
        at: usize,
        /// The value.
        value: f32,
    },
    /// A value that the format does not hold.
    #[error("the value {value} at position {at} is beyond ±{}, the range of {}", limit(*.ty), .ty.name())]
    OutOfRange {
        /// Index into the values.
        at: usize,
        /// The value.
        value: f32,
        /// The format.
        ty: GgmlType,
    },
    /// The format has no encoder here.
    #[error("nothing here writes {}; choose one of {}", .0.name(), GgmlType::names(&ENCODED))]
    Unsupported(GgmlType),
}

/// The formats that [`quantize`] writes.
pub const ENCODED: [GgmlType; 16] = [
    GgmlType::F32,
    GgmlType::F16,
    GgmlType::BF16,
    GgmlType::Q8_0,
    GgmlType::Q6_K,
    GgmlType::Q5_K,
    GgmlType::Q5_1,
    GgmlType::Q5_0,
    GgmlType::Q4_K,
    GgmlType::Q4_1,
    GgmlType::Q4_0,
    GgmlType::IQ4_NL,
    GgmlType::IQ4_XS,
    GgmlType::MXFP4,
    GgmlType::Q3_K,
    GgmlType::Q2_K,
];

/// The bytes of `values`, whole blocks of `ty`, on this thread.
///
/// Panics where the number of values is not a multiple of `ty.block_len()`.
pub fn quantize(ty: GgmlType, values: &[f32]) -> Result<Vec<u8>, Error> {
    check(ty, values)?;
    let mut bytes = vec![0; values.len() / ty.block_len() * ty.block_bytes()];
    match ty {
        GgmlType::F32 => each(values, &mut bytes, |[x]: &[f32; 1]| x.to_le_bytes()),
        GgmlType::F16 => each(values, &mut bytes, |[x]: &[f32; 1]| f16::from_f32(*x).to_le_bytes()),
        GgmlType::BF16 => each(values, &mut bytes, |[x]: &[f32; 1]| bf16::from_f32(*x).to_le_bytes()),
        GgmlType::Q4_0 => each(values, &mut bytes, blocks::q4_0),
        GgmlType::Q4_1 => each(values, &mut bytes, blocks::q4_1),
        GgmlType::Q5_1 => each(values, &mut bytes, blocks::q5_1),
        GgmlType::Q5_0 => each(values, &mut bytes, blocks::q5_0),
        GgmlType::Q8_0 => each(values, &mut bytes, blocks::q8_0),
        GgmlType::Q2_K => each(values, &mut bytes, blocks::q2_k),
        GgmlType::Q3_K => each(values, &mut bytes, blocks::q3_k),
        GgmlType::Q4_K => each(values, &mut bytes, blocks::q4_k),
        GgmlType::Q5_K => each(values, &mut bytes, blocks::q5_k),
        GgmlType::Q6_K => each(values, &mut bytes, blocks::q6_k),
        GgmlType::IQ4_NL => each(values, &mut bytes, blocks::iq4_nl),
        GgmlType::IQ4_XS => each(values, &mut bytes, blocks::iq4_xs),
        GgmlType::MXFP4 => each(values, &mut bytes, blocks::mxfp4),
        _ => return Err(Error::Unsupported(ty)),
    }
    Ok(bytes)
}

/// [`quantize`] on every core; the bytes are the same. Where there are no threads (in a browser), on this one.
pub fn quantize_parallel(ty: GgmlType, values: &[f32]) -> Result<Vec<u8>, Error> {
    let threads = threads();
    let share = values.len().div_ceil(threads).next_multiple_of(ty.block_len()).max(1);
    let parts = in_parallel(values.chunks(share), |part| quantize(ty, part));
    let mut bytes = Vec::new();
    for (i, part) in parts.into_iter().enumerate() {
        bytes.extend(part.map_err(|e| e.shifted(i * share))?);
    }
    Ok(bytes)
}

/// Number of threads to start.
pub fn threads() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// `work` on each item in a thread of its own; returns the results in order. A single item needs no thread.
pub fn in_parallel<T: Send, R: Send>(
    items: impl ExactSizeIterator<Item = T>,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    if items.len() <= 1 {
        return items.map(work).collect();
    }
    let work = &work;
    thread::scope(|scope| {
        let handles: Vec<_> = items.map(|item| scope.spawn(move || work(item))).collect();
        handles
            .into_iter()
            .map(|h| h.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

impl Error {
    /// The error for values that are a part of others, from index `start` on.
    pub fn shifted(self, start: usize) -> Error {
        match self {
            Error::NotFinite { at, value } => Error::NotFinite { at: at + start, value },
            Error::OutOfRange { at, value, ty } => Error::OutOfRange { at: at + start, value, ty },
            other => other,
        }
    }
}

/// The largest value that every block stores as a finite number.
pub fn limit(ty: GgmlType) -> f32 {
    match ty {
        GgmlType::F32 | GgmlType::MXFP4 => f32::MAX,
        GgmlType::BF16 => bf16::MAX.to_f32(),
        _ => f16::MAX.to_f32(),
    }
}

/// Refuses values that no block can hold, so that the searches see only ordinary numbers.
fn check(ty: GgmlType, values: &[f32]) -> Result<(), Error> {
    let limit = limit(ty);
    // One pass that vectorizes; a NaN fails the comparison too.
    if values.iter().all(|v| v.abs() <= limit) {
        return Ok(());
    }
    let at = values.iter().position(|v| v.is_nan() || v.abs() > limit).expect("one of them is not within");
    let value = values[at];
    Err(if value.is_finite() { Error::OutOfRange { at, value, ty } } else { Error::NotFinite { at, value } })
}

fn each<B: Pod, const N: usize>(values: &[f32], bytes: &mut [u8], encode: fn(&[f32; N]) -> B) {
    let (inputs, rest) = values.as_chunks::<N>();
    assert!(rest.is_empty(), "whole blocks of {N} values");
    for (input, place) in inputs.iter().zip(bytes.chunks_exact_mut(size_of::<B>())) {
        place.copy_from_slice(bytemuck::bytes_of(&encode(input)));
    }
}
