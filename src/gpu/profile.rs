//! Time by kernel, from timestamp queries around every dispatch.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::{Gpu, GpuError};

/// What [`Gpu::start_profile`] collects.
#[derive(Default)]
pub(super) struct Profile(Mutex<Option<Vec<Timing>>>);

/// The queries of one submission, in as many sets as they fill.
pub(super) struct Timing {
    sets: Vec<(wgpu::QuerySet, wgpu::Buffer)>,
    kernels: Vec<(Arc<str>, u64)>, // with the bytes of what each is given
}

/// All dispatches of one kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KernelTime {
    /// How often it ran.
    pub dispatches: usize,
    /// Altogether.
    pub seconds: f64,
    /// Of the buffers that they were given, each counted once a run: as much as one reads and writes that touches all of
    /// it.
    pub bytes: u64,
}

/// Dispatches that one set times: WebGPU allows 4096 queries.
const SET: usize = 2048;

impl Profile {
    /// Queries for `dispatches` dispatches, where a profile is being taken.
    pub fn timing(&self, device: &wgpu::Device, dispatches: usize) -> Option<Timing> {
        let on = self.0.lock().expect("the lock is held for a move only").is_some();
        if !on || dispatches == 0 {
            return None;
        }
        let set = |_| {
            let queries = device.create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("profile"),
                ty: wgpu::QueryType::Timestamp,
                count: 2 * SET as u32,
            });
            let results = device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("profile"),
                size: 16 * SET as u64,
                usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
                mapped_at_creation: false,
            });
            (queries, results)
        };
        Some(Timing { sets: (0..dispatches.div_ceil(SET)).map(set).collect(), kernels: Vec::new() })
    }

    /// Keeps the queries until the profile is read.
    pub fn keep(&self, timing: Timing) {
        if let Some(kept) = self.0.lock().expect("the lock is held for a move only").as_mut() {
            kept.push(timing);
        }
    }
}

impl Timing {
    /// Where the next dispatch, of `kernel` over `bytes`, writes its times.
    pub fn next(&mut self, kernel: Arc<str>, bytes: u64) -> wgpu::ComputePassTimestampWrites<'_> {
        let (set, at) = (self.kernels.len() / SET, 2 * (self.kernels.len() % SET) as u32);
        self.kernels.push((kernel, bytes));
        wgpu::ComputePassTimestampWrites {
            query_set: &self.sets[set].0,
            beginning_of_pass_write_index: Some(at),
            end_of_pass_write_index: Some(at + 1),
        }
    }

    pub fn resolve(&self, encoder: &mut wgpu::CommandEncoder) {
        for ((queries, results), kernels) in self.sets.iter().zip(self.kernels.chunks(SET)) {
            encoder.resolve_query_set(queries, 0..2 * kernels.len() as u32, results, 0);
        }
    }
}

impl Gpu {
    /// Whether the device has timestamp queries.
    pub fn can_profile(&self) -> bool {
        self.device.features().contains(wgpu::Features::TIMESTAMP_QUERY)
    }

    /// Times every dispatch from now on.
    pub fn start_profile(&self) {
        *self.profile.0.lock().expect("the lock is held for a move only") = Some(Vec::new());
    }

    /// Stops timing; seconds and dispatches by kernel.
    pub async fn finish_profile(&self) -> Result<BTreeMap<String, KernelTime>, GpuError> {
        let kept =
            self.profile.0.lock().expect("the lock is held for a move only").take().unwrap_or_default();
        let period = f64::from(self.queue.get_timestamp_period()) * 1e-9;
        let mut times: BTreeMap<String, KernelTime> = BTreeMap::new();
        for timing in kept {
            for ((_, results), kernels) in timing.sets.iter().zip(timing.kernels.chunks(SET)) {
                let stamps = self.read::<[u64; 2]>(results, kernels.len()).await?;
                for ((kernel, bytes), [begin, end]) in kernels.iter().zip(stamps) {
                    let time = times.entry(kernel.to_string()).or_default();
                    time.dispatches += 1;
                    time.bytes += bytes;
                    time.seconds += end.saturating_sub(begin) as f64 * period;
                }
            }
        }
        Ok(times)
    }
}
