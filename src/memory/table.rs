//! The table of buffers: what forward saves for backward, and the scratch of backward.
//!
//! `T` are the tokens of a micro-batch, `C` those of a chunk, in which the feed-forward block runs.

use super::keep::Kept;
use super::widths::LayerWidths;
use crate::gpu::{Gpu, GpuError};
use crate::ops::Rows;
use crate::ops::act::Act;
use crate::ops::lora::Input;
use crate::ops::pack::{Packed, packed_bytes};

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
}

/// How an activation is used, which decides how it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Kernels for f32 read it.
    Plain,
    /// Only products read it.
    Operand,
    /// Products read it, and something else.
    OperandAndRows,
    /// Attention reads it.
    Heads,
    /// A block's input or output: rounded to f16 where products round what they read to that as well, at every choice of what
    /// layers keep, so that no bit depends on that choice.
    Block,
}

/// How an activation is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// Rows of f32.
    F32,
    /// f16 tiles.
    Tiled,
    /// Both.
    Both,
}

/// How activations of each role are stored in a run.
#[derive(Clone, Copy, Debug)]
pub struct Storages {
    /// Whether products run on 16×16 matrices.
    pub tiles: bool,
    /// Whether adapters read their inputs under a dropout mask, which is computed in f32.
    pub masked: bool,
    /// Whether attention runs on 16×16 matrices: it supports some head sizes.
    pub heads: bool,
}

impl Storages {
    /// The storage of `role`.
    pub fn of(self, role: Role) -> Storage {
        let tiled = |yes: bool| if yes { Storage::Tiled } else { Storage::F32 };
        match role {
            Role::Plain => Storage::F32,
            Role::Operand => tiled(self.tiles && !self.masked),
            Role::OperandAndRows if self.tiles && !self.masked => Storage::Both,
            Role::OperandAndRows => Storage::F32,
            Role::Heads => tiled(self.heads),
            Role::Block => tiled(self.tiles),
        }
    }
}

impl Storage {
    /// Bytes of `rows` rows of `width` values.
    pub fn bytes(self, rows: usize, width: usize) -> u64 {
        let f32 = (rows * width.next_multiple_of(4) * 4) as u64;
        let tiles = packed_bytes(rows, width) + 4 * rows as u64;
        match self {
            _ if width == 0 => 0,
            Storage::F32 => f32,
            Storage::Tiled => tiles,
            Storage::Both => f32 + tiles,
        }
    }

    /// Bytes of the values' buffer; the factors of tiles have a buffer of their own.
    pub fn value_bytes(self, rows: usize, width: usize) -> u64 {
        match self {
            Storage::Tiled if width > 0 => packed_bytes(rows, width),
            _ => Storage::F32.bytes(rows, width),
        }
    }

    /// Allocates `rows` rows of `width` values.
    pub fn make(self, gpu: &Gpu, label: &str, rows: usize, width: usize) -> Result<Act, GpuError> {
        let f32 = || Rows::new(gpu, label, if width == 0 { 0 } else { rows }, width);
        Ok(match self {
            _ if width == 0 => f32()?.into(),
            Storage::F32 => f32()?.into(),
            Storage::Tiled => Act::tiled(Packed::new(gpu, label, rows, width)?, None),
            Storage::Both => Act::both(f32()?, Packed::new(gpu, label, rows, width)?),
        })
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
}

/// Rows of the shared one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// All tokens of the micro-batch.
    Tokens,
    /// The tokens of a chunk.
    Chunk,
}

impl Span {
    /// Rows in a micro-batch of `tokens` tokens, in chunks of `chunk`.
    pub fn rows(self, tokens: usize, chunk: usize) -> usize {
        match self {
            Span::Tokens => tokens,
            Span::Chunk => chunk,
        }
    }
}

/// One row of the table.
pub struct Entry {
    /// Its name.
    pub name: Saved,
    /// How it is used.
    pub role: Role,
    /// Values per token.
    pub width: fn(&LayerWidths) -> usize,
    /// Which layers have their own.
    pub own: Own,
    /// Rows of the shared one.
    pub span: Span,
}

impl Entry {
    /// Whether a layer of widths `w` that keeps `kept` has its own.
    pub fn is_own(&self, w: &LayerWidths, kept: Kept) -> bool {
        match self.own {
            Own::Always => true,
            Own::From(least) => kept >= least,
            Own::Keys => kept == Kept::All || w.shared_keys > 0,
        }
    }
}

const fn entry(name: Saved, role: Role, width: fn(&LayerWidths) -> usize, own: Own, span: Span) -> Entry {
    Entry { name, role, width, own, span }
}

/// Every activation that a layer saves, in the order of [`Saved`].
pub const TABLE: [Entry; 28] = {
    use Kept::{All, Attention, Down};
    use Own::{Always, From, Keys};
    use Role::{Block, Heads, Operand, OperandAndRows, Plain};
    use Span::{Chunk, Tokens};
    [
        entry(Saved::Input, Block, |w| w.width, Always, Tokens),
        entry(Saved::K, Heads, |w| w.own_keys, Keys, Tokens),
        entry(Saved::V, Heads, |w| w.own_keys, Keys, Tokens),
        entry(Saved::Lse, Plain, |w| w.heads, Always, Tokens),
        entry(Saved::AttnNormed, Operand, |w| w.width, From(All), Tokens),
        entry(Saved::ZAttn, Plain, |w| w.z[Input::AttnNormed], From(All), Tokens),
        entry(Saved::AttnQ, Plain, |w| w.queries, From(All), Tokens),
        entry(Saved::AttnK, Plain, |w| w.own_keys, From(All), Tokens),
        entry(Saved::AttnV, Plain, |w| w.own_values, From(All), Tokens),
        entry(Saved::Q, Heads, |w| w.queries, From(All), Tokens),
        entry(Saved::Attention, Operand, |w| w.queries, From(Attention), Tokens),
        entry(Saved::ZOutput, Plain, |w| w.z[Input::Attention], From(All), Tokens),
        entry(Saved::AttnOutput, Plain, |w| w.width, From(All), Tokens),
        entry(Saved::AfterAttention, Plain, |w| w.width, From(All), Tokens),
        entry(Saved::FfnNormed, Operand, |w| w.width, From(All), Chunk),
        entry(Saved::ZFfn, Plain, |w| w.z[Input::FfnNormed], From(All), Chunk),
        entry(Saved::FfnGate, Plain, |w| w.ffn, From(All), Chunk),
        entry(Saved::FfnUp, Plain, |w| w.ffn, From(All), Chunk),
        entry(Saved::Gated, Operand, |w| w.ffn, From(All), Chunk),
        entry(Saved::ZDown, Plain, |w| w.z[Input::Gated], From(All), Chunk),
        entry(Saved::Down, Block, |w| w.width, From(Down), Chunk),
        entry(Saved::AfterFfn, OperandAndRows, branch, From(All), Chunk),
        entry(Saved::ZGate, Plain, |w| w.z[Input::AfterFfn], From(All), Chunk),
        entry(Saved::PerLayerInput, Plain, |w| w.per_layer, From(All), Chunk),
        entry(Saved::InpGate, Plain, |w| w.per_layer, From(All), Chunk),
        entry(Saved::GatedInput, Plain, |w| w.per_layer, From(All), Chunk),
        entry(Saved::ZProj, Plain, |w| w.z[Input::PerLayer], From(All), Chunk),
        entry(Saved::Proj, Plain, branch, From(All), Chunk),
    ]
};

/// `D` where the layer has a per-layer branch.
fn branch(w: &LayerWidths) -> usize {
    if w.per_layer > 0 { w.width } else { 0 }
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
    /// Gradient of up `[C, F]`.
    DUp,
    /// Gradient of gate `[C, F]`: in the memory of [`Saved::Gated`] where layers recompute that.
    DGate,
    /// [`Saved::Down`] of a chunk in f32, where it is stored as tiles `[C, D]`.
    DownStaging,
    /// Gradient of raw keys `[T, G·K]`.
    DAttnK,
    /// Gradient of raw values `[T, G·K]`.
    DAttnV,
    /// Gradient of keys `[T, G·K]`, of layers whose keys no other layer reads.
    DK,
    /// Gradient of values `[T, G·K]`.
    DV,
    /// See [`crate::ops::pass::Scratch::delta`].
    Delta,
    /// Gradient of the gated per-layer input `[C, P]`.
    DGatedInput,
    /// Gradient of the per-layer gate `[C, P]`.
    DInpGate,
}

/// One buffer of backward.
pub struct TempEntry {
    /// Its name.
    pub name: Temp,
    /// How it is used.
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
pub const TEMPS: [TempEntry; 13] = {
    use Role::{Operand, Plain};
    use Span::{Chunk, Tokens};
    [
        temp(Temp::DStream, Plain, |w, _| w.width, Tokens, false),
        temp(Temp::DNormed, Plain, |w, _| w.width, Tokens, false),
        temp(Temp::DGated, Plain, |w, _| w.ffn, Chunk, true),
        temp(Temp::DUp, Operand, |w, _| w.ffn, Chunk, true),
        temp(Temp::DGate, Operand, |w, _| w.ffn, Chunk, true),
        temp(Temp::DownStaging, Plain, |w, s| if s.tiles { w.width } else { 0 }, Chunk, false),
        temp(Temp::DAttnK, Plain, |w, _| w.own_keys, Tokens, false),
        temp(Temp::DAttnV, Plain, |w, _| w.own_keys, Tokens, false),
        temp(Temp::DK, Plain, |w, _| w.own_keys, Tokens, false),
        temp(Temp::DV, Plain, |w, _| w.own_keys, Tokens, false),
        temp(Temp::Delta, Plain, |w, _| 2 * w.heads, Tokens, false),
        temp(Temp::DGatedInput, Plain, |w, _| w.per_layer, Chunk, false),
        temp(Temp::DInpGate, Plain, |w, _| w.per_layer, Chunk, false),
    ]
};

/// Saved activations whose shared memory attention's backward may use, behind those of [`TEMPS`].
pub const LENT: [Saved; 2] = [Saved::FfnGate, Saved::FfnUp];

#[cfg(test)]
mod tests {
    use super::{TABLE, TEMPS};

    #[test]
    fn tables_are_in_the_order_of_their_names() {
        assert!(TABLE.iter().enumerate().all(|(i, entry)| entry.name as usize == i));
        assert!(TEMPS.iter().enumerate().all(|(i, entry)| entry.name as usize == i));
    }
}
