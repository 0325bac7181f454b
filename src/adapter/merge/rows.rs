//! Merges the rows of one tensor.

use std::io::{self, Write};
use std::ops::Range;

use super::MergedTensor;
use super::parts::Part;
use crate::base::formats::dequantize;
use crate::base::quantize::{self, in_parallel, quantize, threads};
use crate::base::{GgmlType, TensorInfo};

/// Values that one thread merges at a time. It needs about 16 bytes per value.
const VALUES_PER_JOB: usize = 1 << 17;
/// A tensor to merge.
pub(super) struct Job<'a> {
    pub tensor: &'a TensorInfo,
    pub data: &'a [u8],
    pub parts: Vec<&'a Part<'a>>,
    pub scale: f64,
    pub to: GgmlType,
}

impl Job<'_> {
    /// Writes the tensor. The outer error is an error of the disk; the inner one says why the values cannot be stored.
    pub fn run(&self, out: &mut dyn Write) -> io::Result<Result<MergedTensor, String>> {
        let TensorInfo { name, shape, ty, .. } = self.tensor;
        let cols = shape[0];
        let rows = shape[1..].iter().product::<usize>();
        let mut done = MergedTensor {
            name: name.clone(),
            from: *ty,
            to: self.to,
            base: 0.0,
            change: 0.0,
            kept: 0.0,
            loss: 0.0,
            changed: false,
        };
        let height = (VALUES_PER_JOB / cols).max(1);
        let starts: Vec<usize> = (0..rows).step_by(height).collect();
        for wave in starts.chunks(threads()) {
            // Once one byte is known to differ, the others need not be compared.
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
                done.kept += block.kept;
                done.loss += block.loss;
                done.changed |= block.changed;
            }
        }
        Ok(Ok(done))
    }

    /// Merges some of the rows.
    fn rows(&self, rows: Range<usize>, compare: bool) -> Result<Block, String> {
        let cols = self.tensor.shape[0];
        let own = self.tensor.ty;
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
            // A value to which nothing is added keeps even the sign of a zero.
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
            // Quantizing dequantized values may change them. Rows without a change keep their bytes.
            for &row in &unchanged {
                let bytes = row * row_bytes..(row + 1) * row_bytes;
                block.bytes[bytes.clone()].copy_from_slice(&old[bytes]);
            }
        }
        let stored = dequantize(self.to, &block.bytes);
        block.kept = projected(&before, &merged, &stored);
        block.loss = squares(stored.iter().zip(&merged).map(|(s, m)| f64::from(*s) - f64::from(*m)));
        if compare && !(self.to == own && block.bytes == old) {
            let without = quantize(self.to, &before).map_err(|e| self.refusal(e, rows.start))?;
            block.changed = block.bytes != without;
        }
        Ok(block)
    }

    /// Describes why the tensor cannot be stored, with the row and column.
    fn refusal(&self, error: quantize::Error, first_row: usize) -> String {
        let name = &self.tensor.name;
        let cols = self.tensor.shape[0];
        let ty = self.to.name();
        match error {
            quantize::Error::NotFinite { at, value } => format!(
                "row {}, column {} of {name} would be {value}, expected a finite number; check base and adapter",
                first_row + at / cols,
                at % cols
            ),
            quantize::Error::OutOfRange { at, value, .. } => format!(
                "row {}, column {} of {name} would be {value}, beyond the limit {} of {ty}; choose f32",
                first_row + at / cols,
                at % cols,
                quantize::limit(self.to)
            ),
            other => format!("{name}: {other}"),
        }
    }
}

/// Merged rows, with sums of squares as in [`MergedTensor`].
#[derive(Default)]
struct Block {
    bytes: Vec<u8>,
    base: f64,
    change: f64,
    kept: f64,
    loss: f64,
    changed: bool,
}

fn squares(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|v| v * v).sum()
}

/// Sum of the products of the wanted and the stored change.
fn projected(before: &[f32], merged: &[f32], stored: &[f32]) -> f64 {
    let change = |to: f32, from: f32| f64::from(to) - f64::from(from);
    let each = before.iter().zip(merged).zip(stored);
    each.map(|((&before, &merged), &stored)| change(merged, before) * change(stored, before)).sum()
}
