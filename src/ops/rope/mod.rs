//! Rotary position embedding, in place, of heads or of their first values: twice as many as the table has pairs.

use crate::gpu::{Binding, Gpu, GpuError, Kernel, Recorder, grid};
use crate::ops::Rows;

/// Twin of `Params` in shaders/rope/plain.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    heads: u32,
    pairs: u32,
    size: u32,
}

/// Cosines and sines by position, made in f64: WGSL's own are only good to 2⁻¹¹.
#[derive(Clone, Debug)]
pub struct Table {
    buffer: wgpu::Buffer,
    pairs: usize,
}

impl Table {
    /// For positions `0..positions` and frequencies in radians per position, one per pair. The rotated values are also multiplied by `scale`.
    pub fn new(gpu: &Gpu, frequencies: &[f64], scale: f64, positions: usize) -> Result<Table, GpuError> {
        Table::scaled(gpu, frequencies, |_| scale, positions)
    }

    /// [`Table::new`] with a scale by position.
    pub fn scaled(
        gpu: &Gpu,
        frequencies: &[f64],
        scale: impl Fn(usize) -> f64,
        positions: usize,
    ) -> Result<Table, GpuError> {
        let mut table = Vec::with_capacity(positions * frequencies.len());
        for p in 0..positions {
            let scale = scale(p);
            table.extend(frequencies.iter().map(|f| {
                let angle = p as f64 * f;
                [(scale * angle.cos()) as f32, (scale * angle.sin()) as f32]
            }));
        }
        Ok(Table { buffer: gpu.upload("rope table", &table)?, pairs: frequencies.len() })
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        self.buffer.size()
    }

    /// Pairs of a head that it turns.
    pub(in crate::ops) fn pairs(&self) -> usize {
        self.pairs
    }

    pub(in crate::ops) fn bind(&self, index: u32) -> Binding<'_> {
        Binding { index, buffer: &self.buffer, range: None }
    }
}

/// Turns `x` `[rows, heads, K]` by its positions.
pub fn forward(
    rec: &mut Recorder,
    x: &Rows,
    positions: &wgpu::Buffer,
    table: &Table,
    heads: usize,
    rows: usize,
) {
    turn(rec, "forward", x, positions, table, None, heads, rows);
}

/// [`forward`] with the weights `[K]` of a norm behind it; whole heads turn.
pub fn forward_weighted(
    rec: &mut Recorder,
    x: &Rows,
    positions: &wgpu::Buffer,
    table: &Table,
    weights: &wgpu::Buffer,
    heads: usize,
    rows: usize,
) {
    turn(rec, "forward", x, positions, table, Some(weights), heads, rows);
}

/// The gradient from that of [`forward_weighted`].
pub fn backward_weighted(
    rec: &mut Recorder,
    dx: &Rows,
    positions: &wgpu::Buffer,
    table: &Table,
    weights: &wgpu::Buffer,
    heads: usize,
    rows: usize,
) {
    turn(rec, "backward", dx, positions, table, Some(weights), heads, rows);
}

/// Turns the gradient back.
pub fn backward(
    rec: &mut Recorder,
    dx: &Rows,
    positions: &wgpu::Buffer,
    table: &Table,
    heads: usize,
    rows: usize,
) {
    turn(rec, "backward", dx, positions, table, None, heads, rows);
}

fn turn(
    rec: &mut Recorder,
    entry: &'static str,
    x: &Rows,
    positions: &wgpu::Buffer,
    table: &Table,
    weights: Option<&wgpu::Buffer>,
    heads: usize,
    rows: usize,
) {
    let size = x.stride / heads;
    assert!(weights.is_none() || 2 * table.pairs == size, "weights are of whole heads, which turn");
    let params =
        Params { rows: rows as u32, heads: heads as u32, pairs: table.pairs as u32, size: size as u32 };
    let whole = |index, buffer| Binding { index, buffer, range: None };
    let mut bindings = vec![whole(1, positions), whole(2, &table.buffer), x.bind(3)];
    bindings.extend(weights.map(|weights| whole(4, weights)));
    rec.dispatch(
        Kernel::new("rope/plain", entry).with_size("WEIGHTED", u32::from(weights.is_some())),
        &params,
        &bindings,
        grid((rows * heads * table.pairs).div_ceil(64)),
    );
}
