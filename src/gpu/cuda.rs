//! What CUDA's own device can do and wgpu has no name for: graphs, and kernels for NVIDIA's GPUs of compute capability 8.0 and newer, since
//! no shading language reaches the copies and matrix instructions of these. They run in the device's stream, among its other commands.

use crate::gpu::{Entry, Launch, MatrixInstructions};

/// The least compute capability that has the copies of the kernels, `cp.async`.
const AMPERE: (u32, u32) = (8, 0);
/// The only one that has `wgmma`.
const HOPPER: (u32, u32) = (9, 0);

/// A device of CUDA.
pub(super) struct Cuda {
    device: wgpu::Device,
    multiprocessors: usize,
    matrix_instructions: Option<MatrixInstructions>,
}

/// Commands that run again and again.
pub(super) type Graph = wgpu_cuda::Graph;

impl Cuda {
    /// `device`, opened from `adapter`; `None` where it is not one of CUDA's.
    pub fn of(adapter: &wgpu::Adapter, device: &wgpu::Device) -> Option<Cuda> {
        let matrix_instructions = match wgpu_cuda::capability(adapter)? {
            HOPPER => Some(MatrixInstructions::Wgmma),
            capability => (capability >= AMPERE).then_some(MatrixInstructions::Mma),
        };
        let multiprocessors = wgpu_cuda::multiprocessors(adapter)?;
        Some(Cuda { device: device.clone(), multiprocessors, matrix_instructions })
    }

    /// The instructions of the kernels for its GPU; `None` if it runs none.
    pub fn matrix_instructions(&self) -> Option<MatrixInstructions> {
        self.matrix_instructions
    }

    /// Says that the kernels of a submission are likely to come again in their order. Its first encoder is `encoder`.
    pub fn repeats(&self, encoder: &wgpu::CommandEncoder) {
        wgpu_cuda::repeats(encoder);
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
