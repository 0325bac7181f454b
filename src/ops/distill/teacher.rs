//! The sums that turn a teacher's logits into log-probabilities: over all tokens, and over those behind the likeliest.

use crate::gpu::{Binding, Recorder};
use crate::ops::Rows;
use crate::ops::argmax::top;

/// Twin of `Params` in shaders/distill/teacher.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    count: u32,
    stride4: u32,
    words: u32,
    first: u32,
    warmth: f32,
}

/// The first `count` values of some rows, the likeliest of which [`top::forward`] has found.
#[derive(Clone, Copy)]
pub struct Found<'a> {
    /// The values `[rows, count]`.
    pub values: &'a Rows,
    /// Values of a row that count.
    pub count: usize,
    /// The results of [`top::forward`], u32 `[N, words(top)]`.
    pub results: &'a wgpu::Buffer,
    /// Tokens that it has found per row, at least 1.
    pub top: usize,
    /// Place of the first row in `results` and `sums`.
    pub first: usize,
}

/// Writes `ln Σ exp(value / temperature)` of all values of a row, and of those that are not among the likeliest: f32 `[N, 2]`.
pub fn forward(rec: &mut Recorder, found: &Found, temperature: f64, sums: &wgpu::Buffer, rows: usize) {
    let params = Params {
        count: found.count as u32,
        stride4: (found.values.stride / 4) as u32,
        words: top::words(found.top) as u32,
        first: found.first as u32,
        warmth: (1.0 / temperature) as f32,
    };
    let bound = |index, buffer| Binding { index, buffer, range: None };
    let bindings = [found.values.bind(1), bound(2, found.results), bound(3, sums)];
    rec.dispatch(super::kernel(rec, "distill/teacher", "forward"), &params, &bindings, [rows as u32, 1, 1]);
}
