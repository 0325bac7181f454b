//! Buffers of the experts beside the feed-forward block; `rows` are those of [`Groups`], grouped by expert.

use super::storage::{Role, Storage, Storages};
use super::widths::LayerWidths;
use crate::base::config::Experts;
use crate::gpu::{Gpu, GpuError};
use crate::ops::Rows;
use crate::ops::act::Act;
use crate::ops::experts::groups::{self, Groups};
use crate::ops::linear::experts::Grouped;
use crate::ops::lora::Input;
use crate::ops::pack::{Packed, packed_bytes};

/// The activations that one layer's experts save, of a chunk `C` of the tokens.
#[derive(Clone)]
pub struct ExpertActs {
    /// The router's choices.
    pub groups: Groups,
    /// `z` of the router `[C, R]`.
    pub z: Act,
    /// `z` of the experts' gate and up `[rows, R]`.
    pub z_gate_up: Rows,
    /// `z` of the experts' down `[rows, R]`.
    pub z_down: Rows,
    /// Gate and up `[rows, 2·F]`.
    pub gate_up: Rows,
    /// The experts' output `[C, D]`: the norm after it.
    pub output: Act,
    /// Normed outputs of the feed-forward block and of the experts, or the gated output of a shared expert and that of the
    /// routed ones, added up `[C, D]`.
    pub sum: Act,
    /// Scores of a shared expert `[C, 1]`, where there is one.
    pub shared_scores: Act,
    /// Scores of the router `[C, E]`, where its backward pass reads them.
    pub scores: Act,
}

/// Scratch of one layer's experts; every layer uses the same.
pub struct ExpertScratch {
    /// Input of the experts or of their router, or its gradient `[C, D]`.
    pub normed: Act,
    /// The router's scores, or their gradient `[C, E]`.
    pub scores: Act,
    /// Gradients of the choices' weights `[C, used]`.
    pub dweights: Rows,
    /// Gradients of the scores of a shared expert `[C, 1]`, where there is one.
    pub dshared_scores: Act,
    /// Results of products `[rows, F or some columns of D]`.
    pub wide: Rows,
    /// `u` of the experts' adapters `[rows, R]`.
    pub u: Rows,
    operand: Act,
    thin: Option<Packed>,
}

/// Rows of f32 in [`ExpertActs`]: label, rows and width.
fn act_shapes(
    gpu: &Gpu,
    shape: &Experts,
    width: usize,
    tokens: usize,
    z: [usize; 3],
) -> [(&'static str, usize, usize); 8] {
    let rows = groups::most_rows(gpu, shape, tokens);
    [
        ("z of the router", tokens, z[0]),
        ("z of experts' gate and up", rows, z[1]),
        ("z of experts' down", rows, z[2]),
        ("experts' gate and up", rows, 2 * shape.width),
        ("experts' output", tokens, width),
        ("feed-forward and experts", tokens, width),
        ("scores of a shared expert", tokens, usize::from(shape.scores_shared())),
        ("scores of the router", tokens, if shape.keeps_scores() { shape.count } else { 0 }),
    ]
}

/// Columns of `z` of the router, of the experts' gate and up, and of their down.
fn z_widths(w: &LayerWidths) -> [usize; 3] {
    [Input::RouterNormed, Input::ExpertsNormed, Input::ExpertsGated].map(|input| w.z[input])
}

impl ExpertActs {
    /// Buffers for passes over up to `tokens` tokens of a layer of widths `w`.
    pub fn new(gpu: &Gpu, shape: Experts, w: &LayerWidths, tokens: usize) -> Result<ExpertActs, GpuError> {
        let shapes = act_shapes(gpu, &shape, w.width, tokens, z_widths(w));
        let rows = |i: usize| {
            let (label, rows, width) = shapes[i];
            Rows::new(gpu, label, if width > 0 { rows } else { 0 }, width)
        };
        Ok(ExpertActs {
            groups: Groups::new(gpu, shape, tokens)?,
            z: rows(0)?.into(),
            z_gate_up: rows(1)?,
            z_down: rows(2)?,
            gate_up: rows(3)?,
            output: rows(4)?.into(),
            sum: rows(5)?.into(),
            shared_scores: rows(6)?.into(),
            scores: rows(7)?.into(),
        })
    }

    /// Bytes of [`ExpertActs::new`].
    pub fn bytes(gpu: &Gpu, shape: &Experts, w: &LayerWidths, tokens: usize) -> u64 {
        let shapes = act_shapes(gpu, shape, w.width, tokens, z_widths(w));
        let rows = shapes.map(|(_, rows, width)| Storage::F32.bytes(rows, width));
        Groups::bytes(gpu, shape, tokens) + rows.iter().sum::<u64>()
    }

    /// Bytes of the longest buffer of [`ExpertActs::new`].
    pub fn longest(gpu: &Gpu, shape: &Experts, w: &LayerWidths, tokens: usize) -> u64 {
        let shapes = act_shapes(gpu, shape, w.width, tokens, z_widths(w));
        shapes.into_iter().map(|(_, rows, width)| Storage::F32.bytes(rows, width)).max().unwrap_or(0)
    }

    /// A view of the memory for a layer of widths `w`, with counts of its own: passes over other layers do not change them.
    pub fn sharing(&self, gpu: &Gpu, w: &LayerWidths) -> Result<ExpertActs, GpuError> {
        let counts = Rows::new(gpu, "tokens of experts", 1, self.groups.experts.count)?;
        let [z, z_gate_up, z_down] = z_widths(w);
        Ok(ExpertActs {
            groups: Groups { counts, ..self.groups.clone() },
            z: self.z.reshaped(z),
            z_gate_up: self.z_gate_up.reshaped(z_gate_up),
            z_down: self.z_down.reshaped(z_down),
            ..self.clone()
        })
    }
}

impl ExpertScratch {
    /// Buffers for passes over up to `tokens` tokens with experts' adapters of padded rank `rank`, 0 for none; `normed` is
    /// `[tokens, D]` and may be used between calls.
    pub fn new(
        gpu: &Gpu,
        storages: Storages,
        shape: &Experts,
        normed: Act,
        tokens: usize,
        rank: usize,
    ) -> Result<ExpertScratch, GpuError> {
        let d = normed.rows().stride;
        let rows = groups::most_rows(gpu, shape, tokens);
        let thin_rows = if rank > 0 { rows } else { 1 };
        let (storage, width) = operand(storages, shape, d);
        let thin =
            (storage == Storage::Tiled).then(|| Packed::new(gpu, "packed z of experts", thin_rows, rank));
        Ok(ExpertScratch {
            normed,
            scores: Rows::new(gpu, "experts' scores", tokens, shape.count)?.into(),
            dweights: Rows::new(gpu, "gradients of experts' weights", 1, tokens * shape.used)?,
            dshared_scores: match shape.scores_shared() {
                true => Rows::new(gpu, "gradients of a shared expert's scores", tokens, 1)?.into(),
                false => Rows::new(gpu, "no shared expert", 0, 1)?.into(),
            },
            operand: storage.make(gpu, "operand of experts", rows, width)?,
            thin: thin.transpose()?,
            wide: Rows::new(gpu, "products of experts", rows, part(d).max(shape.width))?,
            u: Rows::new(gpu, "u of experts", if rank > 0 { rows } else { 0 }, rank)?,
        })
    }

    /// Bytes of [`ExpertScratch::new`] without `normed`.
    pub fn bytes(
        gpu: &Gpu,
        storages: Storages,
        shape: &Experts,
        d: usize,
        tokens: usize,
        rank: usize,
    ) -> u64 {
        let rows = groups::most_rows(gpu, shape, tokens);
        let tiled = operand(storages, shape, d).0 == Storage::Tiled;
        let thin_rows = if rank > 0 { rows } else { 1 };
        let thin = if tiled { packed_bytes(thin_rows, rank) + 4 * thin_rows as u64 } else { 0 };
        let lists = Storage::F32.bytes(tokens, shape.count)
            + Storage::F32.bytes(1, tokens * shape.used)
            + Storage::F32.bytes(tokens, usize::from(shape.scores_shared()));
        let factors = if tiled { 4 * rows as u64 } else { 0 };
        let spare: u64 = ExpertScratch::spare_bytes(gpu, storages, shape, d, tokens).iter().sum();
        spare + factors + thin + lists + Storage::F32.bytes(rows, rank)
    }

    /// Two buffers that may be used between calls.
    pub fn spare(&self) -> [Rows; 2] {
        let operand = match self.operand.tiles() {
            Some(tiles) => tiles.as_rows(4),
            None => self.operand.rows().clone(),
        };
        [self.wide.clone(), operand]
    }

    /// Bytes of the two buffers of [`ExpertScratch::spare`].
    pub fn spare_bytes(gpu: &Gpu, storages: Storages, shape: &Experts, d: usize, tokens: usize) -> [u64; 2] {
        let rows = groups::most_rows(gpu, shape, tokens);
        let (storage, width) = operand(storages, shape, d);
        [Storage::F32.bytes(rows, part(d).max(shape.width)), storage.value_bytes(rows, width)]
    }

    /// The columns of a result of width `d` that are computed at a time: the first of them, and where they go.
    pub fn parts(&self, d: usize) -> impl Iterator<Item = (usize, Rows)> {
        let part = part(d);
        (0..d).step_by(part).map(move |first| (first, self.wide.reshaped(part.min(d - first))))
    }

    /// The products of `groups` with this scratch.
    pub fn grouped<'a>(&'a self, groups: &'a Groups) -> Grouped<'a> {
        Grouped { groups, operand: &self.operand, thin: self.thin.as_ref() }
    }

    /// Memory for an operand of `width` columns in f32: in the operand itself where products read f32, else elsewhere.
    pub fn operand_rows(&self, width: usize) -> Rows {
        match self.operand.tiles() {
            Some(_) => self.wide.reshaped(width),
            None => self.operand.rows().reshaped(width),
        }
    }
}

/// Storage of the operand of products, and its columns.
fn operand(storages: Storages, shape: &Experts, d: usize) -> (Storage, usize) {
    match storages.of(Role::Block) {
        Storage::Tiled => (Storage::Tiled, d.max(2 * shape.width)),
        storage => (storage, 2 * shape.width),
    }
}

/// Columns of a result of width `d` that are computed at a time: half of them, as experts have many rows, in whole tiles.
fn part(d: usize) -> usize {
    d.div_ceil(2).next_multiple_of(128).min(d)
}
