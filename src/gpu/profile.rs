//! Time per kernel, from timestamp queries around every dispatch.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::{Gpu, GpuError};

/// The timings that [`Gpu::start_profile`] collects.
#[derive(Default)]
pub(super) struct Profile(Mutex<Option<Vec<Timing>>>);

/// The queries of one encoder, in one or more sets.
pub(super) struct Timing {
    sets: Vec<(wgpu::QuerySet, wgpu::Buffer)>,
    kernels: Vec<(Arc<str>, u64)>, // name, and bytes of the bound buffers
}

/// The dispatches, or launches, of one kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KernelTime {
    /// Number of dispatches.
    pub dispatches: usize,
    /// Seconds of all dispatches.
    pub seconds: f64,
    /// Bytes of the bound buffers, each counted once per dispatch: the traffic of a kernel that touches all of them once.
    pub bytes: u64,
}

/// Dispatches of one query set: WebGPU allows 4096 queries.
const SET: usize = 2048;

impl Profile {
    /// Whether a profile is being taken.
    pub fn is_on(&self) -> bool {
        self.0.lock().expect("lock is not poisoned").is_some()
    }

    /// Queries for `dispatches` dispatches; `None` unless a profile is being taken.
    pub fn timing(&self, device: &wgpu::Device, dispatches: usize) -> Option<Timing> {
        if !self.is_on() || dispatches == 0 {
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

    /// Keeps queries until the profile is read.
    pub fn keep(&self, timings: Vec<Timing>) {
        if let Some(kept) = self.0.lock().expect("lock is not poisoned").as_mut() {
            kept.extend(timings);
        }
    }
}

impl Timing {
    /// The queries of the next dispatch, of `kernel` with `bytes` of bound buffers.
    pub fn next(&mut self, kernel: Arc<str>, bytes: u64) -> wgpu::ComputePassTimestampWrites<'_> {
        let (set, at) = (self.kernels.len() / SET, 2 * (self.kernels.len() % SET) as u32);
        self.kernels.push((kernel, bytes));
        wgpu::ComputePassTimestampWrites {
            query_set: &self.sets[set].0,
            beginning_of_pass_write_index: Some(at),
            end_of_pass_write_index: Some(at + 1),
        }
    }

    /// Records the copy of the queries into buffers.
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
        *self.profile.0.lock().expect("lock is not poisoned") = Some(Vec::new());
    }

    /// Stops timing. Returns the times by kernel name.
    pub async fn finish_profile(&self) -> Result<BTreeMap<String, KernelTime>, GpuError> {
        let kept = self.profile.0.lock().expect("lock is not poisoned").take().unwrap_or_default();
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
