//! The products of [`super::forward`] and [`super::backward()`] by CUDA's kernels, shaders/delta/cuda, for heads of [`HEAD_SIZE`]. They leave
//! f16 for backward, scaled by powers of two where its size is not known; sums and states are f32 while they run.

use std::ffi::CStr;

use super::{CHUNK, Delta, Gradients, Saved};
use crate::base::config::DeltaNet;
use crate::gpu::{Entry, Gpu, Launch, Recorder, ptx};
use crate::ops::Rows;

/// The size of the heads that the kernels take.
pub const HEAD_SIZE: usize = 128;
/// Columns of a state that a block of a scan has.
const COLUMNS: usize = 64;
/// Threads of a block.
const THREADS: u32 = 128;
/// Factors of a chunk and head that undo the scaling of 16 columns each: of the state and of U, or of their gradients.
const SCALES: usize = 2 * HEAD_SIZE / 16;

static FORWARD: &[u8] = ptx!("delta/cuda/forward.ptx");
static BACKWARD: &[u8] = ptx!("delta/cuda/backward.ptx");
static GRADIENTS: &[u8] = ptx!("delta/cuda/gradients.ptx");

/// Twin of `Sizes` in shaders/delta/cuda/parts.cuh, and its padding.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Sizes {
    tokens: u32,
    key_heads: u32,
    value_heads: u32,
    padding: u32,
}

/// Whether `gpu` runs these kernels for heads of `head_size`.
pub fn supports(gpu: &Gpu, head_size: usize) -> bool {
    gpu.kernels().cuda().is_some() && head_size == HEAD_SIZE
}

/// Columns of the buffers. Two f16 values count as one column:
///
/// - `mixed` has queries and keys `[T, 2, Hk, K]`,
/// - `inverse` has `(I + A)⁻¹`, and behind it the scores `P`, `[T, Hv, 64]` each,
/// - `wu` has `W`, and behind it `U`, `[T, Hv, K]` each,
/// - states have their columns `[N, Hv, K, K]`, and behind them f32 factors `[N, Hv, 2, 8]`,
/// - `du` has `R`, the gradient of `β·(V − Γ·K·S)`, `[T, Hv, K]`.
pub(super) fn widths(net: &DeltaNet) -> super::Widths {
    let DeltaNet { value_heads, head_size, .. } = *net;
    super::Widths {
        mixed: net.keys(),
        inverse: value_heads * CHUNK,
        wu: net.values(),
        states: value_heads * (head_size * head_size / 2 + SCALES),
        du: net.values() / 2,
        pairs: 0,
    }
}

/// From queries, keys, values and gates to `o` `[T, Hv, K]`.
pub(super) fn forward(rec: &mut Recorder, delta: &Delta, saved: &Saved, o: &Rows) {
    let [w, u] = delta.halves_of(saved.wu, HEAD_SIZE);
    let [inverse, scores] = delta.halves_of(saved.inverse, CHUNK);
    let [states, scales] = delta.states(saved.states);
    let Saved { gates, mixed, values, .. } = *saved;
    let [gates, keys, values, out] = [gates, mixed, values, o].map(Rows::place);
    let bounds = (delta.bounds.clone(), 0);
    let buffers = [bounds, gates, keys, values, w, u, inverse, scores, states, scales, out];
    launch(rec, delta, "delta/cuda.prepare", (FORWARD, c"prepare"), &buffers, delta.by_chunk());
    launch(rec, delta, "delta/cuda.scan", (FORWARD, c"scan"), &buffers, delta.by_columns());
}

/// The gradients of queries, keys and values behind the convolution, of the sums of the decays' logarithms and of the rates.
pub(super) fn backward(rec: &mut Recorder, delta: &Delta, saved: &Saved, dout: &Rows, d: &Gradients) {
    let [w, u] = delta.halves_of(saved.wu, HEAD_SIZE);
    let [inverse, scores] = delta.halves_of(saved.inverse, CHUNK);
    let [states, scales] = delta.states(saved.states);
    let [dstates, dscales] = delta.states(d.dstates);
    let Gradients { du, dmixed, dalpha, dbeta, .. } = *d;
    let [gates, keys, dout, r] = [saved.gates, saved.mixed, dout, du].map(Rows::place);
    let [dmixed, dsums, dbeta] = [dmixed, dalpha, dbeta].map(Rows::place);
    let bounds = (delta.bounds.clone(), 0);
    let buffers = [
        bounds, gates, keys, w, u, inverse, scores, states, scales, dout, r, dstates, dscales, dmixed, dsums,
        dbeta,
    ];
    launch(rec, delta, "delta/cuda.scan_back", (BACKWARD, c"scan"), &buffers, delta.by_columns());
    launch(rec, delta, "delta/cuda.gradients", (GRADIENTS, c"gradients"), &buffers, delta.by_chunk());
}

/// A part of a buffer, from the byte on.
type Place = (wgpu::Buffer, u64);

impl Delta<'_> {
    /// The places of two arrays of f16 `[T, Hv, width]`, one behind the other.
    fn halves_of(&self, rows: &Rows, width: usize) -> [Place; 2] {
        parted(rows, 2 * self.tokens * self.value_heads * width)
    }

    /// The places of the states of all chunks, and of their scales.
    fn states(&self, rows: &Rows) -> [Place; 2] {
        parted(rows, 2 * self.chunks() * self.value_heads * HEAD_SIZE * HEAD_SIZE)
    }

    /// One block of a scan per value head, columns of its state, and run of chunks.
    fn by_columns(&self) -> [u32; 3] {
        [self.value_heads as u32, (HEAD_SIZE / COLUMNS) as u32, self.runs() as u32]
    }
}

/// The place of `rows`, and that of what lies `bytes` behind it.
fn parted(rows: &Rows, bytes: usize) -> [Place; 2] {
    let (buffer, start) = rows.place();
    [(buffer.clone(), start), (buffer, start + bytes as u64)]
}

fn launch(
    rec: &mut Recorder,
    delta: &Delta,
    name: &'static str,
    (text, entry): (&'static [u8], &'static CStr),
    buffers: &[Place],
    blocks: [u32; 3],
) {
    let sizes = Sizes {
        tokens: delta.tokens as u32,
        key_heads: delta.key_heads as u32,
        value_heads: delta.value_heads as u32,
        padding: 0,
    };
    let entry = Entry { text, name: entry };
    rec.launch(Launch::of_buffers(name, entry, buffers, &sizes, blocks, THREADS));
}
