//! Staging memory of a fixed size that the device copies from many times; `write_buffer` would allocate new memory each time.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;

use super::write_all::write_all;
use super::{Gpu, GpuError};

/// A submission, which can be waited for.
#[derive(Clone, Debug)]
pub struct Submission(pub(super) wgpu::SubmissionIndex);

/// Memory that the host writes and [`super::Recorder::copy_in`] reads.
pub struct Upload {
    pub(super) buffer: wgpu::Buffer,
}

/// Memory of the host that only the device reads and writes: [`super::Recorder::copy_out`] and [`super::Recorder::copy_back`]. Its copies run
/// beside kernels where the device can do that.
pub struct HostBuffer {
    pub(super) buffer: wgpu::Buffer,
    all: Arc<AtomicU64>,
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}

impl HostBuffer {
    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.buffer.size()
    }
}

/// The feature that devices need for a [`HostBuffer`].
pub(super) const STAYS_ON_HOST: wgpu::Features = wgpu::Features::MAPPABLE_PRIMARY_BUFFERS;

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

    /// Whether the device can copy to and from memory that stays on the host.
    pub fn has_host_buffers(&self) -> bool {
        self.device.features().contains(STAYS_ON_HOST)
    }

    /// Host memory of `bytes`, a multiple of 4, for the device.
    ///
    /// # Panics
    /// Unless [`Gpu::has_host_buffers`].
    pub fn host_buffer(&self, label: &str, bytes: u64) -> Result<HostBuffer, GpuError> {
        self.new_host_buffer(label, bytes, false)
    }

    /// A [`Gpu::host_buffer`] whose bytes `fill` writes: all of them, and it reads none.
    ///
    /// # Panics
    /// As [`Gpu::host_buffer`].
    pub fn filled_host_buffer(
        &self,
        label: &str,
        bytes: u64,
        fill: impl FnOnce(&mut [MaybeUninit<u8>]),
    ) -> Result<HostBuffer, GpuError> {
        let host = self.new_host_buffer(label, bytes, true)?;
        let mut view = host.buffer.slice(..).get_mapped_range_mut().map_err(|e| self.reason(e))?;
        write_all(view.slice(..), fill);
        drop(view);
        host.buffer.unmap();
        self.check()?;
        Ok(host)
    }

    fn new_host_buffer(
        &self,
        label: &str,
        bytes: u64,
        mapped_at_creation: bool,
    ) -> Result<HostBuffer, GpuError> {
        assert!(self.has_host_buffers(), "only devices with this feature copy to and from host memory");
        self.check_size(label, bytes)?;
        // Memory that the host writes may be the device's own; memory that it reads is the host's.
        let usage =
            wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let descriptor =
            wgpu::BufferDescriptor { label: Some(label), size: bytes, usage, mapped_at_creation };
        self.on_host.fetch_add(bytes, Ordering::Relaxed);
        Ok(HostBuffer { buffer: self.device.create_buffer(&descriptor), all: self.on_host.clone() })
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
