//! CUDA's kernels in the stream of CUDA's own device, among its other commands.

use crate::gpu::{Entry, Launch};

/// The compute capability that the kernels are made for.
const HOPPER: (u32, u32) = (9, 0);

/// A device of CUDA whose GPU runs the kernels.
pub struct Cuda {
    device: wgpu::Device,
    multiprocessors: usize,
}

/// Timestamps around the launches of one recording.
pub struct Timers {
    queries: wgpu::QuerySet,
    /// Name of each kernel, and the bytes that it reads and writes.
    launches: Vec<(&'static str, u64)>,
}

impl Cuda {
    /// Opens `adapter`; `None` where it is not one of CUDA's, or there are no kernels for its GPU.
    pub fn open(
        adapter: &wgpu::Adapter,
        descriptor: &wgpu::DeviceDescriptor,
    ) -> Option<(wgpu::Device, wgpu::Queue, Cuda)> {
        if wgpu_cuda::capability(adapter)? != HOPPER {
            return None;
        }
        let multiprocessors = wgpu_cuda::multiprocessors(adapter)?;
        let (device, queue) = pollster::block_on(adapter.request_device(descriptor)).ok()?;
        Some((device.clone(), queue, Cuda { device, multiprocessors }))
    }

    pub fn multiprocessors(&self) -> usize {
        self.multiprocessors
    }

    pub fn prepare(&self, entry: Entry) -> Result<(), String> {
        wgpu_cuda::prepare(&self.device, entry.text, entry.name)
    }

    pub fn record(
        &self,
        encoder: &wgpu::CommandEncoder,
        launches: &[&Launch],
        timed: bool,
    ) -> Option<Timers> {
        let timers = timed.then(|| Timers {
            queries: self.device.create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("launches"),
                ty: wgpu::QueryType::Timestamp,
                count: 2 * launches.len() as u32,
            }),
            launches: launches.iter().map(|launch| (launch.name, launch.bytes)).collect(),
        });
        for (i, launch) in launches.iter().enumerate() {
            let timer = timers.as_ref().map(|timers| (timers.queries.clone(), 2 * i as u32));
            wgpu_cuda::launch(
                encoder,
                wgpu_cuda::RawLaunch {
                    text: launch.entry.text,
                    name: launch.entry.name,
                    buffers: launch.buffers.clone(),
                    numbers: launch.numbers.clone(),
                    grid: launch.blocks,
                    threads: launch.threads,
                    shared: 0,
                    timer,
                },
            );
        }
        timers
    }
}

impl Timers {
    pub fn read(&self) -> Vec<(&'static str, u64, u64)> {
        let ticks = |i: usize| wgpu_cuda::elapsed(&self.queries, 2 * i as u32, 2 * i as u32 + 1);
        self.launches.iter().enumerate().map(|(i, (name, bytes))| (*name, *bytes, ticks(i))).collect()
    }
}
