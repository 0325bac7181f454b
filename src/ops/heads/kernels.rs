//! The rotary embedding and the sizes that both directions of the kernels share.

use super::Rotation;
use crate::gpu::{Binding, Recorder, grid};
use crate::ops::norm::Norm;

/// Threads per head of a token.
const THREADS: usize = 16;
/// Most threads per workgroup.
const WORKGROUP: usize = 256;

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

/// The shaders' sizes for `heads` heads of `size` values, a multiple of 8.
pub fn sizes(heads: usize, size: usize) -> [(&'static str, u32); 4] {
    let at_once = heads.min(WORKGROUP / THREADS);
    let tokens = WORKGROUP / (at_once * THREADS);
    [
        ("HEADS", at_once as u32),
        ("TURNS", heads.div_ceil(at_once) as u32),
        ("PAIRS", (size / 8).div_ceil(THREADS) as u32),
        ("THREADS", (tokens * at_once * THREADS) as u32),
    ]
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

/// The workgroups for `rows` rows of `heads` heads of each of `kinds` kinds.
pub(super) fn workgroups(heads: usize, rows: usize, kinds: usize) -> [u32; 3] {
    let tokens = WORKGROUP / (heads.min(WORKGROUP / THREADS) * THREADS);
    let [x, y, _] = grid(rows.next_multiple_of(16).div_ceil(tokens));
    [x, y, kinds as u32]
}
