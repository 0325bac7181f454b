//! A whole model with the adapter in it: `W + scale·B·A` in the touched matrices, every other byte as in the base.
//!
//! Rows are read, merged, quantized and written a few at a time, so that a large model needs little memory.

use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;

use super::Error;
use crate::adapter::lora::{Adapter, Pair, Slot};
use crate::base::Module;
use crate::base::formats::dequantize;
use crate::base::gguf::value::Value;
use crate::base::gguf::writer::{self, Entry};
use crate::base::quantize::{self, in_parallel, quantize, threads};
use crate::base::{Base, GgmlType, Gguf, TensorInfo};
use crate::files;

/// Values that one thread merges at a time: its memory is about 16 bytes a value.
const VALUES_AT_A_TIME: usize = 1 << 17;
/// Bytes of an untouched tensor that are copied at a time.
const BYTES_AT_A_TIME: usize = 16 << 20;
/// Says in the merged file what was done to it.
const KEY: &str = "rullama_train.merged";

/// The format of the touched matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MergeType {
    /// Q8_0 where the base is quantized, its own format where it is not: the smallest in which the adapter survives.
    ///
    /// Measured on the tiny model with an adapter that changes the matrices by 1.1 % and the logits by 0.25 nats of KL
    /// divergence: stored in their own format (mostly Q4_K) 92 % of that is lost, in Q8_0 0.04 %.
    #[default]
    Auto,
    /// Each matrix's own format: the file keeps its size.
    Keep,
    /// This format.
    To(GgmlType),
}

impl MergeType {
    /// The names that users write, and what they mean.
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

    /// What `name` means, in either case.
    pub fn from_name(name: &str) -> Option<MergeType> {
        MergeType::NAMES.into_iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, ty)| ty)
    }

    /// The format for a matrix of the format `own` with rows of `cols` values.
    ///
    /// Rows that are not whole blocks fall back as in llama-quantize (`tensor_type_fallback`): Q4_K to Q5_0, Q6_K to
    /// Q8_0, and to F16 where blocks of 32 do not fit either. Q5_K falls to Q8_0; there it is Q5_1, which has no kernel
    /// here.
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

/// What merging did to one matrix of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct MergedTensor {
    /// Name as in the file.
    pub name: String,
    /// Format in the base.
    pub from: GgmlType,
    /// Format in the merged file.
    pub to: GgmlType,
    /// Sum of squares of the base's values.
    pub base: f64,
    /// Sum of squares of `scale·B·A`.
    pub change: f64,
    /// Sum of squares of what was lost when the sum was stored.
    pub loss: f64,
    /// Whether a byte differs from the base's, and from the matrix without the adapter stored in the same format: storing
    /// decoded values anew may move bytes by itself.
    pub changed: bool,
}

/// Writes `base` with `adapter` merged into it to `path`, as [`files::write_atomic_with`] writes.
///
/// Metadata keep their order, types and values; the key `rullama_train.merged` is added and `general.file_type` follows
/// the matrices where most of them change format. Fails where the adapter does not fit the base, where a merged value
/// does not fit the format, and where the merged matrices are those of the base in every byte.
pub fn write(
    path: &Path,
    base: &Base,
    adapter: &Adapter,
    ty: MergeType,
    mut progress: impl FnMut(&str),
) -> Result<Vec<MergedTensor>, Error> {
    let gguf = base.gguf();
    let touched = locate(base, adapter)?;
    let format = |t: &TensorInfo| match touched.iter().any(|part| part.tensor == t.name) {
        true => ty.of(t.ty, t.shape[0]),
        false => t.ty,
    };
    let entry = |t: &TensorInfo| Entry { name: t.name.clone(), shape: t.shape.clone(), ty: format(t) };
    let entries: Vec<Entry> = gguf.tensors().iter().map(entry).collect();
    let metadata = metadata(gguf, &entries, adapter);

    let mut merged = Vec::new();
    let mut refused = None;
    let written = files::write_atomic_with(path, |out| {
        writer::write(out, &metadata, &entries, |index, out| {
            let tensor = &gguf.tensors()[index];
            let parts: Vec<&Part> = touched.iter().filter(|part| part.tensor == tensor.name).collect();
            if parts.is_empty() {
                for (i, piece) in gguf.data(tensor).chunks(BYTES_AT_A_TIME).enumerate() {
                    out.write_all(piece)?;
                    let start = tensor.range.start + (i * BYTES_AT_A_TIME) as u64;
                    gguf.release(start..start + piece.len() as u64);
                }
                return Ok(());
            }
            progress(&tensor.name);
            let job =
                Job { tensor, data: gguf.data(tensor), parts, scale: adapter.scale(), to: entries[index].ty };
            match job.run(out)? {
                Ok(done) => merged.push(done),
                Err(problem) => return Err(stop(&mut refused, problem)),
            }
            gguf.release(tensor.range.clone());
            Ok(())
        })?;
        if merged.iter().any(|t: &MergedTensor| t.changed) {
            return Ok(());
        }
        let problem = if merged.iter().all(|t| t.change == 0.0) {
            "every product scale·B·A is zero, so that it would change nothing; train it first".to_string()
        } else {
            format!(
                "what it changes is too small for the format: every byte of {} matrices stayed the same; choose a \
                 finer type, such as q8_0 or f16",
                merged.len()
            )
        };
        Err(stop(&mut refused, problem))
    });
    match (refused, written) {
        (Some(problem), _) => Err(Error::Merge { problem }),
        (None, written) => Ok(written.map(|()| merged)?),
    }
}

/// Keeps the reason that is not the disk's, and ends the writing.
fn stop(refused: &mut Option<String>, problem: String) -> io::Error {
    *refused = Some(problem);
    io::Error::other("refused")
}

/// An adapted range of rows of a tensor.
struct Part<'a> {
    tensor: &'a str,
    rows: Range<usize>,
    rank: usize,
    pair: &'a Pair,
    /// Rows of one expert in the tensor and in `B`, and the one of `B` for the expert's first; of what is no expert, all of them.
    expert_rows: usize,
    b_rows: usize,
    first_b_row: usize,
}

impl Part<'_> {
    /// The rows of `A` `[rank, cols]` and of `B` `[rank]` for a row of the tensor.
    fn of_row(&self, row: usize, cols: usize) -> (&[f32], &[f32]) {
        let (expert, row) =
            ((row - self.rows.start) / self.expert_rows, (row - self.rows.start) % self.expert_rows);
        let b_row = expert * self.b_rows + self.first_b_row + row;
        let (a, b) = (expert * self.rank * cols, b_row * self.rank);
        (&self.pair.a[a..a + self.rank * cols], &self.pair.b[b..b + self.rank])
    }
}

/// Where each pair goes; refuses what does not fit the base.
fn locate<'a>(base: &'a Base, adapter: &'a Adapter) -> Result<Vec<Part<'a>>, Error> {
    let refuse = |problem: String| Err(Error::Merge { problem });
    if adapter.pairs.is_empty() {
        return refuse("it has no matrices; choose at least one target module".into());
    }
    let mut parts = Vec::new();
    for (slot, pair) in &adapter.pairs {
        let Slot { layer, module, out_features, in_features, experts } = *slot;
        let split = module == Module::FfnGateUpExps && base.config().layers[layer].experts_split;
        let tensors = if split { &["ffn_gate_exps", "ffn_up_exps"][..] } else { &[module.gguf_name()] };
        let (rank, expert_rows) = (adapter.rank, out_features / tensors.len());
        for (i, name) in tensors.iter().enumerate() {
            let name = format!("blk.{layer}.{name}");
            let Some((tensor, rows)) = base.location(&name) else {
                return refuse(format!(
                    "{} has or uses no matrix {name}; use the base that it was trained on",
                    base.name()
                ));
            };
            let (height, width) = (rows.len(), tensor.shape[0]);
            if (height, width) != (experts * expert_rows, in_features) {
                return refuse(format!(
                    "{name} is [{height}, {width}] in {}, [{}, {in_features}] in the adapter; use the base that it was \
                     trained on",
                    base.name(),
                    experts * expert_rows,
                ));
            }
            let lengths = (slot.len_a(rank), slot.len_b(rank));
            assert_eq!((pair.a.len(), pair.b.len()), lengths, "a pair has the lengths of its slot and rank");
            let (b_rows, first_b_row) = (out_features, i * expert_rows);
            parts.push(Part { tensor: &tensor.name, rows, rank, pair, expert_rows, b_rows, first_b_row });
        }
    }
    Ok(parts)
}

/// The base's metadata, a note, and the file type that most matrices now have.
fn metadata(gguf: &Gguf, entries: &[Entry], adapter: &Adapter) -> Vec<(String, Value)> {
    let mut metadata: Vec<(String, Value)> = gguf.metadata().to_vec();
    metadata.retain(|(key, _)| key != KEY);
    let (rank, matrices) = (adapter.rank, adapter.pairs.len());
    metadata.push((KEY.into(), Value::String(format!("LoRA of rank {rank} into {matrices} matrices"))));
    let before = most(gguf.tensors().iter().map(|t| (t.ty, &t.shape)));
    let after = most(entries.iter().map(|t| (t.ty, &t.shape)));
    if let Some((_, value)) = metadata.iter_mut().find(|(key, _)| key == "general.file_type")
        && let Some(ty) = after.filter(|_| before != after).and_then(GgmlType::format)
    {
        *value = Value::U32(ty.file_type);
    }
    metadata
}

/// The format that most matrices have, as llama.cpp guesses it where a file does not say.
fn most<'a>(tensors: impl Iterator<Item = (GgmlType, &'a Vec<usize>)>) -> Option<GgmlType> {
    let matrices: Vec<GgmlType> = tensors.filter(|(_, shape)| shape.len() > 1).map(|(ty, _)| ty).collect();
    let count = |ty: &GgmlType| matrices.iter().filter(|t| *t == ty).count();
    GgmlType::SUPPORTED.into_iter().max_by_key(count).filter(|ty| count(ty) > 0)
}

/// One tensor to merge.
struct Job<'a> {
    tensor: &'a TensorInfo,
    data: &'a [u8],
    parts: Vec<&'a Part<'a>>,
    scale: f64,
    to: GgmlType,
}

impl Job<'_> {
    /// Writes the tensor. The outer error is the disk's; the inner one says why the values cannot be stored.
    fn run(&self, out: &mut dyn Write) -> io::Result<Result<MergedTensor, String>> {
        let TensorInfo { name, shape, ty, .. } = self.tensor;
        let (cols, rows) = (shape[0], shape[1..].iter().product::<usize>());
        let mut done = MergedTensor {
            name: name.clone(),
            from: *ty,
            to: self.to,
            base: 0.0,
            change: 0.0,
            loss: 0.0,
            changed: false,
        };
        let height = (VALUES_AT_A_TIME / cols).max(1);
        let starts: Vec<usize> = (0..rows).step_by(height).collect();
        for wave in starts.chunks(threads()) {
            // Once one byte is known to differ the others need no comparing.
            let compare = !done.changed;
            let work = |&start: &usize| self.rows(start..(start + height).min(rows), compare);
            for result in in_parallel(wave.iter(), work) {
                let block = match result {
                    Ok(block) => block,
                    Err(problem) => return Ok(Err(problem)),
                };
                out.write_all(&block.bytes)?;
                done.base += block.base;
                done.change += block.change;
                done.loss += block.loss;
                done.changed |= block.changed;
            }
        }
        Ok(Ok(done))
    }

    /// Merges some of the rows.
    fn rows(&self, rows: Range<usize>, compare: bool) -> Result<Block, String> {
        let (cols, own) = (self.tensor.shape[0], self.tensor.ty);
        let row_bytes = cols / own.block_len() * own.block_bytes();
        let old = &self.data[rows.start * row_bytes..rows.end * row_bytes];
        let before = dequantize(own, old);
        let mut block = Block::default();
        let mut merged = Vec::with_capacity(before.len());
        let mut change = vec![0f64; cols];
        let mut unchanged = Vec::new();
        for (row, values) in rows.clone().zip(before.chunks_exact(cols)) {
            change.fill(0.0);
            if let Some(part) = self.parts.iter().find(|part| part.rows.contains(&row)) {
                let (a, b) = part.of_row(row, cols);
                for (&b, a) in b.iter().zip(a.chunks_exact(cols)) {
                    let factor = self.scale * f64::from(b);
                    change.iter_mut().zip(a).for_each(|(sum, &a)| *sum += factor * f64::from(a));
                }
            }
            // Not even the sign of a zero changes where nothing is added.
            let sum = |(&w, &d): (&f32, &f64)| if d == 0.0 { w } else { (f64::from(w) + d) as f32 };
            merged.extend(values.iter().zip(&change).map(sum));
            block.base += squares(values.iter().map(|&w| f64::from(w)));
            let size = squares(change.iter().copied());
            block.change += size;
            if size == 0.0 {
                unchanged.push(row - rows.start);
            }
        }
        block.bytes = quantize(self.to, &merged).map_err(|e| self.refusal(e, rows.start))?;
        if self.to == own {
            // Storing decoded values anew may move them; rows without a change keep their bytes.
            for &row in &unchanged {
                let bytes = row * row_bytes..(row + 1) * row_bytes;
                block.bytes[bytes.clone()].copy_from_slice(&old[bytes]);
            }
        }
        let stored = dequantize(self.to, &block.bytes);
        block.loss = squares(stored.iter().zip(&merged).map(|(s, m)| f64::from(*s) - f64::from(*m)));
        if compare && !(self.to == own && block.bytes == old) {
            let without = quantize(self.to, &before).map_err(|e| self.refusal(e, rows.start))?;
            block.changed = block.bytes != without;
        }
        Ok(block)
    }

    /// Why the tensor cannot be stored: the position as row and column.
    fn refusal(&self, error: quantize::Error, first_row: usize) -> String {
        let (name, cols, ty) = (&self.tensor.name, self.tensor.shape[0], self.to.name());
        match error {
            quantize::Error::NotFinite { at, value } => format!(
                "row {}, column {} of {name} would be {value}, expected a finite number; check base and adapter",
                first_row + at / cols,
                at % cols
            ),
            quantize::Error::OutOfRange { at, value, .. } => format!(
                "row {}, column {} of {name} would be {value}, more than the {} that {ty} holds; choose f32",
                first_row + at / cols,
                at % cols,
                quantize::limit(self.to)
            ),
            other => format!("{name}: {other}"),
        }
    }
}

/// Merged rows.
#[derive(Default)]
struct Block {
    bytes: Vec<u8>,
    base: f64,
    change: f64,
    loss: f64,
    changed: bool,
}

fn squares(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|v| v * v).sum()
}
