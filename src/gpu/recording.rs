//! Work that is recorded once and submitted many times: decoding submits the same work for each token.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::command::{Command, Encoded};
use super::cuda::{Cuda, Graph};
use super::{Gpu, GpuError};

/// Commands of a submission's first part. The device runs it while the host submits the others, which takes some 200 µs for a token of e2b.
const FIRST_COMMANDS: usize = 8;

/// Time for which a thread polls a device that is about to finish, at most: a thread that blocks goes on some 150 µs late (Linux, H200), a
/// twentieth of the time of a token of e2b.
#[cfg(not(target_arch = "wasm32"))]
const POLLED: Duration = Duration::from_millis(1);

/// Commands with their pipelines and bindings. Values that change from one submission to the next lie in buffers.
pub struct Recording {
    pub(super) commands: Vec<Command>,
    /// The commands as one, once they were submitted to CUDA's device.
    pub(super) graph: OnceLock<Graph>,
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
    /// Nanoseconds that the last read waited for the device.
    waited: AtomicU64,
}

impl Gpu {
    /// A staging buffer of `bytes`.
    pub fn staging(&self, bytes: u64) -> Staging {
        let size = bytes.next_multiple_of(4).max(4);
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let descriptor =
            wgpu::BufferDescriptor { label: Some("read back"), size, usage, mapped_at_creation: false };
        Staging { buffer: self.device.create_buffer(&descriptor), waited: AtomicU64::new(0) }
    }

    /// Encodes recordings, one after the other.
    pub fn prepare(&self, recordings: &[&Recording]) -> Prepared {
        if let (Some(cuda), false) = (&self.cuda, self.profile.is_on()) {
            return Prepared(Encoded::from(self.encode_graphs(cuda, recordings)));
        }
        Prepared(self.encode(&mut recordings.iter().flat_map(|r| &r.commands), FIRST_COMMANDS, false))
    }

    /// Encodes recordings for CUDA's device.
    fn encode_graphs(&self, cuda: &Cuda, recordings: &[&Recording]) -> wgpu::CommandBuffer {
        let encoder = self.device.create_command_encoder(&Default::default());
        for recording in recordings {
            let graph = recording.graph.get_or_init(|| {
                let mut all = self.device.create_command_encoder(&Default::default());
                self.record(&mut all, &recording.commands.iter().collect::<Vec<_>>(), &mut None);
                cuda.graph(&all)
            });
            cuda.replay(&encoder, graph);
        }
        encoder.finish()
    }

    /// Submits encoded recordings, part after part: the device starts with the first.
    pub fn submit(&self, prepared: Prepared) -> Result<(), GpuError> {
        self.run_each(prepared.0);
        self.check()
    }

    /// Waits until everything submitted so far is done.
    pub fn wait(&self) -> Result<(), GpuError> {
        self.drive(wgpu::PollType::wait_indefinitely())?;
        self.check()
    }

    /// Reads the first `len` values of `staging`, after everything submitted so far. A caller that reads it again and again, after as much
    /// work each time, goes on as soon as the device is done.
    pub async fn read_staging<T: bytemuck::Pod>(
        &self,
        staging: &Staging,
        len: usize,
    ) -> Result<Vec<T>, GpuError> {
        let waited = &staging.waited;
        let wait = || {
            let usual = Duration::from_nanos(waited.load(Ordering::Relaxed));
            let now = self.drive_about(usual)?;
            waited.store(now.as_nanos() as u64, Ordering::Relaxed);
            Ok(())
        };
        self.map(&staging.buffer, wgpu::MapMode::Read, wait).await?;
        self.mapped(staging, len)
    }

    /// The first `len` values of memory that is mapped, and that is not afterwards.
    pub(super) fn mapped<T: bytemuck::Pod>(&self, staging: &Staging, len: usize) -> Result<Vec<T>, GpuError> {
        let view = staging.buffer.slice(..).get_mapped_range();
        let view = view.map_err(|e| self.reason(e))?;
        let values = bytemuck::pod_collect_to_vec(&view[..len * size_of::<T>()]);
        drop(view);
        staging.buffer.unmap();
        Ok(values)
    }

    /// Waits until everything submitted so far is done, which usually takes about as long as `usual`. Returns how long it took.
    fn drive_about(&self, usual: Duration) -> Result<Duration, GpuError> {
        #[cfg(not(target_arch = "wasm32"))]
        {
            let started = std::time::Instant::now();
            if !self.is_software() {
                let timeout = Some(usual.saturating_sub(POLLED / 2));
                // A timeout is no error.
                let _ = self.device.poll(wgpu::PollType::Wait { submission_index: None, timeout });
                while started.elapsed() < usual + POLLED / 2 {
                    let status = self.device.poll(wgpu::PollType::Poll);
                    if status.is_ok_and(|status| status.is_queue_empty()) {
                        return Ok(started.elapsed());
                    }
                    std::hint::spin_loop();
                }
            }
            self.drive(wgpu::PollType::wait_indefinitely())?;
            Ok(started.elapsed())
        }
        #[cfg(target_arch = "wasm32")]
        Ok(usual)
    }
}
