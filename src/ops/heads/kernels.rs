//! The rotary embedding and the sizes that both directions of the kernels share.

use super::Rotation;
use crate::gpu::{Binding, Recorder, grid};
use crate::ops::norm::Norm;

/// Threads per head of a token.
const THREADS: usize = 16;
/// Most threads per workgroup.
const WORKGROUP: usize = 256;
/// Those of [`Shared::of_heads`].
const FEW: usize = 128;

/// The rotary embedding at bindings 3 and 4.
pub(super) fn bind_rotation<'g>(rec: &Recorder<'g>, rotation: Option<Rotation<'g>>) -> [Binding<'g>; 2] {
    match rotation {
        Some((positions, table)) => [Binding { index: 3, buffer: positions, range: None }, table.bind(4)],
        None => [rec.unused(3), rec.unused(4)],
    }
}

/// A quarter of the pairs that the rotary embedding rotates; 0 without one.
pub(super) fn pairs4(rotation: Option<Rotation>) -> u32 {
    rotation.map_or(0, |(_, table)| (table.pairs() / 4) as u32)
}

/// The threads that compute the heads of tokens: see shaders/common/head_rows.wgsl.
#[derive(Clone, Copy)]
pub struct Shared {
    /// Heads of a token that run at once in a workgroup.
    at_once: usize,
    /// Workgroups that share the heads of a token.
    parts: usize,
    tokens: usize,
    /// Whether the lanes of subgroups add up among themselves.
    lanes: bool,
}

impl Shared {
    /// That of all devices, for `heads` heads.
    pub fn usual(heads: usize) -> Shared {
        let at_once = heads.min(WORKGROUP / THREADS);
        Shared { at_once, parts: 1, tokens: WORKGROUP / (at_once * THREADS), lanes: false }
    }

    /// That of CUDA, where a workgroup needs all heads of its tokens.
    pub fn of_rows(heads: usize) -> Shared {
        Shared { lanes: true, ..Shared::usual(heads) }
    }

    /// That of CUDA, where every head is computed for itself.
    pub fn of_heads(heads: usize) -> Shared {
        let parts = (heads * THREADS * 2).div_ceil(FEW);
        let at_once = heads.div_ceil(parts);
        let tokens = FEW / (at_once * THREADS) / 2 * 2;
        Shared { at_once, parts, tokens, lanes: true }
    }

    /// The shaders' sizes for `heads` heads of `size` values, a multiple of 8.
    pub fn sizes(&self, heads: usize, size: usize) -> [(&'static str, u32); 7] {
        let beside = if self.lanes && self.tokens.is_multiple_of(2) { 2 } else { 1 };
        [
            ("HEADS", self.at_once as u32),
            ("TURNS", heads.div_ceil(self.at_once * self.parts) as u32),
            ("PAIRS", (size / 8).div_ceil(THREADS) as u32),
            ("THREADS", (self.tokens * self.at_once * THREADS) as u32),
            ("PARTS", self.parts as u32),
            ("LANES", self.lanes.into()),
            ("BESIDE", beside),
        ]
    }

    /// The workgroups for `rows` rows of heads of each of `kinds` kinds.
    pub(super) fn workgroups(&self, rows: usize, kinds: usize) -> [u32; 3] {
        let [x, y, _] = grid(rows.next_multiple_of(16).div_ceil(self.tokens));
        [x, y, (kinds * self.parts) as u32]
    }
}

/// The shaders' sizes for the heads of one norm, or of those of keys and of values.
pub(super) fn kinds(norms: &[&Norm]) -> [(&'static str, u32); 3] {
    let last = norms[norms.len() - 1];
    [
        norms[0].size(),
        ("VALUES", norms.len() as u32 - 1),
        ("VALUES_IDENTITY", u32::from(norms.len() > 1 && last.identity)),
    ]
}
