//! Backward of [`crate::ops::cross_entropy`] into packed operands for cooperative matrices, together with
//! [`crate::ops::row_status::rows`].

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
}

/// Most threads per row.
const THREADS: usize = 1024;

/// Whether the kernel takes this vocabulary, which must be a multiple of 4.
pub fn supports(vocab: usize) -> bool {
    vocab.is_multiple_of(4)
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
    let params = Params {
        rows: chunk.rows as u32,
        vocab4: (chunk.vocab / 4) as u32,
        stride4: (chunk.logits.stride / 4) as u32,
        tiles: dlogits.tiles(),
        target_offset: chunk.targets.1 as u32,
        loss_offset: chunk.losses.1 as u32,
        softcap: chunk.softcap.unwrap_or(0.0),
        width4: (verdicts.hidden.stride / 4) as u32,
        verdict_offset: verdicts.buffer.1 as u32,
    };
    let bindings = [
        chunk.logits.bind(1),
        Binding { index: 2, buffer: chunk.targets.0, range: None },
        Binding { index: 3, buffer: chunk.losses.0, range: None },
        dlogits.bind(4),
        dlogits.bind_factors(5),
        verdicts.hidden.bind(6),
        Binding { index: 7, buffer: verdicts.buffer.0, range: None },
        Binding { index: 8, buffer: coefficients, range: None },
    ];
    let rows = chunk.rows.next_multiple_of(16) as u32;
    let threads = 1usize << rec.gpu().threads_to_share().min(THREADS).ilog2();
    let kernel = Kernel::new("cross_entropy/coop16", "backward").with_size("THREADS", threads as u32);
    rec.dispatch(kernel, &params, &bindings, [rows, 1, 1]);
}
