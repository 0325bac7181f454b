//! CUDA's kernels, on NVIDIA's GPUs of compute capability 9.0: no shading language reaches the matrix instructions of these. They are
//! launched in the stream of CUDA's own device, or in Vulkan's queue.

mod stream;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod vulkan;

use super::{Entry, GpuError, Launch};

/// A device's side of CUDA's kernels.
pub(super) enum Cuda {
    /// CUDA's own device.
    Stream(stream::Cuda),
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    Vulkan(Box<vulkan::Cuda>),
}

/// Times of the launches of one recording.
pub(super) enum Timers {
    Stream(stream::Timers),
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    Vulkan(Box<vulkan::Timers>),
}

/// Calls the same method of whichever it is.
macro_rules! either {
    ($value:expr, $inner:ident => $call:expr) => {
        match $value {
            Self::Stream($inner) => $call,
            #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
            Self::Vulkan($inner) => $call,
        }
    };
}

impl Cuda {
    /// Opens `adapter` for CUDA's kernels too; `None` where it has none, or there are none for this GPU.
    pub fn open(
        adapter: &wgpu::Adapter,
        descriptor: &wgpu::DeviceDescriptor,
    ) -> Option<(wgpu::Device, wgpu::Queue, Cuda)> {
        if let Some((device, queue, cuda)) = stream::Cuda::open(adapter, descriptor) {
            return Some((device, queue, Cuda::Stream(cuda)));
        }
        #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
        if let Some((device, queue, cuda)) = vulkan::Cuda::open(adapter, descriptor) {
            return Some((device, queue, Cuda::Vulkan(Box::new(cuda))));
        }
        None
    }

    /// A buffer that its kernels can reach, where the device's own buffers have no address. Its content is undefined.
    pub fn buffer(
        &self,
        device: &wgpu::Device,
        descriptor: &wgpu::BufferDescriptor,
    ) -> Option<Result<wgpu::Buffer, GpuError>> {
        match self {
            Cuda::Stream(_) => None,
            #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
            Cuda::Vulkan(cuda) => Some(cuda.buffer(device, descriptor)),
        }
    }

    /// Bytes of buffers that the device does not count.
    pub fn allocated_bytes(&self) -> u64 {
        match self {
            Cuda::Stream(_) => 0,
            #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
            Cuda::Vulkan(cuda) => cuda.allocated_bytes(),
        }
    }

    /// Multiprocessors of the GPU.
    pub fn multiprocessors(&self) -> usize {
        either!(self, cuda => cuda.multiprocessors())
    }

    /// Compiles a kernel, unless it is compiled already.
    pub fn prepare(&self, entry: Entry) -> Result<(), String> {
        either!(self, cuda => cuda.prepare(entry))
    }

    /// Records `launches`, each behind everything before it, in an encoder that has no other commands. Takes the time of each launch where
    /// they are `timed`.
    pub fn record(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        launches: &[&Launch],
        timed: bool,
    ) -> Result<Option<Timers>, String> {
        match self {
            Cuda::Stream(cuda) => Ok(cuda.record(encoder, launches, timed).map(Timers::Stream)),
            #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
            Cuda::Vulkan(cuda) => {
                Ok(cuda.record(encoder, launches, timed)?.map(Box::new).map(Timers::Vulkan))
            }
        }
    }
}

impl Timers {
    /// Name, bytes and ticks of each launch, once the device has run them; none where it was lost.
    pub fn read(&self) -> Vec<(&'static str, u64, u64)> {
        either!(self, timers => timers.read())
    }
}
