//! The table of buffers: what forward saves for backward, and the scratch of backward.
//!
//! `T` are the tokens of a micro-batch, `C` those of a chunk, in which the feed-forward block runs.

use super::recompute::Kept;
use super::storage::{Role, Storage, Storages};
use super::widths::LayerWidths;
use crate::base::config::DeltaNet;
use crate::ops::delta;
use crate::ops::lora::Input;

/// An activation that forward leaves for backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    /// Input of the layer `[T, D]`: the norm before attention, recomputation, and of the first layer the per-layer inputs.
    Input,
    /// Rotated keys `[T, G·K]`: attention, of sharing layers too.
    K,
    /// Normed values `[T, G·K]`.
    V,
    /// Log-sum-exp of the scores `[T, H]`: attention's backward.
    Lse,
    /// `norm(input)` `[T, D]`: adapters of q, k and v.
    AttnNormed,
    /// `z` of q, k and v `[T, Σ R]`.
    ZAttn,
    /// Queries before their norm `[T, H·K]`.
    AttnQ,
    /// Keys before their norm `[T, G·K]`.
    AttnK,
    /// Values before their norm `[T, G·K]`.
    AttnV,
    /// Rotated queries `[T, H·K]`.
    Q,
    /// Output of attention `[T, H·K]`: adapter of the output projection.
    Attention,
    /// `z` of the output projection `[T, R]`.
    ZOutput,
    /// Output projection `[T, D]`: the norm after it.
    AttnOutput,
    /// The stream after attention `[T, D]`: the norm before the feed-forward block.
    AfterAttention,
    /// `norm(after_attention)` `[C, D]`: adapters of gate and up.
    FfnNormed,
    /// `z` of gate and up `[C, Σ R]`.
    ZFfn,
    /// Gate `[C, F]`.
    FfnGate,
    /// Up `[C, F]`.
    FfnUp,
    /// `activation(gate)·up` `[C, F]`: adapter of down.
    Gated,
    /// `z` of down `[C, R]`.
    ZDown,
    /// Output of the feed-forward block `[C, D]`: the norm after it.
    Down,
    /// The stream after the feed-forward block `[C, D]`: adapter of the per-layer branch.
    AfterFfn,
    /// `z` of the per-layer gate `[C, R]`.
    ZGate,
    /// Per-layer input `[C, P]`.
    PerLayerInput,
    /// Gate of the per-layer branch `[C, P]`.
    InpGate,
    /// Gated per-layer input `[C, P]`: adapter of its projection.
    GatedInput,
    /// `z` of that projection `[C, R]`.
    ZProj,
    /// Output of the per-layer branch `[C, D]`: the norm after it.
    Proj,
    /// Queries before their norm and gates of attention's output `[T, H, 2, K]`, where there are gates; of a delta net, queries, keys and
    /// values before the convolution `[T, C]`; of a short convolution, gates and input `[T, 3, C]`.
    MixerInput,
    /// Attention's output times its gates, or without the zeros behind narrower heads of values, the delta net's normed and gated output, or
    /// the short convolution's `[T, H·K]`: adapter of the output projection.
    GatedAttention,
    /// Gates of a delta net's output `[T, Hv·K]`.
    DeltaGate,
    /// Its decays `[T, Hv]`.
    Alpha,
    /// Its rates `[T, Hv]`.
    Beta,
    /// See [`crate::ops::delta::Saved::mixed`].
    Mixed,
    /// See [`crate::ops::delta::Saved::gates`].
    Decays,
    /// See [`crate::ops::delta::Saved::inverse`].
    Inverse,
    /// See [`crate::ops::delta::Saved::wu`].
    WU,
    /// See [`crate::ops::delta::Saved::states`].
    States,
    /// Output of the recurrence `[T, Hv·K]`: the norm after it.
    DeltaOutput,
    /// `norm(output)` `[T, Hv·K]`, which backward computes again. Before the norm, see [`crate::ops::delta::Saved::values`].
    DeltaNormed,
    /// Latent vectors of queries before their norm `[T, Rq]`.
    QueryLatent,
    /// `norm(latent vectors of queries)` `[T, Rq]`: adapter of the queries' second matrix.
    QueryNormed,
    /// `z` of that matrix `[T, R]`.
    ZQuery,
    /// The turned part of keys, and latent vectors of keys and values before their norm `[T, n + Rk]`.
    KeyValueLatent,
    /// Those latent vectors alone `[T, Rk]`.
    Latent,
    /// `norm(latent vectors of keys and values)` `[T, Rk]`: adapter of the matrix of both.
    LatentNormed,
    /// `z` of that matrix `[T, R]`.
    ZLatent,
    /// Keys without their turned part `[T, H·(K − n)]`.
    LatentKeys,
    /// Values of latent vectors `[T, H·V]`, where heads of values are narrower than those of keys.
    LatentValues,
    /// Keys of latent vectors with their turned part, which is yet to turn `[T, H·K]`.
    WholeKeys,
    /// Values of latent vectors with zeros behind those of each head `[T, H·K]`.
    WholeValues,
}

impl Saved {
    /// Whether every part of the heads has a buffer, where a layer's heads are in parts: backward reads it, or a product of all heads.
    pub fn is_by_part(self) -> bool {
        use Saved::*;
        let of_attention = [Lse, AttnQ, Q, Attention, MixerInput, GatedAttention];
        let of_delta = [DeltaGate, Alpha, Beta, Mixed, Decays, Inverse, WU, States, DeltaOutput];
        of_attention.contains(&self) || of_delta.contains(&self)
    }
}

/// Which layers have an activation of their own; the others share one, which recomputation fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    /// Every layer.
    Always,
    /// Layers that keep as much.
    From(Kept),
    /// Layers that keep everything, and those whose keys and values later layers read.
    Keys,
    /// None: nothing reads it after the layer's forward.
    Never,
}

/// Rows of the shared one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// All tokens of the micro-batch.
    Tokens,
    /// The tokens of a chunk.
    Chunk,
    /// The chunks of a delta net.
    States,
    /// One row.
    Once,
}

impl Span {
    /// Rows in a micro-batch of `tokens` tokens, in chunks of `chunk`.
    pub fn rows(self, tokens: usize, chunk: usize) -> usize {
        match self {
            Span::Tokens => tokens,
            Span::Chunk => chunk,
            Span::States => tokens.div_ceil(delta::CHUNK),
            Span::Once => 1,
        }
    }

    /// Rows that a layer of its own has.
    pub fn own_rows(self, tokens: usize) -> usize {
        self.rows(tokens, tokens)
    }
}

/// One row of the table.
pub struct Entry {
    /// Its name.
    pub name: Saved,
    /// Its use.
    pub role: Role,
    /// Values per token.
    pub width: fn(&LayerWidths) -> usize,
    /// Which layers have their own.
    pub own: Own,
    /// Rows of the shared one.
    pub span: Span,
}

impl Entry {
    /// The buffers that a layer of widths `w` has for itself, and the rows of each: one for each part of the heads, or, where all tokens of
    /// a chunk's activation would exceed `most` bytes, one for each chunk; else one.
    pub fn own_buffers(
        &self,
        w: &LayerWidths,
        storages: Storages,
        [tokens, chunk]: [usize; 2],
        most: u64,
    ) -> (usize, usize) {
        let rows = self.span.own_rows(tokens);
        let bytes = storages.of(self.role).value_bytes(rows, (self.width)(w));
        match self.span {
            _ if self.name.is_by_part() => (w.parts, rows),
            Span::Chunk if bytes > most => (tokens.div_ceil(chunk.max(1)), chunk),
            _ => (1, rows),
        }
    }

    /// Whether a layer of widths `w` that keeps `kept` has its own.
    pub fn is_own(&self, w: &LayerWidths, kept: Kept) -> bool {
        match self.own {
            Own::Always => true,
            Own::From(least) => kept >= least,
            Own::Never => false,
            Own::Keys => kept == Kept::All || w.shared_keys > 0,
        }
    }
}

const fn entry(name: Saved, role: Role, width: fn(&LayerWidths) -> usize, own: Own, span: Span) -> Entry {
    Entry { name, role, width, own, span }
}

/// Every activation that a layer saves, in the order of [`Saved`].
pub const TABLE: [Entry; 51] = {
    use Kept::{All, Attention, Down, Products};
    use Own::{Always, From, Keys, Never};
    use Role::{Block, Gate, Heads, MixerOutput, Operand, Plain, RawHeads, Result};
    use Span::{Chunk, States, Tokens};
    [
        entry(Saved::Input, Block, |w| w.width, Always, Tokens),
        entry(Saved::K, Heads, |w| w.own_keys, Keys, Tokens),
        entry(Saved::V, Heads, |w| w.own_keys, Keys, Tokens),
        entry(Saved::Lse, Plain, |w| w.heads, Always, Tokens),
        entry(Saved::AttnNormed, Operand, |w| w.width, From(All), Tokens),
        entry(Saved::ZAttn, Plain, |w| w.z[Input::AttnNormed], From(Products), Tokens),
        entry(Saved::AttnQ, RawHeads, |w| w.queries, From(Products), Tokens),
        entry(Saved::AttnK, RawHeads, LayerWidths::raw_keys, From(Products), Tokens),
        entry(Saved::AttnV, RawHeads, |w| w.own_values, From(Products), Tokens),
        entry(Saved::Q, Heads, |w| w.queries, From(All), Tokens),
        entry(Saved::Attention, MixerOutput, |w| w.queries, From(Attention), Tokens),
        entry(Saved::ZOutput, Plain, |w| w.z[Input::Attention], From(Products), Tokens),
        entry(Saved::AttnOutput, Result, |w| w.width, From(Products), Tokens),
        entry(Saved::AfterAttention, Plain, |w| w.width, From(All), Tokens),
        entry(Saved::FfnNormed, Operand, dense, From(All), Chunk),
        entry(Saved::ZFfn, Plain, |w| w.z[Input::FfnNormed], From(Products), Chunk),
        entry(Saved::FfnGate, Gate, |w| w.ffn, From(Products), Chunk),
        entry(Saved::FfnUp, Gate, |w| w.ffn, From(Products), Chunk),
        entry(Saved::Gated, Operand, |w| w.ffn, From(All), Chunk),
        entry(Saved::ZDown, Plain, |w| w.z[Input::Gated], From(Products), Chunk),
        entry(Saved::Down, Result, dense, From(Down), Chunk),
        entry(Saved::AfterFfn, Operand, branch, From(All), Chunk),
        entry(Saved::ZGate, Plain, |w| w.z[Input::AfterFfn], From(Products), Chunk),
        entry(Saved::PerLayerInput, Plain, |w| w.per_layer, From(Products), Chunk),
        entry(Saved::InpGate, Plain, |w| w.per_layer, From(Products), Chunk),
        entry(Saved::GatedInput, Operand, |w| w.per_layer, From(All), Chunk),
        entry(Saved::ZProj, Plain, |w| w.z[Input::PerLayer], From(Products), Chunk),
        entry(Saved::Proj, Result, branch, From(Products), Chunk),
        entry(Saved::MixerInput, Plain, LayerWidths::mixer_input, From(Products), Tokens),
        entry(Saved::GatedAttention, MixerOutput, LayerWidths::gated, From(All), Tokens),
        entry(Saved::DeltaGate, Plain, inner, From(Products), Tokens),
        entry(Saved::Alpha, Plain, delta_heads, From(Products), Tokens),
        entry(Saved::Beta, Plain, delta_heads, From(Products), Tokens),
        entry(Saved::Mixed, Plain, |w| w.of_delta.mixed, From(All), Tokens),
        entry(Saved::Decays, Plain, |w| delta::gates_width(delta_heads(w)), From(All), Tokens),
        entry(Saved::Inverse, Plain, |w| w.of_delta.inverse, From(All), Tokens),
        entry(Saved::WU, Plain, |w| w.of_delta.wu, From(All), Tokens),
        entry(Saved::States, Plain, |w| w.of_delta.states, From(All), States),
        entry(Saved::DeltaOutput, Plain, inner, From(All), Tokens),
        entry(Saved::DeltaNormed, Plain, inner, Never, Tokens),
        entry(Saved::QueryLatent, Plain, |w| w.latent.query_rank, From(Products), Tokens),
        entry(Saved::QueryNormed, Operand, |w| w.latent.query_rank, From(All), Tokens),
        entry(Saved::ZQuery, Plain, |w| w.z[Input::QueryLatent], From(Products), Tokens),
        entry(Saved::KeyValueLatent, Plain, |w| w.latent.both, From(Products), Tokens),
        entry(Saved::Latent, Plain, |w| w.latent.rank, Never, Tokens),
        entry(Saved::LatentNormed, Operand, |w| w.latent.rank, From(All), Tokens),
        entry(Saved::ZLatent, Plain, |w| w.z[Input::Latent], From(Products), Tokens),
        entry(Saved::LatentKeys, Plain, |w| w.latent.keys, Never, Tokens),
        entry(Saved::LatentValues, Plain, |w| w.latent.narrow_values, Never, Tokens),
        entry(Saved::WholeKeys, Plain, LayerWidths::whole_keys, Never, Tokens),
        entry(Saved::WholeValues, Plain, LayerWidths::whole_keys, Never, Tokens),
    ]
};

/// `D` where the layer has a dense feed-forward block.
fn dense(w: &LayerWidths) -> usize {
    if w.ffn > 0 { w.width } else { 0 }
}

/// `F` where products write up elsewhere than it is kept.
fn up_staging(w: &LayerWidths, storages: Storages) -> usize {
    if storages.of(Role::Operand) == Storage::Tiled { w.ffn } else { 0 }
}

/// `D` where the layer has a per-layer branch.
fn branch(w: &LayerWidths) -> usize {
    if w.per_layer > 0 { w.width } else { 0 }
}

/// Values of a delta net's output.
fn inner(w: &LayerWidths) -> usize {
    w.delta_width(DeltaNet::values)
}

/// Value heads of a delta net.
fn delta_heads(w: &LayerWidths) -> usize {
    w.delta_width(|delta| delta.value_heads)
}

/// The row of the table for `name`.
pub fn of(name: Saved) -> &'static Entry {
    &TABLE[name as usize]
}

/// A buffer of backward, which every layer uses in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Temp {
    /// Gradient of a norm's input or output `[T, D]`.
    DStream,
    /// Gradient of a norm's output `[T, D]`.
    DNormed,
    /// Gradient of the gated product `[C, F]`.
    DGated,
    /// Gradient of up `[C, F]`, if stored in f32; otherwise it overwrites [`Saved::FfnUp`].
    DUp,
    /// Gradient of gate `[C, F]`, likewise: in the memory of [`Saved::Gated`] where layers recompute that.
    DGate,
    /// [`Saved::Down`] or [`Saved::Proj`] of a chunk in f32, where they are stored as tiles `[C, D]`.
    DownStaging,
    /// [`Saved::FfnUp`] of a chunk in f32, where it is stored as tiles `[C, F]`. [`Saved::FfnGate`] is in [`Temp::DGated`] then.
    UpStaging,
    /// Gradient of raw keys `[T, G·K]`, where the layer has a matrix for its values.
    DAttnK,
    /// Gradient of raw values `[T, G·K]`.
    DAttnV,
    /// Gradient of raw keys that are the values too `[T, G·K]`.
    DAttnKV,
    /// Gradient of keys `[T, G·K]`, of layers whose keys no other layer reads. Those of latent vectors turn back in place.
    DK,
    /// Gradient of values `[T, G·K]`.
    DV,
    /// See [`crate::ops::pass::Scratch::delta`].
    Delta,
    /// Gradient of the gated per-layer input `[C, P]`.
    DGatedInput,
    /// Gradient of the per-layer gate `[C, P]`.
    DInpGate,
    /// Gradient of [`Saved::GatedAttention`]; of attention in parts of its heads, of [`Saved::Attention`] where it has no gates.
    DGatedAttention,
    /// Gradient of [`Saved::MixerInput`]; of attention in parts of its heads, of [`Saved::AttnQ`] where it has no gates.
    DMixerInput,
    /// Gradient of [`Saved::DeltaGate`].
    DDeltaGate,
    /// Gradient of [`Saved::Alpha`].
    DAlpha,
    /// Gradient of [`Saved::Beta`].
    DBeta,
    /// Gradient of [`Saved::DeltaOutput`].
    DDeltaOutput,
    /// See [`crate::ops::delta::Gradients::du`].
    DU,
    /// See [`crate::ops::delta::Gradients::dstates`].
    DStates,
    /// See [`crate::ops::delta::Gradients::pairs`].
    DPairs,
    /// See [`crate::ops::delta::Gradients::dmixed`].
    DMixed,
    /// Keys of a part of the heads, where keys are stored in f32 `[T, G·K]`.
    PartK,
    /// Values of a part.
    PartV,
    /// Gradients of its keys `[T, G·K]`.
    PartDK,
    /// Gradients of its values.
    PartDV,
    /// [`Saved::MixerInput`] or [`Saved::AttnQ`] of all heads, its gradient, or that of the output projection's input, of a chunk
    /// `[C, …]`.
    StagedInput,
    /// [`Saved::DeltaGate`] of all heads, or its gradient `[C, Hv·K]`.
    StagedGate,
    /// [`Saved::Alpha`] of all heads, or its gradient `[C, Hv]`.
    StagedAlpha,
    /// [`Saved::Beta`] of all heads, or its gradient `[C, Hv]`.
    StagedBeta,
    /// Input of the output projection, of all heads `[C, H·K]`.
    StagedOutput,
    /// Sinks of a part of the heads `[1, H]`.
    PartSinks,
    /// Weights of the convolution of a part of a delta net's heads, or of the channels of a short convolution `[1, C·4]`.
    PartTaps,
    /// See [`crate::ops::delta::Frozen::new`]: `a` and `dt` of a part of the heads `[1, Hv·2]`.
    PartGates,
    /// Gradient of [`Saved::QueryNormed`].
    DQueryNormed,
    /// Gradient of [`Saved::QueryLatent`].
    DQueryLatent,
    /// Gradient of [`Saved::KeyValueLatent`].
    DKeyValueLatent,
    /// Gradient of [`Saved::LatentNormed`].
    DLatentNormed,
    /// Gradient of [`Saved::Latent`].
    DLatent,
    /// Gradient of [`Saved::LatentKeys`].
    DLatentKeys,
    /// Gradient of [`Saved::LatentValues`].
    DLatentValues,
}

impl Temp {
    /// Whether every part of the heads has a buffer, where a layer's heads are in parts: a product of all heads reads it.
    pub fn is_by_part(self) -> bool {
        use Temp::*;
        [DGatedAttention, DMixerInput, DDeltaGate, DAlpha, DBeta].contains(&self)
    }
}

/// One buffer of backward.
pub struct TempEntry {
    /// Its name.
    pub name: Temp,
    /// Its use.
    pub role: Role,
    /// Values per token.
    pub width: fn(&LayerWidths, Storages) -> usize,
    /// Its rows.
    pub span: Span,
    /// Whether attention's backward may use its memory: the feed-forward block needs it no longer by then.
    pub lent: bool,
}

const fn temp(
    name: Temp,
    role: Role,
    width: fn(&LayerWidths, Storages) -> usize,
    span: Span,
    lent: bool,
) -> TempEntry {
    TempEntry { name, role, width, span, lent }
}

/// Every buffer of backward, in the order of [`Temp`]; of those that are lent the order decides between equal sizes.
pub const TEMPS: [TempEntry; 44] = {
    use Role::{Block, Plain};
    use Span::{Chunk, Once, States, Tokens};
    [
        temp(Temp::DStream, Plain, |w, _| w.width, Tokens, false),
        temp(Temp::DNormed, Plain, |w, _| w.width, Tokens, false),
        temp(Temp::DGated, Plain, |w, _| w.ffn, Chunk, true),
        temp(Temp::DUp, Plain, |w, s| w.ffn - up_staging(w, s), Chunk, true),
        temp(Temp::DGate, Plain, |w, s| w.ffn - up_staging(w, s), Chunk, true),
        temp(Temp::DownStaging, Plain, |w, s| if s.tiles { dense(w) } else { 0 }, Chunk, false),
        temp(Temp::UpStaging, Plain, up_staging, Chunk, true),
        temp(Temp::DAttnK, Block, |w, _| w.own_values, Tokens, false),
        temp(Temp::DAttnV, Block, |w, _| w.own_values, Tokens, false),
        temp(Temp::DAttnKV, Plain, |w, _| w.joint_keys, Tokens, false),
        temp(Temp::DK, Plain, |w, _| w.own_keys, Tokens, false),
        temp(Temp::DV, Plain, |w, _| w.own_keys, Tokens, false),
        temp(Temp::Delta, Plain, |w, _| 2 * w.heads, Tokens, false),
        temp(Temp::DGatedInput, Plain, |w, _| w.per_layer, Chunk, false),
        temp(Temp::DInpGate, Plain, |w, _| w.per_layer, Chunk, false),
        temp(Temp::DGatedAttention, Plain, |w, _| w.gated().max(w.kept_queries()), Tokens, false),
        temp(Temp::DMixerInput, Plain, |w, _| w.mixer_input().max(w.kept_queries()), Tokens, false),
        temp(Temp::DDeltaGate, Plain, |w, _| inner(w), Tokens, false),
        temp(Temp::DAlpha, Plain, |w, _| delta_heads(w), Tokens, false),
        temp(Temp::DBeta, Plain, |w, _| delta_heads(w), Tokens, false),
        temp(Temp::DDeltaOutput, Plain, |w, _| inner(w), Tokens, false),
        temp(Temp::DU, Plain, |w, _| w.of_delta.du, Tokens, false),
        temp(Temp::DStates, Plain, |w, _| w.of_delta.states, States, false),
        temp(Temp::DPairs, Plain, |w, _| w.of_delta.pairs, Tokens, false),
        temp(Temp::DMixed, Plain, |w, _| 3 * inner(w), Tokens, false),
        temp(Temp::PartK, Plain, part_keys, Tokens, false),
        temp(Temp::PartV, Plain, part_keys, Tokens, false),
        temp(Temp::PartDK, Plain, |w, _| w.staged.part_keys, Tokens, false),
        temp(Temp::PartDV, Plain, |w, _| w.staged.part_keys, Tokens, false),
        temp(Temp::StagedInput, Plain, |w, _| w.staged.input, Chunk, false),
        temp(Temp::StagedGate, Plain, |w, _| w.staged.gate, Chunk, false),
        temp(Temp::StagedAlpha, Plain, |w, _| w.staged.rates, Chunk, false),
        temp(Temp::StagedBeta, Plain, |w, _| w.staged.rates, Chunk, false),
        temp(Temp::StagedOutput, Plain, |w, _| w.staged.output, Chunk, false),
        temp(Temp::PartSinks, Plain, |w, _| if w.staged.part_keys > 0 { w.heads } else { 0 }, Once, false),
        temp(Temp::PartTaps, Plain, |w, _| if w.parts > 1 { 4 * w.mixer_input() } else { 0 }, Once, false),
        temp(Temp::PartGates, Plain, |w, _| if w.parts > 1 { 2 * delta_heads(w) } else { 0 }, Once, false),
        temp(Temp::DQueryNormed, Plain, |w, _| w.latent.query_rank, Tokens, false),
        temp(Temp::DQueryLatent, Plain, |w, _| w.latent.query_rank, Tokens, false),
        temp(Temp::DKeyValueLatent, Plain, |w, _| w.latent.both, Tokens, false),
        temp(Temp::DLatentNormed, Plain, |w, _| w.latent.rank, Tokens, false),
        temp(Temp::DLatent, Plain, |w, _| w.latent.rank, Tokens, false),
        temp(Temp::DLatentKeys, Plain, |w, _| w.latent.keys, Tokens, false),
        temp(Temp::DLatentValues, Plain, |w, _| w.latent.narrow_values, Tokens, false),
    ]
};

/// Keys of a part of the heads, where they are not a view of those of all.
fn part_keys(w: &LayerWidths, storages: Storages) -> usize {
    if storages.of(Role::Heads) == Storage::Tiled { 0 } else { w.staged.part_keys }
}

/// Saved activations whose shared memory attention's backward may use, behind those of [`TEMPS`]. [`Saved::Gated`] in f32 is among these,
/// as [`Temp::DGate`].
pub fn lent(storages: Storages) -> &'static [Saved] {
    match storages.of(Role::Operand) {
        Storage::F32 => &[Saved::FfnGate, Saved::FfnUp],
        Storage::Tiled | Storage::Blocks => &[Saved::FfnGate, Saved::FfnUp, Saved::Gated],
    }
}

#[cfg(test)]
mod tests {
    use super::{TABLE, TEMPS};

    #[test]
    fn tables_are_in_the_order_of_their_names() {
        assert!(TABLE.iter().enumerate().all(|(i, entry)| entry.name as usize == i));
        assert!(TEMPS.iter().enumerate().all(|(i, entry)| entry.name as usize == i));
    }
}
