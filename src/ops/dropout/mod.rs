//! Inverted dropout of what an adapter reads.

pub mod grouped;

use crate::gpu::{Kernel, Recorder, grid};
use crate::ops::Rows;

/// Twin of `Params` in shaders/dropout/plain.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    count: u32,
    first: u32,
    key: u32,
    threshold: u32,
    scale: f32,
}

/// A mask: equal keys give equal masks.
#[derive(Clone, Copy, Debug)]
pub struct Mask {
    /// Share of the values that become zero, in `(0, 1)`.
    pub probability: f64,
    /// The key of the random draws: masks with other keys differ.
    pub key: u32,
}

impl Mask {
    /// A draw of 32 bits below this drops its value.
    pub(in crate::ops) fn threshold(self) -> u32 {
        (self.probability * 4_294_967_296.0) as u32
    }

    /// The factor of the values that are not dropped.
    pub(in crate::ops) fn scale(self) -> f32 {
        (1.0 / (1.0 - self.probability)) as f32
    }
}

/// `y = mask·x / (1 − probability)` over `rows` rows, of which the first is row `first` of the mask.
pub fn forward(rec: &mut Recorder, y: &Rows, x: &Rows, mask: Mask, first: usize, rows: usize) {
    dispatch(rec, "forward", y, x, mask, first, rows);
}

/// `dx += mask·dy / (1 − probability)`.
pub fn backward(rec: &mut Recorder, dx: &Rows, dy: &Rows, mask: Mask, first: usize, rows: usize) {
    dispatch(rec, "backward", dx, dy, mask, first, rows);
}

fn dispatch(
    rec: &mut Recorder,
    entry: &'static str,
    y: &Rows,
    x: &Rows,
    mask: Mask,
    first: usize,
    rows: usize,
) {
    let count = rows * y.stride;
    let params = Params {
        count: count as u32,
        first: (first * y.stride) as u32,
        key: mask.key,
        threshold: mask.threshold(),
        scale: mask.scale(),
    };
    let bindings = [x.bind(1), y.bind(2)];
    rec.dispatch(Kernel::new("dropout/plain", entry), &params, &bindings, grid(count.div_ceil(64)));
}
