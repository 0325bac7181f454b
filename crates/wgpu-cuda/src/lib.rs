//! CUDA as a device of wgpu, for compute: a backend of [`wgpu::custom`] over the driver's interface and [`naga_ptx`].
//!
//! ```no_run
//! let adapters = wgpu_cuda::adapters()?;
//! let (device, queue) = pollster::block_on(adapters[0].request_device(&wgpu::DeviceDescriptor::default()))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The driver is loaded when the program runs; no toolkit is needed to build or to run. Shaders in WGSL become PTX text, which the driver
//! compiles and keeps between runs.
//!
//! One stream takes everything in the order of its calls, so that no barriers are needed. Copies between device memory and buffers with the
//! usages `MAP_READ`, `COPY_SRC` and `COPY_DST` run in a second stream, beside kernels that use neither. Storage buffers are device memory, buffers that
//! are mapped are pinned host memory, and uniform buffers stay in the host's memory: their contents become parameters of a kernel by value
//! when its commands are submitted. So a uniform buffer has no other usage than `COPY_DST`, and a kernel's uniforms have 3 840 bytes in
//! all. Textures, rendering, immediates, indirect dispatches and pipeline caches are missing; uses of them panic.
//!
//! wgpu validates nothing for custom devices: use another of its backends to find mistakes. wgpu has no name for CUDA, either: the backend
//! of [`wgpu::AdapterInfo`] is `Noop`.
//!
//! | variable | effect |
//! |---|---|
//! | `WGPU_CUDA_CHECKED=1` | accesses to storage outside of their binding store nothing and read 0 |
//! | `WGPU_CUDA_SYNC=1` | every kernel is waited for, so that an error names the one that failed |
//! | `WGPU_CUDA_SERIAL=1` | no kernel starts before the one ahead of it has ended: on 9.0 and newer, blocks may wait for that on the GPU |
//! | `WGPU_CUDA_GRAPHS=0` | every kernel is launched by itself, where it comes again too |
//! | `WGPU_CUDA_CAPABILITY=8.0` | newer GPUs act as one of this compute capability; their driver's version says so |
//! | `WGPU_CUDA_DUMP=FOLDER` | a text that the driver refuses is kept in `FOLDER/failed.ptx` |

mod adapter;
mod buffer;
mod cache;
mod command;
mod copies;
mod device;
mod driver;
mod graph;
mod launch;
mod pipeline;
mod queue;
mod replay;
mod stamps;
mod state;
mod stubs;
mod uploads;
mod worker;

pub use adapter::{adapters, capability, multiprocessors};
pub use driver::CudaError;
pub use graph::{Graph, graph, replay};
pub use launch::{RawLaunch, launch, prepare};
pub use replay::repeats;

/// The reason why CUDA cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unavailable {
    /// NVIDIA's driver is not installed, or not visible in this container.
    NoDriver,
    /// The driver is older than what is needed.
    TooOld {
        /// The newest CUDA that it knows; (0, 0) where it lacks functions.
        found: (u32, u32),
        /// The CUDA that is needed.
        needed: (u32, u32),
    },
    /// The driver finds no GPU.
    NoDevice,
    /// No GPU is new enough.
    TooWeak {
        /// The first GPU.
        name: String,
        /// Its compute capability.
        found: (u32, u32),
        /// The compute capability that is needed.
        needed: (u32, u32),
    },
    /// The driver does not start.
    Refused(CudaError),
}

impl std::fmt::Display for Unavailable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unavailable::NoDriver => f.write_str("NVIDIA's driver is not installed, or not visible here"),
            Unavailable::TooOld { found: (0, 0), needed: (major, minor) } => {
                write!(f, "NVIDIA's driver is too old: CUDA {major}.{minor} is needed, driver 520 or newer")
            }
            Unavailable::TooOld { found: (a, b), needed: (major, minor) } => write!(
                f,
                "NVIDIA's driver is too old: it knows CUDA {a}.{b}, and {major}.{minor} is needed, driver 520 or newer"
            ),
            Unavailable::NoDevice => f.write_str("NVIDIA's driver finds no GPU"),
            Unavailable::TooWeak { name, found: (a, b), needed: (c, d) } => {
                write!(f, "{name} has compute capability {a}.{b}, and {c}.{d} is needed")
            }
            Unavailable::Refused(error) => write!(f, "NVIDIA's driver does not start: {error}"),
        }
    }
}

impl std::error::Error for Unavailable {}
