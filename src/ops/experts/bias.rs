//! Frozen biases of experts. Their backward is the identity, but for the weights of the choices.

use crate::gpu::{Binding, Kernel, Recorder, grid};
use crate::ops::Rows;
use crate::ops::experts::groups::Groups;

/// Twin of `Params` in shaders/experts/bias.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    width4: u32,
    stride4: u32,
    tile: u32,
    used: u32,
}

/// The biases `[E, width]` of one matrix of every expert.
pub struct Biases {
    buffer: wgpu::Buffer,
    width: usize, // a multiple of 4
}

impl Biases {
    /// Biases in `buffer`, `width` values per expert.
    pub fn new(buffer: wgpu::Buffer, width: usize) -> Biases {
        Biases { buffer, width }
    }

    /// `y = y + b` over rows that are grouped by expert, `[rows, width]`.
    pub fn add(&self, rec: &mut Recorder, y: &Rows, groups: &Groups, tokens: usize) {
        let params = self.params(groups.most_rows(tokens), y, groups.tile, groups);
        self.dispatch(rec, "each", &params, &[y.bind(1), self.bind(), groups.tiles.bind(3)]);
    }

    /// `y = y + b` over one row per choice, `[tokens·used, width]`.
    pub fn add_each(&self, rec: &mut Recorder, y: &Rows, groups: &Groups, tokens: usize) {
        let params = self.params(tokens * groups.experts.used, y, 1, groups);
        self.dispatch(rec, "each", &params, &[y.bind(1), self.bind(), groups.chosen.bind(3)]);
    }

    /// `y[t] = y[t] + Σ_k weight·scale·b` over the choices of each token, `scales` `[E]`.
    pub fn add_summed(&self, rec: &mut Recorder, y: &Rows, scales: &Rows, groups: &Groups, tokens: usize) {
        let (chosen, weights) = (groups.chosen.bind(3), groups.weights.bind(4));
        let bindings = [y.bind(1), self.bind(), chosen, weights, scales.bind(5)];
        self.dispatch(rec, "summed", &self.params(tokens, y, 1, groups), &bindings);
    }

    /// Adds to the gradient of every choice's weight the part of [`Biases::add_summed`], `scale·⟨dy, b⟩`, from `dy` `[T, width]`.
    pub fn backward(
        &self,
        rec: &mut Recorder,
        dweights: &Rows,
        [dy, scales]: [&Rows; 2],
        groups: &Groups,
        tokens: usize,
    ) {
        let choices = tokens * groups.experts.used;
        let params = self.params(choices, dy, 1, groups);
        let bindings = [self.bind(), groups.chosen.bind(3), scales.bind(5), dy.bind(6), dweights.bind(7)];
        rec.dispatch(Kernel::new("experts/bias", "backward"), &params, &bindings, grid(choices));
    }

    fn bind(&self) -> Binding<'_> {
        Binding { index: 2, buffer: &self.buffer, range: None }
    }

    fn params(&self, rows: usize, y: &Rows, tile: usize, groups: &Groups) -> Params {
        Params {
            rows: rows as u32,
            width4: (self.width / 4) as u32,
            stride4: (y.stride / 4) as u32,
            tile: tile as u32,
            used: groups.experts.used as u32,
        }
    }

    fn dispatch(&self, rec: &mut Recorder, entry: &'static str, params: &Params, bindings: &[Binding]) {
        let workgroups = grid((params.rows * params.width4).div_ceil(64) as usize);
        rec.dispatch(Kernel::new("experts/bias", entry), params, bindings, workgroups);
    }
}
