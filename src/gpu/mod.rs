//! The device: opening it, and what it says of itself.

mod backend;
mod buffers;
mod error;
mod host;
mod pipeline;
pub mod profile;
mod recorder;
mod recording;
mod select;
pub mod shader;
mod tier;
mod trial;
mod upload;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};

pub use backend::{Backend, Kernels};
pub(crate) use buffers::PARTIAL_SUMS;
pub use error::GpuError;
use error::{Fault, describe, remember};

pub use pipeline::{Kernel, PipelinesKey};
pub use recorder::{Binding, Recorder, grid};
pub use recording::{Prepared, Recording, Staging};
use select::{COOPERATIVE, cooperative_matrices, is_simd, pick_adapter};
pub use tier::{Matrices, Tier};
pub use upload::{Submission, Upload};

/// An open device. Cheap to pass by reference; not cloneable on purpose.
pub struct Gpu {
    device: wgpu::Device,
    queue: wgpu::Queue,
    info: wgpu::AdapterInfo,
    limits: wgpu::Limits,
    pipelines: pipeline::Cache,
    profile: profile::Profile,
    errors: Arc<Mutex<Option<Fault>>>,
    /// Results of the parts of split products.
    partial_sums: OnceLock<wgpu::Buffer>,
    workgroups_to_fill: AtomicUsize,
    row_factors: OnceLock<wgpu::Buffer>,
    tier: Mutex<Tier>,
    host_memory: AtomicU64,
    matrices: Option<Matrices>,
    /// Why the device's matrices are not among `matrices`.
    failed_trial: Option<String>,
    simd: AtomicBool,
    has_simd: bool,
    /// Parameters of the dispatches being recorded.
    params: wgpu::Buffer,
    /// Bound where a kernel has a binding that this call does not use.
    unused: wgpu::Buffer,
}

impl Gpu {
    /// Opens the fastest-looking device, or the one whose name contains `name` (case does not matter).
    ///
    /// With `webgpu_limits` the device is held to what every WebGPU browser guarantees.
    pub async fn open(backend: Backend, name: Option<&str>, webgpu_limits: bool) -> Result<Gpu, GpuError> {
        let adapter = pick_adapter(backend, name).await?;
        let info = adapter.get_info();
        let limits = if webgpu_limits { wgpu::Limits::default() } else { adapter.limits() };
        let matrices = if webgpu_limits { None } else { cooperative_matrices(&adapter) };
        let mut wanted = wgpu::Features::TIMESTAMP_QUERY;
        wanted.set(wgpu::Features::PIPELINE_CACHE, !webgpu_limits);
        wanted.set(wgpu::Features::SHADER_F16, !webgpu_limits);
        let simd = !webgpu_limits && is_simd(&adapter);
        wanted.set(wgpu::Features::SUBGROUP, simd);
        let mut features = adapter.features() & wanted;
        let mut experimental_features = wgpu::ExperimentalFeatures::disabled();
        if matrices.is_some() {
            features |= COOPERATIVE;
            // SAFETY: asks for nothing but the features named above.
            experimental_features = unsafe { wgpu::ExperimentalFeatures::enabled() };
        }
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("rullama-train"),
            required_features: features,
            required_limits: limits.clone(),
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            experimental_features,
            ..Default::default()
        };
        let refused = |source| GpuError::Refused { adapter: info.name.clone(), source };
        let (device, queue) = adapter.request_device(&descriptor).await.map_err(refused)?;
        let errors = Arc::new(Mutex::new(None));
        let (uncaptured, lost) = (errors.clone(), errors.clone());
        device.on_uncaptured_error(Arc::new(move |e: wgpu::Error| {
            remember(&uncaptured, Fault::Reported(describe(&e)));
        }));
        device.set_device_lost_callback(move |_, text| {
            // What else went wrong followed from it.
            *lost.lock().expect("the lock is held for a move only") = Some(Fault::Lost(text));
        });
        let unused = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("unused"),
            size: 256,
            usage: wgpu::BufferUsages::STORAGE,
            mapped_at_creation: false,
        });
        let params = recorder::params_buffer(&device);
        // A software device has a few cores only, and pays dearly for each dispatch.
        let workgroups_to_fill = if info.device_type == wgpu::DeviceType::Cpu { 0 } else { 4096 };
        let pipelines = pipeline::Cache::default();
        let profile = profile::Profile::default();
        let mut gpu = Gpu {
            device,
            queue,
            info,
            limits,
            pipelines,
            profile,
            errors,
            partial_sums: OnceLock::new(),
            workgroups_to_fill: AtomicUsize::new(workgroups_to_fill),
            row_factors: OnceLock::new(),
            tier: Mutex::new(Tier::F32),
            host_memory: AtomicU64::new(host::ASKED),
            matrices,
            failed_trial: None,
            simd: AtomicBool::new(simd),
            has_simd: simd,
            params,
            unused,
        };
        if gpu.best_tier() == Tier::Cooperative8
            && let Err(reason) = gpu.try_matrices().await
        {
            gpu.check()?; // lost
            gpu.matrices = None;
            gpu.failed_trial = Some(reason);
        }
        gpu.set_tier(gpu.best_tier());
        Ok(gpu)
    }

    /// The adapter's name, driver and backend, on one line.
    pub fn description(&self) -> String {
        let i = &self.info;
        if i.name.is_empty() {
            return "WebGPU".into(); // browsers may not tell which GPU it is
        }
        format!("{} ({:?}, {} {})", i.name, i.backend, i.driver, i.driver_info)
    }

    /// Whether the device is a CPU that plays a GPU.
    pub fn is_software(&self) -> bool {
        self.info.device_type == wgpu::DeviceType::Cpu
    }

    /// What the device guarantees.
    pub fn limits(&self) -> &wgpu::Limits {
        &self.limits
    }

    /// Gives the device back: whatever still uses it fails with [`GpuError::Lost`].
    pub fn destroy(&self) {
        self.device.destroy();
    }

    /// Bytes that live on the device now, where the backend counts them.
    pub fn allocated_bytes(&self) -> Option<u64> {
        self.device.generate_allocator_report().map(|report| report.total_allocated_bytes)
    }

    /// Bytes that one binding may span: what decides how matrices are tiled.
    pub fn max_binding_bytes(&self) -> u64 {
        let largest = self.limits.max_storage_buffer_binding_size.min(self.limits.max_buffer_size);
        largest & !255
    }

    /// What the driver calls the device.
    pub fn device_name(&self) -> &str {
        &self.info.name
    }

    /// Native backends make progress only when polled; a browser polls by itself.
    fn drive(&self, until: wgpu::PollType) -> Result<(), GpuError> {
        #[cfg(not(target_arch = "wasm32"))]
        self.device.poll(until).map_err(|e| GpuError::Device(e.to_string()))?;
        #[cfg(target_arch = "wasm32")]
        let _ = until;
        Ok(())
    }
}
