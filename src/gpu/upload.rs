//! Staging memory of a fixed size that the device copies from many times; `write_buffer` would allocate new memory each time.

use rayon::prelude::*;

use super::{Gpu, GpuError};

/// A submission, which can be waited for.
#[derive(Clone, Debug)]
pub struct Submission(pub(super) wgpu::SubmissionIndex);

/// Memory that the host writes and [`super::Recorder::copy_in`] reads.
pub struct Upload {
    pub(super) buffer: wgpu::Buffer,
}

/// Bytes that a core copies at a time: a single core cannot saturate the bus.
const PIECE: usize = 1 << 20;

impl Gpu {
    /// Staging memory of `bytes`, a multiple of 16. Some drivers place it in device memory, where it counts as such.
    pub fn upload_buffer(&self, label: &str, bytes: u64) -> Result<Upload, GpuError> {
        self.check_size(label, bytes)?;
        let usage = wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC;
        let descriptor =
            wgpu::BufferDescriptor { label: Some(label), size: bytes, usage, mapped_at_creation: false };
        Ok(Upload { buffer: self.device.create_buffer(&descriptor) })
    }

    /// Overwrites the start of `upload`, after waiting for `read`, the last submission that copies from it.
    pub async fn fill(
        &self,
        upload: &Upload,
        data: &[u8],
        read: Option<&Submission>,
    ) -> Result<(), GpuError> {
        let until = match read {
            Some(read) => wgpu::PollType::Wait { submission_index: Some(read.0.clone()), timeout: None },
            None => wgpu::PollType::Poll,
        };
        self.map(&upload.buffer, wgpu::MapMode::Write, || self.drive(until)).await?;
        let view = upload.buffer.slice(..data.len() as u64).get_mapped_range_mut();
        let mut view = view.map_err(|e| self.reason(e))?;
        let (places, mut rest) = view.slice(..).into_chunks::<PIECE>();
        let (pieces, last) = data.as_chunks::<PIECE>();
        let places: Vec<wgpu::WriteOnly<[u8; PIECE]>> = places.into_iter().collect();
        places.into_par_iter().zip(pieces).for_each(|(place, piece)| {
            wgpu::WriteOnly::<[u8]>::from(place).copy_from_slice(piece);
        });
        rest.copy_from_slice(last);
        drop(view);
        upload.buffer.unmap();
        Ok(())
    }
}
