//! [`Pass`]: the state that all ops of a pass share.

use std::ops::Range;

use crate::gpu::{Gpu, GpuError, Recorder};
use crate::ops::Rows;
use crate::ops::attention::coop16_backward;
use crate::ops::linear::cuda::Panels;
use crate::ops::pack::{Packed, packed_bytes};
use crate::ops::pending::Commands;

/// One pass over some tokens of a micro-batch: where its commands go, and the scratch that its ops share.
pub struct Pass<'p, 'g> {
    /// Records the commands of ops.
    pub rec: Commands<'p, 'g>,
    /// Tokens `T`: those of the micro-batch, or of a chunk.
    pub tokens: usize,
    /// The token of the first row, which dropout counts from.
    pub first: usize,
    /// Scratch memory.
    pub scratch: &'p Scratch,
    /// The kernels and memory of a pass that decodes; `None` in training.
    pub decoding: Option<Decoding<'p>>,
    /// Panels of the next products, in place of those of the scratch.
    pub panels: Option<Panels>,
}

/// Passes over tokens that follow others in a cache, of which nothing is kept for backward.
#[derive(Clone, Copy)]
pub struct Decoding<'p> {
    /// Whether products take the kernels for a few rows: [`crate::ops::matvec`].
    pub short: bool,
    /// Memory of the norms of the stream `[T, D]`.
    pub normed: &'p Rows,
}

/// Scratch memory of ops; its contents do not outlive an op.
pub struct Scratch {
    /// `u = dy·B` `[T, Σ R]`.
    pub u: Rows,
    /// Inputs under a dropout mask `[T, widest]`; empty without dropout.
    pub masked: Rows,
    /// Operands of products on 16×16 matrices; `None` where products read f32.
    pub operands: Option<Operands>,
    /// `Σ dout·out` by row and head `[T, 2·H]`.
    pub delta: Rows,
    /// Gradients of keys or values by query head `[T, H·K]`.
    pub dheads: Rows,
    /// Attention's backward on 16×16 matrices; `None` where attention reads f32.
    pub attention: Option<coop16_backward::Scratch>,
}

impl Scratch {
    /// Scratch for products without attention and adapters.
    pub fn for_products(gpu: &Gpu, operands: Option<Operands>) -> Result<Scratch, GpuError> {
        let empty = || Rows::new(gpu, "no scratch", 0, 0);
        Ok(Scratch {
            u: empty()?,
            masked: empty()?,
            operands,
            delta: empty()?,
            dheads: empty()?,
            attention: None,
        })
    }
}

/// Scratch for operands that are stored in f32 and multiplied as f16 tiles.
#[derive(Clone)]
pub struct Operands {
    /// An input `[T, widest]`, or of a chunk of the tokens in wider rows.
    pub x: Packed,
    /// A gradient, of the same shape.
    pub dy: Packed,
    /// `z` or `u` `[T, Σ R]`.
    pub thin: Packed,
    /// Weights of long products; `None` where none run in CUDA.
    pub panels: Option<Panels>,
}

impl Operands {
    /// Room for `rows` rows of `input` and `gradient` columns, with adapters of `thin` columns in all, without panels.
    pub fn new(
        gpu: &Gpu,
        rows: usize,
        input: usize,
        gradient: usize,
        thin: usize,
    ) -> Result<Operands, GpuError> {
        Ok(Operands {
            panels: None,
            x: Packed::new(gpu, "packed input", rows, input)?,
            dy: Packed::new(gpu, "packed gradient", rows, gradient)?,
            thin: Packed::new(gpu, "packed z", rows, thin)?,
        })
    }

    /// Bytes of [`Operands::new`].
    pub fn bytes(rows: usize, input: usize, gradient: usize, thin: usize) -> u64 {
        let factors = 12 * rows as u64;
        packed_bytes(rows, input) + packed_bytes(rows, gradient) + packed_bytes(rows, thin) + factors
    }

    /// The operands with memory for panels.
    pub fn with_panels(self, panels: Option<Panels>) -> Operands {
        Operands { panels, ..self }
    }

    /// A view of the memory laid out for `rows` rows.
    pub fn for_rows(&self, rows: usize) -> Operands {
        let (x, dy, thin) = (self.x.for_rows(rows), self.dy.for_rows(rows), self.thin.for_rows(rows));
        Operands { x, dy, thin, panels: self.panels.clone() }
    }
}

impl<'p, 'g> Pass<'p, 'g> {
    /// A pass of training over the first `tokens` tokens.
    pub fn new(rec: &'p mut Recorder<'g>, tokens: usize, scratch: &'p Scratch) -> Pass<'p, 'g> {
        Pass { rec: Commands::new(rec), tokens, first: 0, scratch, decoding: None, panels: None }
    }

    /// Whether products take the kernels for a few rows.
    pub fn is_short(&self) -> bool {
        self.decoding.is_some_and(|decoding| decoding.short)
    }

    /// Continues with these tokens.
    pub fn over(&mut self, tokens: Range<usize>) {
        (self.first, self.tokens) = (tokens.start, tokens.len());
    }

    /// The operands' scratch laid out for this pass, where products run on 16×16 matrices.
    pub(in crate::ops) fn operands(&self) -> Option<Operands> {
        let operands = self.scratch.operands.as_ref()?.for_rows(self.tokens);
        let panels = self.panels.clone().or_else(|| operands.panels.clone());
        Some(operands.with_panels(panels))
    }
}
