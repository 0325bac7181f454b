//! Packs rows that are grouped by expert as f16 operands of cooperative matrices: [`crate::ops::pack`] after a gather.

use crate::gpu::{Kernel, Recorder, grid};
use crate::ops::experts::groups::Groups;
use crate::ops::linear::grouped::Source;
use crate::ops::pack::{Packed, ROWS};

/// Twin of `Params` in shaders/pack/grouped.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    row_tiles: u32,
    tile: u32,
    used: u32,
    cols4: u32,
    x_stride4: u32,
    x_offset4: u32,
    packed4: u32,
}

/// Packs `x` `[…, cols]`, each row scaled by the power of two that brings its largest value into `[½, 1)`.
pub fn pack(rec: &mut Recorder, packed: &Packed, x: Source, cols: usize, groups: &Groups, tokens: usize) {
    dispatch(rec, "pack", packed, packed, x, cols, groups, tokens);
}

/// Packs `x`, scaled as the rows of `other`.
pub fn pack_alike(
    rec: &mut Recorder,
    packed: &Packed,
    x: Source,
    cols: usize,
    groups: &Groups,
    tokens: usize,
    other: &Packed,
) {
    dispatch(rec, "pack_alike", packed, other, x, cols, groups, tokens);
}

fn dispatch(
    rec: &mut Recorder,
    entry: &'static str,
    packed: &Packed,
    scaled: &Packed,
    x: Source,
    cols: usize,
    groups: &Groups,
    tokens: usize,
) {
    let (x, used) = match x {
        Source::Rows(x) => (x, 0),
        Source::Tokens(x) => (x, groups.experts.used),
    };
    let rows = groups.most_rows(tokens);
    let params = Params {
        row_tiles: (rows / 16) as u32,
        tile: groups.tile as u32,
        used: used as u32,
        cols4: cols.div_ceil(4) as u32,
        x_stride4: x.stride4(),
        x_offset4: x.offset4(),
        packed4: (cols.next_multiple_of(64) / 4) as u32,
    };
    let (tiles, choices) = (groups.tiles.bind(4), groups.choices.bind(5));
    let bindings = [x.rows.bind(1), packed.bind(2), scaled.bind_factors(3), tiles, choices];
    rec.dispatch(Kernel::new("pack/grouped", entry), &params, &bindings, grid(rows / ROWS));
}
