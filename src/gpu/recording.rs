//! Work that is recorded once and submitted many times: decoding submits the same work for each token.

use super::command::{Command, Encoded};
use super::{Gpu, GpuError};

/// Commands with their pipelines and bindings. Values that change from one submission to the next lie in buffers.
pub struct Recording {
    pub(super) commands: Vec<Command>,
}

impl Recording {
    /// Dispatches in one submission.
    pub fn dispatches(&self) -> usize {
        self.commands.iter().filter(|c| matches!(c, Command::Dispatch { .. })).count()
    }
}

/// One submission of recordings, encoded while the device still works on an earlier one.
pub struct Prepared(Encoded);

/// A buffer that submissions copy to and the host reads.
pub struct Staging {
    pub(super) buffer: wgpu::Buffer,
}

impl Gpu {
    /// A staging buffer of `bytes`.
    pub fn staging(&self, bytes: u64) -> Staging {
        let size = bytes.next_multiple_of(4).max(4);
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let descriptor =
            wgpu::BufferDescriptor { label: Some("read back"), size, usage, mapped_at_creation: false };
        Staging { buffer: self.device.create_buffer(&descriptor) }
    }

    /// Encodes recordings, one after the other, as one submission.
    pub fn prepare(&self, recordings: &[&Recording]) -> Prepared {
        Prepared(self.encode(&mut recordings.iter().flat_map(|r| &r.commands)))
    }

    /// Submits encoded recordings.
    pub fn submit(&self, prepared: Prepared) -> Result<(), GpuError> {
        self.run(prepared.0);
        self.check()
    }

    /// Waits until everything submitted so far is done.
    pub fn wait(&self) -> Result<(), GpuError> {
        self.drive(wgpu::PollType::wait_indefinitely())?;
        self.check()
    }

    /// Reads the first `len` values of `staging`, after everything submitted so far.
    pub async fn read_staging<T: bytemuck::Pod>(
        &self,
        staging: &Staging,
        len: usize,
    ) -> Result<Vec<T>, GpuError> {
        self.map(&staging.buffer, wgpu::MapMode::Read, wgpu::PollType::wait_indefinitely()).await?;
        let view = staging.buffer.slice(..).get_mapped_range();
        let view = view.map_err(|e| self.reason(e))?;
        let values = bytemuck::pod_collect_to_vec(&view[..len * size_of::<T>()]);
        drop(view);
        staging.buffer.unmap();
        Ok(values)
    }
}
