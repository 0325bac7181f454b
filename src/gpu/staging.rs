//! Long reads and writes through staging memory that stays: new memory for each would cost far more than the copy.

use rayon::prelude::*;

use super::{Gpu, GpuError, Staging, Submission, Upload};

/// Bytes that are staged at a time. Two such pieces are on their way: one is copied by the device, the other by the host.
const PIECE: usize = 16 << 20;
/// Bytes that a core copies at a time.
const SHARE: usize = 1 << 20;

/// The staging memory of a device. Each list is empty, or holds two pieces.
#[derive(Default)]
pub(super) struct Kept {
    reads: std::sync::Mutex<Vec<Staging>>,
    /// Each with the last submission that copies from it.
    writes: std::sync::Mutex<Vec<(Upload, Option<Submission>)>>,
}

impl Gpu {
    /// Reads the start of `buffer` into `values`, whose bytes are a multiple of 4.
    pub async fn read_into<T: bytemuck::Pod>(
        &self,
        buffer: &wgpu::Buffer,
        values: &mut [T],
    ) -> Result<(), GpuError> {
        self.read_pieces(buffer, 0, bytemuck::cast_slice_mut(values)).await
    }

    /// Reads `bytes` of `buffer` from byte `offset` (a multiple of 4) on.
    pub(super) async fn read_pieces(
        &self,
        buffer: &wgpu::Buffer,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<(), GpuError> {
        let mut kept = std::mem::take(&mut *self.kept.reads.lock().expect("lock is not poisoned"));
        if kept.is_empty() {
            kept = (0..2).map(|_| self.staging(PIECE as u64)).collect();
        }
        let length = bytes.len();
        let copy = |piece: usize| {
            let at = piece * PIECE;
            let size = PIECE.min(length - at).next_multiple_of(4) as u64;
            let mut encoder = self.device.create_command_encoder(&Default::default());
            encoder.copy_buffer_to_buffer(buffer, offset + at as u64, &kept[piece % 2].buffer, 0, size);
            self.send(Some(encoder.finish()))
        };
        let mut sent = (length > 0).then(|| copy(0));
        for (piece, part) in bytes.chunks_mut(PIECE).enumerate() {
            let next = ((piece + 1) * PIECE < length).then(|| copy(piece + 1));
            let Submission(index) = sent.take().expect("a copy for every piece");
            let staging = &kept[piece % 2].buffer;
            let until = wgpu::PollType::Wait { submission_index: Some(index), timeout: None };
            self.map(staging, wgpu::MapMode::Read, || self.drive(until)).await?;
            let view = staging.slice(..).get_mapped_range().map_err(|e| self.reason(e))?;
            let pairs = part.par_chunks_mut(SHARE).zip(view[..].par_chunks(SHARE));
            pairs.for_each(|(to, from)| to.copy_from_slice(&from[..to.len()]));
            drop(view);
            staging.unmap();
            sent = next;
        }
        *self.kept.reads.lock().expect("lock is not poisoned") = kept;
        Ok(())
    }

    /// Overwrites the start of `buffer` with `values`, whose bytes are a multiple of 4, before the next submission runs.
    pub async fn write_from<T: bytemuck::Pod>(
        &self,
        buffer: &wgpu::Buffer,
        values: &[T],
    ) -> Result<(), GpuError> {
        let mut kept = std::mem::take(&mut *self.kept.writes.lock().expect("lock is not poisoned"));
        if kept.is_empty() {
            let new = || self.upload_buffer("written values", PIECE as u64);
            kept = vec![(new()?, None), (new()?, None)];
        }
        for (piece, part) in bytemuck::cast_slice::<T, u8>(values).chunks(PIECE).enumerate() {
            let (upload, read) = &mut kept[piece % 2];
            self.fill(upload, part, read.as_ref()).await?;
            let mut encoder = self.device.create_command_encoder(&Default::default());
            let (at, size) = ((piece * PIECE) as u64, part.len() as u64);
            encoder.copy_buffer_to_buffer(&upload.buffer, 0, buffer, at, size);
            *read = Some(self.send(Some(encoder.finish())));
        }
        self.check()?;
        *self.kept.writes.lock().expect("lock is not poisoned") = kept;
        Ok(())
    }
}
