//! What CUDA's own device can do and wgpu has no name for: graphs, and kernels for NVIDIA's GPUs of compute capability 9.0, since no shading
//! language reaches the matrix instructions of these. They run in the device's stream, among its other commands.

use crate::gpu::{Entry, Launch};

/// The compute capability that the kernels are made for.
const HOPPER: (u32, u32) = (9, 0);

/// A device of CUDA.
pub(super) struct Cuda {
    device: wgpu::Device,
    multiprocessors: usize,
    runs_kernels: bool,
}

/// Commands that run again and again.
pub(super) type Graph = wgpu_cuda::Graph;

impl Cuda {
    /// `device`, opened from `adapter`; `None` where it is not one of CUDA's.
    pub fn of(adapter: &wgpu::Adapter, device: &wgpu::Device) -> Option<Cuda> {
        let runs_kernels = wgpu_cuda::capability(adapter)? == HOPPER;
        let multiprocessors = wgpu_cuda::multiprocessors(adapter)?;
        Some(Cuda { device: device.clone(), multiprocessors, runs_kernels })
    }

    /// Whether CUDA's kernels are made for its GPU.
    pub fn runs_kernels(&self) -> bool {
        self.runs_kernels
    }

    /// A graph of all commands of `encoder`.
    pub fn graph(&self, encoder: &wgpu::CommandEncoder) -> Graph {
        wgpu_cuda::graph(encoder)
    }

    /// Records the commands of `graph`.
    pub fn replay(&self, encoder: &wgpu::CommandEncoder, graph: &Graph) {
        wgpu_cuda::replay(encoder, graph);
    }

    /// Multiprocessors of the GPU.
    pub fn multiprocessors(&self) -> usize {
        self.multiprocessors
    }

    /// Compiles a kernel, unless it is compiled already.
    pub fn prepare(&self, entry: Entry) -> Result<(), String> {
        wgpu_cuda::prepare(&self.device, entry.text, entry.name)
    }

    /// Records `launch`, between two timestamps where it is timed.
    pub fn record(
        &self,
        encoder: &wgpu::CommandEncoder,
        launch: &Launch,
        timer: Option<wgpu::ComputePassTimestampWrites>,
    ) {
        let timer = timer.map(|writes| {
            let first = writes.beginning_of_pass_write_index.expect("the profile times the whole launch");
            (writes.query_set.clone(), first)
        });
        let launch = wgpu_cuda::RawLaunch {
            text: launch.entry.text,
            name: launch.entry.name,
            buffers: launch.buffers.clone(),
            numbers: launch.numbers.clone(),
            grid: launch.blocks,
            threads: launch.threads,
            shared: launch.shared,
            timer,
        };
        wgpu_cuda::launch(encoder, launch);
    }
}
