//! Buffers of the device: creation, writes and reads.

use std::mem::MaybeUninit;

use super::error::one_line;
use super::write_all::write_all;
use super::{Gpu, GpuError, Staging, Submission};

/// A copy on its way to where the host reads it.
pub struct Started {
    staging: Staging,
    submission: Submission,
}

/// Bytes of scratch for split products.
pub(crate) const PARTIAL_SUMS: u64 = 64 << 20;

/// Counters in [`Gpu::arrivals`].
pub(crate) const ARRIVALS: usize = 1 << 14;

/// Bytes of scratch for the factors of a product's rows, of a million rows.
const ROW_FACTORS: u64 = 4 << 20;

/// Reads of so many bytes go through staging memory that stays.
const LONG_READ: u64 = 4 << 20;

const USAGE: wgpu::BufferUsages =
    wgpu::BufferUsages::STORAGE.union(wgpu::BufferUsages::COPY_SRC).union(wgpu::BufferUsages::COPY_DST);

impl Gpu {
    /// Scratch of split products, created when the first product is split.
    pub(crate) fn partial_sums(&self) -> &wgpu::Buffer {
        self.partial_sums.get_or_init(|| {
            self.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("partial sums"),
                size: PARTIAL_SUMS,
                usage: USAGE,
                mapped_at_creation: false,
            })
        })
    }

    /// Counters of the finished parts of [`ARRIVALS`] sums, for kernels whose last workgroup adds up the parts. Every kernel leaves
    /// zeros.
    pub(crate) fn arrivals(&self) -> &wgpu::Buffer {
        self.arrivals.get_or_init(|| {
            self.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("arrivals"),
                size: 4 * ARRIVALS as u64,
                usage: wgpu::BufferUsages::STORAGE,
                mapped_at_creation: false,
            })
        })
    }

    /// Scratch of products in f16, created when the first is recorded.
    pub(crate) fn row_factors(&self) -> &wgpu::Buffer {
        self.row_factors.get_or_init(|| {
            self.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("row factors"),
                size: ROW_FACTORS,
                usage: wgpu::BufferUsages::STORAGE,
                mapped_at_creation: false,
            })
        })
    }

    /// A zeroed buffer of `bytes`, rounded up to a multiple of 16.
    pub fn buffer(&self, label: &str, bytes: u64) -> Result<wgpu::Buffer, GpuError> {
        self.check_size(label, bytes)?;
        Ok(self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size: bytes.max(16).next_multiple_of(16),
            usage: USAGE,
            mapped_at_creation: false,
        }))
    }

    /// A buffer that holds `data`.
    pub fn upload<T: bytemuck::Pod>(&self, label: &str, data: &[T]) -> Result<wgpu::Buffer, GpuError> {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        self.check_size(label, bytes.len() as u64)?;
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size: (bytes.len() as u64).next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT).max(4),
            usage: USAGE,
            mapped_at_creation: true,
        });
        match buffer.get_mapped_range_mut(..) {
            Ok(mut view) => view.slice(..bytes.len()).copy_from_slice(bytes),
            Err(error) => return Err(self.reason(error)),
        }
        buffer.unmap();
        Ok(buffer)
    }

    /// A buffer of `bytes`, a multiple of 4 above 0. `fill` writes all of its content, and reads none of it.
    pub fn filled_buffer(
        &self,
        label: &str,
        bytes: usize,
        fill: impl FnOnce(&mut [MaybeUninit<u8>]),
    ) -> Result<wgpu::Buffer, GpuError> {
        self.check_size(label, bytes as u64)?;
        let size = bytes as u64;
        let descriptor =
            wgpu::BufferDescriptor { label: Some(label), size, usage: USAGE, mapped_at_creation: false };
        let buffer = self.device.create_buffer(&descriptor);
        let on_the_way =
            wgpu::BufferSize::new(size).and_then(|size| self.queue.write_buffer_with(&buffer, 0, size));
        // Without a view, the device has reported the reason.
        if let Some(mut view) = on_the_way {
            write_all(view.slice(..), fill);
        }
        Ok(buffer)
    }

    /// Submits the uploads so far, and waits for those before `earlier`, whose staging memory is free then. Pass the result as the next
    /// `earlier`.
    pub fn send_uploads(&self, earlier: Option<Submission>) -> Result<Submission, GpuError> {
        let sent = self.send(None);
        if let Some(Submission(index)) = earlier {
            self.drive(wgpu::PollType::Wait { submission_index: Some(index), timeout: None })?;
        }
        self.check()?;
        Ok(sent)
    }

    /// Overwrites the start of `buffer`, before the next submission runs.
    pub fn write<T: bytemuck::Pod>(&self, buffer: &wgpu::Buffer, data: &[T]) {
        self.queue.write_buffer(buffer, 0, bytemuck::cast_slice(data));
    }

    /// Reads the first `len` values of `buffer`, after everything submitted so far.
    pub async fn read<T: bytemuck::Pod>(
        &self,
        buffer: &wgpu::Buffer,
        len: usize,
    ) -> Result<Vec<T>, GpuError> {
        self.read_at(buffer, 0, len).await
    }

    /// Reads `len` values of `buffer` from byte `offset` (a multiple of 4) on.
    pub async fn read_at<T: bytemuck::Pod>(
        &self,
        buffer: &wgpu::Buffer,
        offset: u64,
        len: usize,
    ) -> Result<Vec<T>, GpuError> {
        let bytes = (len * size_of::<T>()) as u64;
        if bytes >= LONG_READ {
            let mut values = vec![T::zeroed(); len];
            self.read_pieces(buffer, offset, bytemuck::cast_slice_mut(&mut values)).await?;
            return Ok(values);
        }
        self.read_staging(&self.start_read(buffer, offset, bytes).staging, len).await
    }

    /// Copies `bytes` of `buffer` from byte `offset` (a multiple of 4) on, after everything submitted so far, to where the host reads them:
    /// [`Gpu::finish_read`].
    pub fn start_read(&self, buffer: &wgpu::Buffer, offset: u64, bytes: u64) -> Started {
        let staging = self.staging(bytes);
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(buffer, offset, &staging.buffer, 0, bytes.next_multiple_of(4));
        let submission = self.send(Some(encoder.finish()));
        Started { staging, submission }
    }

    /// The first `len` values of what `started` copies. The device may go on with what was submitted behind it.
    pub async fn finish_read<T: bytemuck::Pod>(
        &self,
        started: &Started,
        len: usize,
    ) -> Result<Vec<T>, GpuError> {
        let Submission(index) = started.submission.clone();
        let until = wgpu::PollType::Wait { submission_index: Some(index), timeout: None };
        self.map(&started.staging.buffer, wgpu::MapMode::Read, || self.drive(until)).await?;
        self.mapped(&started.staging, len)
    }

    /// Maps all of `buffer` for the host, after `wait` has waited for the device.
    pub(super) async fn map(
        &self,
        buffer: &wgpu::Buffer,
        mode: wgpu::MapMode,
        wait: impl FnOnce() -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        let (sender, receiver) = futures_channel::oneshot::channel();
        buffer.slice(..).map_async(mode, move |result| {
            let _ = sender.send(result);
        });
        wait()?;
        let mapped = receiver.await.map_err(|_| GpuError::Device("a mapped buffer was dropped".into()))?;
        self.check()?;
        mapped.map_err(|e| self.reason(e))
    }

    /// The error that the device reported, such as its loss, of which `error` is a consequence.
    pub(super) fn reason(&self, error: impl std::fmt::Display) -> GpuError {
        self.settle();
        self.check().err().unwrap_or_else(|| GpuError::Device(one_line(&error.to_string())))
    }

    pub(super) fn check_size(&self, label: &str, bytes: u64) -> Result<(), GpuError> {
        self.check()?;
        let allowed = self.longest_buffer();
        if bytes > allowed {
            return Err(GpuError::TooLarge {
                name: label.into(),
                needed: bytes,
                allowed,
                device: self.info.name.clone(),
            });
        }
        Ok(())
    }
}
