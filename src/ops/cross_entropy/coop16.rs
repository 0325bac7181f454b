//! [`crate::ops::cross_entropy`] together with [`crate::ops::row_status::rows`]; its gradients are packed operands for
//! cooperative matrices.

use crate::gpu::{Binding, Kernel, Recorder};
use crate::ops::cross_entropy::Chunk;
use crate::ops::pack::Packed;
use crate::ops::row_status::Verdicts;

/// Twin of `Params` in shaders/cross_entropy/coop16.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    vocab4: u32,
    stride4: u32,
    tiles: u32,
    target_offset: u32,
    loss_offset: u32,
    softcap: f32,
    width4: u32,
    verdict_offset: u32,
    coldness: f32,
}

/// Most threads per row.
const THREADS: usize = 1024;

/// Whether the kernel takes this vocabulary, which must be a multiple of 4.
pub fn supports(vocab: usize) -> bool {
    vocab.is_multiple_of(4)
}

/// Writes losses and row status; the logits do not change.
pub fn forward(rec: &mut Recorder, chunk: &Chunk, verdicts: &Verdicts) {
    let params = params(chunk, verdicts, 0);
    rec.dispatch(kernel(rec, "forward"), &params, &bindings(chunk, verdicts), [params.rows, 1, 1]);
}

/// Writes losses, row status, and `coefficient·∂loss/∂logits` packed `[rows, V]`; the logits do not change.
///
/// `coefficients` is as in [`Chunk::backward`].
pub fn backward(
    rec: &mut Recorder,
    chunk: &Chunk,
    verdicts: &Verdicts,
    dlogits: &Packed,
    coefficients: &wgpu::Buffer,
) {
    let params = params(chunk, verdicts, dlogits.tiles());
    let mut bindings = bindings(chunk, verdicts).to_vec();
    bindings.extend([dlogits.bind(4), dlogits.bind_factors(5), bind(8, coefficients)]);
    let rows = chunk.rows.next_multiple_of(16) as u32;
    rec.dispatch(kernel(rec, "backward"), &params, &bindings, [rows, 1, 1]);
}

fn kernel(rec: &Recorder, entry: &'static str) -> Kernel {
    Kernel::new("cross_entropy/coop16", entry).with_size("THREADS", rec.gpu().threads_of_row(THREADS) as u32)
}

fn params(chunk: &Chunk, verdicts: &Verdicts, tiles: u32) -> Params {
    Params {
        rows: chunk.rows as u32,
        vocab4: (chunk.vocab / 4) as u32,
        stride4: (chunk.logits.stride / 4) as u32,
        tiles,
        target_offset: chunk.targets.1 as u32,
        loss_offset: chunk.losses.1 as u32,
        softcap: chunk.softcap.unwrap_or(0.0),
        width4: (verdicts.hidden.stride / 4) as u32,
        verdict_offset: verdicts.buffer.1 as u32,
        coldness: chunk.coldness(),
    }
}

fn bindings<'a>(chunk: &Chunk<'a>, verdicts: &Verdicts<'a>) -> [Binding<'a>; 5] {
    [
        chunk.logits.bind(1),
        bind(2, chunk.targets.0),
        bind(3, chunk.losses.0),
        verdicts.hidden.bind(6),
        bind(7, verdicts.buffer.0),
    ]
}

fn bind(index: u32, buffer: &wgpu::Buffer) -> Binding<'_> {
    Binding { index, buffer, range: None }
}
