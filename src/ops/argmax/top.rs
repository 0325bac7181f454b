//! The likeliest tokens of many rows of logits, and the probabilities of given ones.

use crate::gpu::{Binding, Kernel, Recorder};
use crate::ops::Rows;
use crate::ops::argmax::Likeliest;

/// Twin of `Params` in shaders/argmax/top.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    count: u32,
    stride4: u32,
    top: u32,
    words: u32,
    first: u32,
}

/// Figures of one row `x`: `softmax(x)[i] = exp(x[i] − largest) / sum`.
#[derive(Clone, Debug, PartialEq)]
pub struct RowTop {
    /// The largest value.
    pub largest: f32,
    /// `Σ exp(x − largest)`; not finite if a value is NaN or infinite.
    pub sum: f32,
    /// The target's value.
    pub target: f32,
    /// The largest values, largest first; among equal ones the smaller index comes first.
    pub top: Vec<Likeliest>,
}

/// Words of a row's result with `top` of the largest values.
pub fn words(top: usize) -> usize {
    3 + 2 * top
}

/// Finds the `top` largest of the first `count` values of each row. `targets` u32 and `results` u32 `[N, words(top)]` have one place for
/// each row; the first row's is `first`.
pub fn forward(
    rec: &mut Recorder,
    values: &Rows,
    count: usize,
    targets: &wgpu::Buffer,
    results: &wgpu::Buffer,
    first: usize,
    top: usize,
    rows: usize,
) {
    let params = Params {
        count: count as u32,
        stride4: (values.stride / 4) as u32,
        top: top as u32,
        words: words(top) as u32,
        first: first as u32,
    };
    let bound = |index, buffer| Binding { index, buffer, range: None };
    let bindings = [values.bind(1), bound(2, targets), bound(3, results)];
    rec.dispatch(Kernel::new("argmax/top", "forward"), &params, &bindings, [rows as u32, 1, 1]);
}

/// The results of all rows, from the words that [`forward`] wrote.
pub fn read(results: &[u32], top: usize) -> Vec<RowTop> {
    let row = |row: &[u32]| RowTop {
        largest: f32::from_bits(row[0]),
        sum: f32::from_bits(row[1]),
        target: f32::from_bits(row[2]),
        top: row[3..]
            .chunks_exact(2)
            .map(|pair| Likeliest { index: pair[0], value: f32::from_bits(pair[1]) })
            .filter(Likeliest::is_finite)
            .collect(),
    };
    results.chunks_exact(words(top)).map(row).collect()
}
