//! The device: opening it, its properties and its limits.

mod backend;
mod bind_groups;
#[cfg(all(feature = "native", any(target_os = "linux", target_os = "windows")))]
mod bindings;
mod buffers;
mod command;
#[cfg(has_cuda)]
mod cuda;
#[cfg(not(has_cuda))]
#[path = "no_cuda.rs"]
mod cuda;
mod error;
mod host;
mod kernels;
#[cfg(all(feature = "native", any(target_os = "linux", target_os = "windows")))]
mod lanes;
#[cfg(not(all(feature = "native", any(target_os = "linux", target_os = "windows"))))]
#[path = "no_lanes.rs"]
mod lanes;
mod launch;
mod options;
mod pipeline;
pub mod profile;
mod recorder;
mod recording;
mod select;
pub mod shader;
#[cfg(all(feature = "native", any(target_os = "linux", target_os = "windows")))]
mod spirv;
mod staging;
mod tuning;
mod upload;
mod write_all;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

pub use backend::{Backend, KernelSetting};
pub use bind_groups::BindGroups;
pub use buffers::Started;
pub(crate) use buffers::{ARRIVALS, PARTIAL_SUMS};
use error::Fault as DeviceFault;
pub use error::GpuError;
pub use kernels::{InCuda, Kernels, Matrices, MatrixInstructions, Products, Tier, has_few_registers};
pub use launch::{Entry, Launch, Texts};
pub(crate) use launch::{ptx, texts};
pub use options::GpuOptions;
#[doc(hidden)]
pub use pipeline::Fault;
pub use pipeline::{Kernel, PipelinesKey};
pub use recorder::{Binding, Recorder, grid};
pub use recording::{Prepared, Recording, Staging};
pub use select::Place;
use select::{COOPERATIVE, Picked, cooperative_matrices, is_simd, pick_adapters};
pub use tuning::{Choice, Choices, Product};
use upload::STAYS_ON_HOST;
pub use upload::{HostBuffer, Submission, Upload};

/// An open device, and the kernels that it runs.
pub struct Gpu {
    shared: Arc<Shared>,
    kernels: Kernels,
    choices: RwLock<Choices>,
    /// Most bytes of a buffer, where they are fewer than the device allows.
    longest: Option<u64>,
}

impl std::ops::Deref for Gpu {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

/// The device itself, whatever kernels it runs.
pub struct Shared {
    /// CUDA's own device, where it is one.
    cuda: Option<cuda::Cuda>,
    profile: profile::Profile,
    device: wgpu::Device,
    queue: wgpu::Queue,
    info: wgpu::AdapterInfo,
    /// Why this is not the device that one would expect.
    note: Option<String>,
    limits: wgpu::Limits,
    pipelines: pipeline::Cache,
    errors: Arc<Mutex<Option<DeviceFault>>>,
    /// Scratch for the parts of split products.
    partial_sums: OnceLock<wgpu::Buffer>,
    arrivals: OnceLock<wgpu::Buffer>,
    row_factors: OnceLock<wgpu::Buffer>,
    host_memory: AtomicU64,
    /// Bytes of host buffers.
    on_host: Arc<AtomicU64>,
    /// Staging memory of long reads and writes.
    kept: staging::Kept,
    matrices: Option<Matrices>,
    /// Why the device's cooperative matrices, or f16, are not used.
    failed_self_test: OnceLock<String>,
    /// Whether the variants for software renderers run.
    software: bool,
    /// Submissions until the device is lost on request; it never is at 0.
    left: AtomicU64,
    /// Parameters of the dispatches being recorded.
    params: wgpu::Buffer,
    /// Stands for bindings of a kernel that a call does not use.
    unused: wgpu::Buffer,
}

/// A device as it was opened.
struct Opened {
    device: wgpu::Device,
    queue: wgpu::Queue,
    limits: wgpu::Limits,
    matrices: Option<Matrices>,
    /// A part of the device that is not used, and why.
    note: Option<String>,
}

/// Opens the device with the features that it has of those that kernels use, and with cooperative matrices where its driver allows it.
async fn open(adapter: &wgpu::Adapter, webgpu_limits: bool) -> Result<Opened, GpuError> {
    if !adapter.get_downlevel_capabilities().flags.contains(wgpu::DownlevelFlags::SHADER_F16_IN_F32) {
        return Err(GpuError::NoConversion { device: adapter.get_info().name });
    }
    let limits = if webgpu_limits { wgpu::Limits::default() } else { adapter.limits() };
    let mut wanted = wgpu::Features::TIMESTAMP_QUERY;
    wanted.set(wgpu::Features::PIPELINE_CACHE, !webgpu_limits);
    wanted.set(wgpu::Features::SHADER_F16, !webgpu_limits);
    // DX12's memory of this kind is written by the host alone, or by the device alone.
    wanted.set(STAYS_ON_HOST, !webgpu_limits && adapter.get_info().backend != wgpu::Backend::Dx12);
    wanted.set(wgpu::Features::SUBGROUP, !webgpu_limits && is_simd(adapter));
    let features = adapter.features() & wanted;
    let matrices = if webgpu_limits { None } else { cooperative_matrices(adapter) };
    let descriptor = |matrices: Option<Matrices>| wgpu::DeviceDescriptor {
        label: Some("rullama-train"),
        required_features: features | matrices.map_or(wgpu::Features::empty(), |_| COOPERATIVE),
        required_limits: limits.clone(),
        memory_hints: wgpu::MemoryHints::MemoryUsage,
        experimental_features: match matrices {
            None => wgpu::ExperimentalFeatures::disabled(),
            // SAFETY: only the features above are requested.
            Some(_) => unsafe { wgpu::ExperimentalFeatures::enabled() },
        },
        ..Default::default()
    };
    let (mut matrices, mut note) = (matrices, None);
    if lanes::must_be_required(adapter, matrices) {
        match lanes::open(adapter, &descriptor(matrices)) {
            Ok((device, queue)) => return Ok(Opened { device, queue, limits, matrices, note }),
            Err(reason) => {
                matrices = None;
                note = Some(format!(
                    "the driver refuses subgroups of 32 lanes, which 16×16 matrices need: {reason}"
                ));
            }
        }
    }
    let refused = |source| GpuError::Refused { adapter: adapter.get_info().name, source };
    let (device, queue) = adapter.request_device(&descriptor(matrices)).await.map_err(refused)?;
    Ok(Opened { device, queue, limits, matrices, note })
}

impl Gpu {
    /// Opens a device without its self-test: see [`Gpu::open`].
    pub(crate) async fn open_untested(options: &GpuOptions) -> Result<Gpu, GpuError> {
        let GpuOptions { backend, ref name, webgpu_limits, place } = *options;
        let Picked { adapters, note } = pick_adapters(backend, name.as_deref(), place).await?;
        let interface =
            |a: &wgpu::Adapter| format!("{} ({})", a.get_info().name, backend::interface(&a.get_info()));
        let open = async |adapter: &wgpu::Adapter| open(adapter, webgpu_limits).await;
        let (adapter, opened, refused) = select::open_first(adapters, note, interface, open).await?;
        let Opened { device, queue, limits, matrices, note } = opened;
        let note = select::noted(refused, note);
        let info = adapter.get_info();
        let software = !webgpu_limits && is_simd(&adapter);
        let cuda = cuda::Cuda::of(&adapter, &device);
        let errors = error::watch(&device);
        let unused = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("unused"),
            size: 256,
            usage: wgpu::BufferUsages::STORAGE,
            mapped_at_creation: false,
        });
        let params = recorder::params_buffer(&device);
        let shared = Shared {
            cuda,
            profile: profile::Profile::default(),
            device,
            queue,
            info,
            note,
            limits,
            pipelines: pipeline::Cache::default(),
            errors,
            partial_sums: OnceLock::new(),
            arrivals: OnceLock::new(),
            row_factors: OnceLock::new(),
            host_memory: AtomicU64::new(host::ASKED),
            on_host: Arc::default(),
            kept: staging::Kept::default(),
            matrices,
            failed_self_test: OnceLock::new(),
            software,
            left: AtomicU64::new(0),
            params,
            unused,
        };
        #[cfg_attr(
            target_family = "wasm",
            expect(clippy::arc_with_non_send_sync, reason = "a browser's device stays in one worker")
        )]
        let gpu = Gpu::of(Arc::new(shared));
        Ok(gpu.with_kernels(gpu.best_kernels()))
    }

    /// A handle of the device that runs the kernels of every device.
    fn of(shared: Arc<Shared>) -> Gpu {
        Gpu { shared, kernels: Kernels::default(), choices: RwLock::default(), longest: None }
    }

    /// The device's name, backend and driver, on one line.
    pub fn description(&self) -> String {
        let i = &self.info;
        if i.name.is_empty() {
            return "WebGPU".into(); // browsers may hide which GPU it is
        }
        format!("{} ({}, {} {})", i.name, backend::interface(i), i.driver, i.driver_info)
    }

    /// Why this is not the device that one would expect, such as CUDA's on a GPU of NVIDIA's.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// The device's place on the bus of its host; empty where the system does not tell.
    pub fn bus_id(&self) -> &str {
        &self.info.device_pci_bus_id
    }

    /// The interface that reaches the device, and its driver.
    pub fn driver(&self) -> (String, String) {
        let i = &self.info;
        (backend::interface(i), format!("{} {}", i.driver, i.driver_info).trim().into())
    }

    /// Fewest and most lanes of a subgroup.
    pub fn subgroup_sizes(&self) -> [u32; 2] {
        [self.info.subgroup_min_size, self.info.subgroup_max_size]
    }

    /// Whether the device is a software renderer on the CPU.
    pub fn is_software(&self) -> bool {
        self.info.device_type == wgpu::DeviceType::Cpu
    }

    /// The limits that the device guarantees.
    pub fn limits(&self) -> &wgpu::Limits {
        &self.limits
    }

    /// Releases the device: later uses fail with [`GpuError::Lost`].
    pub fn destroy(&self) {
        self.device.destroy();
    }

    /// Releases the device right before a submission from now on, counted from 1, for tests.
    #[doc(hidden)]
    pub fn lose_at(&self, submission: u64) {
        self.left.store(submission, Ordering::Relaxed);
    }

    /// The device of wgpu and its queue, for tests of a shader alone.
    #[doc(hidden)]
    pub fn raw(&self) -> (&wgpu::Device, &wgpu::Queue) {
        (&self.device, &self.queue)
    }

    /// Submits commands.
    fn send(&self, commands: impl IntoIterator<Item = wgpu::CommandBuffer>) -> Submission {
        let left = self.left.load(Ordering::Relaxed);
        if left > 0 {
            self.left.store(left - 1, Ordering::Relaxed);
        }
        if left == 1 {
            self.destroy();
        }
        Submission(self.queue.submit(commands))
    }

    /// Bytes allocated on the device now, if the backend counts them.
    pub fn allocated_bytes(&self) -> Option<u64> {
        let all = self.device.generate_allocator_report()?.total_allocated_bytes;
        // wgpu's own devices count host buffers too.
        let others = if self.cuda.is_some() { 0 } else { self.on_host.load(Ordering::Relaxed) };
        Some(all.saturating_sub(others))
    }

    /// Bytes of memory that the device has for itself; `None` where the interface does not tell, and on software renderers.
    pub fn memory(&self) -> Option<u64> {
        match self.cuda {
            _ if self.is_software() => None,
            Some(_) => Some(self.limits.max_buffer_size),
            None => host::device_memory(&self.device),
        }
    }

    /// Bytes that one binding may span. It decides how matrices are tiled.
    pub fn max_binding_bytes(&self) -> u64 {
        self.longest_buffer() & !255
    }

    /// Bytes that a buffer may have.
    fn longest_buffer(&self) -> u64 {
        self.longest.unwrap_or(self.limits.max_storage_buffer_binding_size.min(self.limits.max_buffer_size))
    }

    /// A handle of the device on which buffers may have `bytes` bytes at most, as they may on others. Plans that are not carried out may
    /// have longer ones than the device.
    #[must_use]
    pub fn with_buffers_of(&self, bytes: u64) -> Gpu {
        Gpu { longest: Some(bytes), ..self.with_kernels(self.kernels) }
    }

    /// The name that the driver gives the device.
    pub fn device_name(&self) -> &str {
        &self.info.name
    }

    /// Polls native backends, which make progress only then; a browser polls by itself.
    fn drive(&self, until: wgpu::PollType) -> Result<(), GpuError> {
        #[cfg(not(target_arch = "wasm32"))]
        self.device.poll(until).map_err(|e| GpuError::Device(e.to_string()))?;
        #[cfg(target_arch = "wasm32")]
        let _ = until;
        Ok(())
    }
}
