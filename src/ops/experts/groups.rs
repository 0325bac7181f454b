//! Tokens sorted by expert, on the device and without reading anything back: rows of one expert stand in whole tiles.

use crate::base::config::Experts;
use crate::gpu::{Gpu, GpuError, Kernel, Recorder};
use crate::ops::Rows;

/// Twin of `Params` in shaders/experts/groups.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    choices: u32,
    experts: u32,
    tile: u32,
    tiles: u32,
}

/// The router's choices of a pass, and where the rows of each expert lie. A *choice* is one expert of one token, number
/// `token·used + k`; a *row* is a choice's place among the grouped ones.
#[derive(Clone, Debug)]
pub struct Groups {
    /// Number of experts, and number of experts that a token uses.
    pub experts: Experts,
    /// Rows of a tile: all of them have one expert.
    pub tile: usize,
    /// Expert of each choice, u32 `[T, used]`.
    pub chosen: Rows,
    /// Weight of each choice `[T, used]`.
    pub weights: Rows,
    /// Choices of each expert, u32 `[E]`.
    pub counts: Rows,
    /// First tile of each expert, u32 `[E]`.
    pub firsts: Rows,
    /// Expert of each tile, u32; !0 behind the last.
    pub tiles: Rows,
    /// Choice of each row, u32; !0 in rows that fill a tile.
    pub choices: Rows,
    /// Row of each choice, u32 `[T, used]`.
    pub places: Rows,
}

impl Groups {
    /// Rows of a tile on this device: what the kernels of grouped products take at a time.
    pub fn tile(gpu: &Gpu) -> usize {
        gpu.kernels().expert_tile()
    }

    /// Room for passes over up to `tokens` tokens.
    pub fn new(gpu: &Gpu, experts: Experts, tokens: usize) -> Result<Groups, GpuError> {
        let tile = Groups::tile(gpu);
        let tiles = most_tiles(&experts, tile, tokens);
        let list = |label: &str, len: usize| Rows::new(gpu, label, 1, len);
        Ok(Groups {
            experts,
            tile,
            chosen: list("chosen experts", tokens * experts.used)?,
            weights: list("weights of experts", tokens * experts.used)?,
            counts: list("tokens of experts", experts.count)?,
            firsts: list("first tiles of experts", experts.count)?,
            tiles: list("experts of tiles", tiles)?,
            choices: list("choices of rows", tiles * tile)?,
            places: list("rows of choices", tokens * experts.used)?,
        })
    }

    /// Bytes of [`Groups::new`].
    pub fn bytes(gpu: &Gpu, experts: &Experts, tokens: usize) -> u64 {
        let tile = Groups::tile(gpu);
        let tiles = most_tiles(experts, tile, tokens);
        4 * (3 * tokens * experts.used + 2 * experts.count + tiles * (tile + 1)) as u64
    }

    /// Tiles that may hold rows in a pass over `tokens` tokens.
    pub fn most_tiles(&self, tokens: usize) -> usize {
        most_tiles(&self.experts, self.tile, tokens)
    }

    /// Rows of all these tiles.
    pub fn most_rows(&self, tokens: usize) -> usize {
        self.most_tiles(tokens) * self.tile
    }

    /// Sorts the choices of `tokens` tokens: fills everything but `chosen` and `weights`.
    pub fn sort(&self, rec: &mut Recorder, tokens: usize) {
        let params = Params {
            choices: (tokens * self.experts.used) as u32,
            experts: self.experts.count as u32,
            tile: self.tile as u32,
            tiles: self.most_tiles(tokens) as u32,
        };
        let workgroups = [self.experts.count as u32, 1, 1];
        let bindings = [self.chosen.bind(1), self.counts.bind(2)];
        rec.dispatch(Kernel::new("experts/groups", "count"), &params, &bindings, workgroups);
        let places = [self.tiles.bind(3), self.choices.bind(4), self.places.bind(5), self.firsts.bind(6)];
        let bindings = [&bindings[..], &places[..]].concat();
        rec.dispatch(Kernel::new("experts/groups", "place"), &params, &bindings, workgroups);
    }
}

/// Rows of the tiles that may be needed: every expert that has a row may leave one tile unfilled.
pub fn most_rows(gpu: &Gpu, experts: &Experts, tokens: usize) -> usize {
    let tile = Groups::tile(gpu);
    most_tiles(experts, tile, tokens) * tile
}

fn most_tiles(experts: &Experts, tile: usize, tokens: usize) -> usize {
    let choices = tokens * experts.used;
    choices / tile + experts.count.min(choices)
}
