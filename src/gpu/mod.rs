//! The device: choosing it, its buffers, its pipelines, and reading results back.

mod host;
mod pipeline;
pub mod profile;
mod recorder;
mod recording;
pub mod shader;
mod trial;
mod upload;

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use wgpu::util::DeviceExt;

pub use crate::recipe::{Backend, Kernels};
use crate::words;
pub use pipeline::{Kernel, PipelinesKey};
pub use recorder::{Binding, Recorder, grid};
pub use recording::{Prepared, Recording, Staging};
pub use upload::{Submission, Upload};

/// What can go wrong on a device.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// There is no device at all.
    #[error(
        "no GPU found: no driver answered. Install a Vulkan driver (Debian and Ubuntu: `apt-get install mesa-vulkan-drivers` \
         gives a software device)"
    )]
    NoDevice,
    /// There are devices, but none of the wanted name.
    #[error(
        "no GPU has a name that contains \"{wanted}\"; found: {found}. Name one of these in device.adapter"
    )]
    NotNamed {
        /// What the recipe asked for.
        wanted: String,
        /// The names of what there is.
        found: String,
    },
    /// The adapter would not give a device.
    #[error("{adapter} refused to open: {source}")]
    Refused {
        /// The adapter's name.
        adapter: String,
        /// The driver's reason.
        source: wgpu::RequestDeviceError,
    },
    /// A buffer is larger than the device allows.
    #[error(
        "{name} needs a buffer of {needed} bytes, {device} allows {allowed}: lower data.max_seq_len or train.batch_size"
    )]
    TooLarge {
        /// What the buffer is for.
        name: String,
        /// Its size.
        needed: u64,
        /// The device's limit.
        allowed: u64,
        /// The device.
        device: String,
    },
    /// A matrix of the adapter is larger than what a kernel can see of a buffer.
    #[error(
        "{module} of layer {layer} needs {needed} bytes for one matrix of its adapter, {device} allows {allowed}: lower lora.rank, \
         or leave {module} out of lora.target_modules"
    )]
    AdapterTooLarge {
        /// GGUF's name of the adapted matrix.
        module: &'static str,
        /// Its layer.
        layer: usize,
        /// The size.
        needed: u64,
        /// The device's limit.
        allowed: u64,
        /// The device.
        device: String,
    },
    /// Even with every layer recomputed, a plan takes more than it may.
    #[error("{needed} bytes are needed with every layer recomputed, and {limit} are allowed")]
    OverLimit {
        /// What the plan takes.
        needed: u64,
        /// What [`crate::model::plan::Recompute::Within`] allows.
        limit: u64,
    },
    /// What is to stay off the device does not fit host memory.
    #[error(
        "the experts of {layers} layers need {} of host memory, {} are available: close other programs, or leave more experts on the \
         device (train.memory_limit or train.offload_experts in a recipe, --memory-limit or --offload-experts)",
        words::bytes(*.needed), words::bytes(*.available)
    )]
    HostMemory {
        /// Layers whose experts were to stay there.
        layers: usize,
        /// What these need, in bytes.
        needed: u64,
        /// What there is, in bytes.
        available: u64,
    },
    /// The base could not be read while it was on its way to the device.
    #[error(transparent)]
    Base(crate::weights::Error),
    /// The device cannot compute with what was asked for.
    #[error(
        "{device} cannot compute with {wanted}; the best that it has are {best}. Set device.kernels (in bench: --tier) to \"auto\", \
         or leave it out"
    )]
    NoTier {
        /// The device.
        device: String,
        /// What the recipe asked for.
        wanted: Tier,
        /// What it would take by itself.
        best: Tier,
    },
    /// The device has cooperative matrices, and failed to compute with them.
    #[error(
        "{device} has cooperative matrices, but a product on them failed: {reason}. Set device.kernels (in bench: --tier) to \"auto\", \
         or leave it out"
    )]
    FailedTrial {
        /// The device.
        device: String,
        /// What went wrong.
        reason: String,
    },
    /// The device reported an error.
    #[error("the GPU reported an error: {0}")]
    Device(String),
    /// The device is gone: its driver failed, or the system or the browser took it away.
    #[error("the GPU was lost: {0}; open it anew, and go on from the last checkpoint")]
    Lost(String),
}

/// What the device told of itself.
#[derive(Clone)]
enum Fault {
    Reported(String),
    Lost(String),
}

/// What products compute with, the slowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// f32: what every device does.
    F32,
    /// Operands in f16, each row scaled by a power of two, and sums in f32; the rest in f32.
    F16,
    /// The same on cooperative matrices of 8×8, which Apple's GPUs have.
    Cooperative8,
    /// The same on cooperative matrices of 16×16, attention, experts and adapters as well.
    Cooperative,
}

impl std::fmt::Display for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Tier::F32 => "f32",
            Tier::F16 => "f16 operands",
            Tier::Cooperative8 => "f16 operands on 8×8 cooperative matrices",
            Tier::Cooperative => "f16 operands on 16×16 cooperative matrices",
        })
    }
}

/// Cooperative matrices of f16 that add up in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrices {
    /// Rows, columns and steps: 16, or 8 on Apple's GPUs.
    pub edge: u32,
    /// Lanes of the subgroup that holds one.
    pub lanes: u32,
}

impl std::fmt::Display for Matrices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "f16 on {0}×{0} cooperative matrices", self.edge)
    }
}

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

    /// Threads of a workgroup that share work which one has to do; a software device runs them one after the other.
    pub fn threads_to_share(&self) -> usize {
        let limits = &self.limits;
        match self.workgroups_to_fill() {
            0 => 256,
            _ => {
                limits.max_compute_invocations_per_workgroup.min(limits.max_compute_workgroup_size_x) as usize
            }
        }
    }

    /// Workgroups of 64 threads that keep the device busy; products with fewer tiles are split along their sums.
    pub fn workgroups_to_fill(&self) -> usize {
        self.workgroups_to_fill.load(Ordering::Relaxed)
    }

    /// What products compute with.
    pub fn tier(&self) -> Tier {
        *self.tier.lock().expect("the lock is held for a move only")
    }

    /// Whether all products, and attention, run on cooperative matrices of 16×16: f16 operands with scaled rows, f32 sums.
    pub fn cooperative(&self) -> bool {
        self.tier() == Tier::Cooperative
    }

    /// Whether the device can compute with `tier`.
    pub fn has_tier(&self, tier: Tier) -> bool {
        match tier {
            Tier::F32 => true,
            Tier::F16 => self.half(),
            Tier::Cooperative8 => self.matrices.is_some_and(|m| m.edge == 8),
            Tier::Cooperative => self.matrices.is_some_and(|m| m.edge == 16),
        }
    }

    /// What went wrong when a device that reports cooperative matrices tried them, which it then does without.
    pub fn failed_trial(&self) -> Option<&str> {
        self.failed_trial.as_deref()
    }

    /// The cooperative matrices that products run on now.
    pub fn matrices(&self) -> Option<Matrices> {
        self.matrices.filter(|_| [Tier::Cooperative, Tier::Cooperative8].contains(&self.tier()))
    }

    /// The fastest that the device has; on a CPU, which has no f16 to multiply, f32.
    pub fn best_tier(&self) -> Tier {
        let tiers = [Tier::Cooperative, Tier::Cooperative8, Tier::F16];
        let best = tiers.into_iter().find(|tier| self.has_tier(*tier) && !self.is_software());
        best.unwrap_or(Tier::F32)
    }

    /// Computes with `tier` from now on, if the device has it, else as before. Trainers made before keep what they have.
    pub fn set_tier(&self, tier: Tier) {
        if self.has_tier(tier) {
            *self.tier.lock().expect("the lock is held for a move only") = tier;
        }
    }

    /// Computes with what a recipe asks for.
    ///
    /// # Errors
    /// [`GpuError::NoTier`] where the device has it not, [`GpuError::FailedTrial`] where it turned out not to have it.
    pub fn choose(&self, kernels: Kernels) -> Result<(), GpuError> {
        let tier = match kernels {
            Kernels::Auto => self.best_tier(),
            Kernels::F32 => Tier::F32,
            Kernels::F16 => Tier::F16,
            Kernels::Cooperative if self.has_tier(Tier::Cooperative8) => Tier::Cooperative8,
            Kernels::Cooperative => Tier::Cooperative,
        };
        if let (Tier::Cooperative, Some(reason)) = (tier, &self.failed_trial) {
            return Err(GpuError::FailedTrial { device: self.info.name.clone(), reason: reason.clone() });
        }
        if !self.has_tier(tier) {
            return Err(GpuError::NoTier {
                device: self.info.name.clone(),
                wanted: tier,
                best: self.best_tier(),
            });
        }
        self.set_tier(tier);
        Ok(())
    }

    /// Lanes of a subgroup, where it is a SIMD register of a CPU that plays a GPU: shaders/simd_*.wgsl are for that.
    pub fn simd(&self) -> Option<u32> {
        self.simd.load(Ordering::Relaxed).then_some(self.info.subgroup_min_size)
    }

    /// Turns the kernels for [`Gpu::simd`] off, or on again where the device is such a CPU.
    pub fn set_simd(&self, on: bool) {
        self.simd.store(on && self.has_simd, Ordering::Relaxed);
    }

    /// Whether shaders may compute in f16.
    pub fn half(&self) -> bool {
        self.device.features().contains(wgpu::Features::SHADER_F16)
    }

    /// Sets [`Gpu::workgroups_to_fill`]: for tests of split products on any device.
    pub fn set_workgroups_to_fill(&self, workgroups: usize) {
        self.workgroups_to_fill.store(workgroups, Ordering::Relaxed);
    }

    /// Scratch of split products, made when the first product is split.
    pub(crate) fn partial_sums(&self) -> &wgpu::Buffer {
        self.partial_sums.get_or_init(|| {
            self.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("partial sums"),
                size: PARTIAL_SUMS,
                usage: wgpu::BufferUsages::STORAGE,
                mapped_at_creation: false,
            })
        })
    }

    /// Scratch of products in f16, made when the first is recorded.
    pub(crate) fn row_factors(&self) -> &wgpu::Buffer {
        self.row_factors.get_or_init(|| {
            self.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("row factors"),
                size: ROW_FACTORS,
                usage: wgpu::BufferUsages::STORAGE,
                mapped_at_creation: false,
            })
        })
    }

    /// An uninitialised (zeroed) buffer of `bytes`, rounded up to 16.
    pub fn buffer(&self, label: &str, bytes: u64) -> Result<wgpu::Buffer, GpuError> {
        self.check_size(label, bytes)?;
        Ok(self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size: bytes.max(16).next_multiple_of(16),
            usage: USAGE,
            mapped_at_creation: false,
        }))
    }

    /// A buffer that holds `data`.
    pub fn upload<T: bytemuck::Pod>(&self, label: &str, data: &[T]) -> Result<wgpu::Buffer, GpuError> {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        self.check_size(label, bytes.len() as u64)?;
        let descriptor =
            wgpu::util::BufferInitDescriptor { label: Some(label), contents: bytes, usage: USAGE };
        Ok(self.device.create_buffer_init(&descriptor))
    }

    /// A buffer of `bytes`, a multiple of 4 above 0, that `fill` writes on its way to the device: all of it, and reads nothing.
    pub fn filled_buffer(
        &self,
        label: &str,
        bytes: usize,
        fill: impl FnOnce(&mut [MaybeUninit<u8>]),
    ) -> Result<wgpu::Buffer, GpuError> {
        self.check_size(label, bytes as u64)?;
        let size = bytes as u64;
        let descriptor =
            wgpu::BufferDescriptor { label: Some(label), size, usage: USAGE, mapped_at_creation: false };
        let buffer = self.device.create_buffer(&descriptor);
        let on_the_way =
            wgpu::BufferSize::new(size).and_then(|size| self.queue.write_buffer_with(&buffer, 0, size));
        // Without one, the device has reported why.
        if let Some(mut view) = on_the_way {
            let mut place = view.slice(..);
            let (start, len) = (place.as_raw_element_ptr(), place.len());
            // SAFETY: these bytes are the view's alone as long as it is borrowed; what may be uninitialized is not read.
            fill(unsafe { std::slice::from_raw_parts_mut(start.as_ptr().cast(), len) });
        }
        Ok(buffer)
    }

    /// Sends what was uploaded so far on its way, and waits until what went before `earlier` has arrived: the memory that it
    /// passed through is free again then. The next `earlier` is what this returns.
    pub fn send_uploads(&self, earlier: Option<Submission>) -> Result<Submission, GpuError> {
        let sent = Submission(self.queue.submit([]));
        if let Some(Submission(index)) = earlier {
            self.drive(wgpu::PollType::Wait { submission_index: Some(index), timeout: None })?;
        }
        self.check()?;
        Ok(sent)
    }

    /// Overwrites the start of `buffer` before the next submission runs.
    pub fn write<T: bytemuck::Pod>(&self, buffer: &wgpu::Buffer, data: &[T]) {
        self.queue.write_buffer(buffer, 0, bytemuck::cast_slice(data));
    }

    /// Reads the first `len` values of `buffer`, after everything submitted so far.
    pub async fn read<T: bytemuck::Pod>(
        &self,
        buffer: &wgpu::Buffer,
        len: usize,
    ) -> Result<Vec<T>, GpuError> {
        self.read_at(buffer, 0, len).await
    }

    /// Reads `len` values from byte `offset` (a multiple of 4).
    pub async fn read_at<T: bytemuck::Pod>(
        &self,
        buffer: &wgpu::Buffer,
        offset: u64,
        len: usize,
    ) -> Result<Vec<T>, GpuError> {
        let bytes = (len * size_of::<T>()) as u64;
        let staging = self.staging(bytes);
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(buffer, offset, &staging.buffer, 0, bytes.next_multiple_of(4));
        self.queue.submit([encoder.finish()]);
        self.read_staging(&staging, len).await
    }

    /// The first error that the device reported since it was opened.
    pub fn check(&self) -> Result<(), GpuError> {
        match self.errors.lock().expect("the lock is held for a move only").as_ref() {
            Some(Fault::Reported(text)) => Err(GpuError::Device(text.clone())),
            Some(Fault::Lost(text)) => Err(GpuError::Lost(text.clone())),
            None => Ok(()),
        }
    }

    /// What the device reported since it was opened, which counts no more.
    fn forget_reported(&self) -> Option<String> {
        let mut errors = self.errors.lock().expect("the lock is held for a move only");
        let reported = errors.take_if(|fault| matches!(fault, Fault::Reported(_)))?;
        let Fault::Reported(text) = reported else { return None };
        Some(text)
    }

    /// Native backends make progress only when polled; a browser polls by itself.
    fn drive(&self, until: wgpu::PollType) -> Result<(), GpuError> {
        #[cfg(not(target_arch = "wasm32"))]
        self.device.poll(until).map_err(|e| GpuError::Device(e.to_string()))?;
        #[cfg(target_arch = "wasm32")]
        let _ = until;
        Ok(())
    }

    /// Maps the whole of `buffer` for the host, once the device has passed `until`.
    async fn map(
        &self,
        buffer: &wgpu::Buffer,
        mode: wgpu::MapMode,
        until: wgpu::PollType,
    ) -> Result<(), GpuError> {
        let (sender, receiver) = futures_channel::oneshot::channel();
        buffer.slice(..).map_async(mode, move |result| {
            let _ = sender.send(result);
        });
        self.drive(until)?;
        let mapped = receiver.await.map_err(|_| GpuError::Device("a mapped buffer was dropped".into()))?;
        self.check()?;
        mapped.map_err(|e| GpuError::Device(e.to_string()))
    }

    fn check_size(&self, label: &str, bytes: u64) -> Result<(), GpuError> {
        self.check()?;
        let allowed = self.limits.max_buffer_size.min(self.limits.max_storage_buffer_binding_size);
        if bytes > allowed {
            return Err(GpuError::TooLarge {
                name: label.into(),
                needed: bytes,
                allowed,
                device: self.info.name.clone(),
            });
        }
        Ok(())
    }
}

/// Bytes of scratch for split products.
pub(crate) const PARTIAL_SUMS: u64 = 64 << 20;

/// Bytes of scratch for the factors of a product's rows: those of a million.
const ROW_FACTORS: u64 = 4 << 20;

const COOPERATIVE: wgpu::Features = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX
    .union(wgpu::Features::SHADER_F16)
    .union(wgpu::Features::SUBGROUP)
    .union(wgpu::Features::SUBGROUP_BARRIER);

/// What the adapter reports, as far as there are shaders for it: for shaders/coop_*.wgsl 16×16 with subgroups of 32, 32 KiB of
/// workgroup memory and ten storage buffers, for shaders/coop8_*.wgsl 8×8 with subgroups of one known size.
fn cooperative_matrices(adapter: &wgpu::Adapter) -> Option<Matrices> {
    let (info, limits) = (adapter.get_info(), adapter.limits());
    let has = |edge: u32| {
        let fits = |p: &wgpu::CooperativeMatrixProperties| {
            [p.m_size, p.n_size, p.k_size] == [edge; 3]
                && p.ab_type == wgpu::CooperativeScalarType::F16
                && p.cr_type == wgpu::CooperativeScalarType::F32
        };
        adapter.features().contains(COOPERATIVE) && adapter.cooperative_matrix_properties().iter().any(fits)
    };
    let lanes = match info.backend {
        // wgpu does not know it there. Apple's GPUs have 32; it takes AMD's and Intel's for ones with such matrices, too.
        wgpu::Backend::Metal => info.name.starts_with("Apple").then_some(32),
        _ => Some(info.subgroup_min_size).filter(|lanes| *lanes == info.subgroup_max_size),
    }?;
    let wide = limits.max_compute_workgroup_storage_size >= 32 << 10
        && limits.max_storage_buffers_per_shader_stage >= 10;
    if has(16) && lanes == 32 && wide {
        return Some(Matrices { edge: 16, lanes });
    }
    (has(8) && [4, 8, 16, 32, 64].contains(&lanes)).then_some(Matrices { edge: 8, lanes })
}

/// Whether the device is a CPU with what shaders/simd_*.wgsl take: subgroups of one known size, nine storage buffers.
fn is_simd(adapter: &wgpu::Adapter) -> bool {
    let info = adapter.get_info();
    info.device_type == wgpu::DeviceType::Cpu
        && adapter.features().contains(wgpu::Features::SUBGROUP)
        && info.subgroup_min_size == info.subgroup_max_size
        && [4, 8, 16].contains(&info.subgroup_min_size)
        && adapter.limits().max_storage_buffers_per_shader_stage >= 9
}

const USAGE: wgpu::BufferUsages =
    wgpu::BufferUsages::STORAGE.union(wgpu::BufferUsages::COPY_SRC).union(wgpu::BufferUsages::COPY_DST);

/// What the device said, with the next step where there is one.
fn describe(error: &wgpu::Error) -> String {
    match error {
        wgpu::Error::OutOfMemory { .. } => "out of memory; set train.gradient_checkpointing = true, lower \
            data.max_seq_len, train.batch_size or lora.rank (for replies: --context), or close what else uses the GPU"
            .into(),
        other => other.to_string(),
    }
}

fn remember(slot: &Mutex<Option<Fault>>, fault: Fault) {
    slot.lock().expect("the lock is held for a move only").get_or_insert(fault);
}

/// The one that a browser thinks the fastest: it shows no others.
#[cfg(target_arch = "wasm32")]
async fn adapters(instance: &wgpu::Instance, _backends: wgpu::Backends) -> Vec<wgpu::Adapter> {
    let power_preference = wgpu::PowerPreference::HighPerformance;
    let options = wgpu::RequestAdapterOptions { power_preference, ..Default::default() };
    instance.request_adapter(&options).await.into_iter().collect()
}

#[cfg(not(target_arch = "wasm32"))]
async fn adapters(instance: &wgpu::Instance, backends: wgpu::Backends) -> Vec<wgpu::Adapter> {
    instance.enumerate_adapters(backends).await
}

async fn pick_adapter(backend: Backend, name: Option<&str>) -> Result<wgpu::Adapter, GpuError> {
    let backends = match backend {
        Backend::Auto => wgpu::Backends::all(),
        Backend::Vulkan => wgpu::Backends::VULKAN,
        Backend::Metal => wgpu::Backends::METAL,
        Backend::Dx12 => wgpu::Backends::DX12,
    };
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let mut adapters = adapters(&instance, backends).await;
    if adapters.is_empty() {
        return Err(GpuError::NoDevice);
    }
    if let Some(wanted) = name {
        let names: Vec<String> = adapters.iter().map(|a| a.get_info().name).collect();
        adapters.retain(|a| a.get_info().name.to_lowercase().contains(&wanted.to_lowercase()));
        if adapters.is_empty() {
            return Err(GpuError::NotNamed { wanted: wanted.into(), found: names.join(", ") });
        }
    }
    adapters.sort_by_key(|a| match a.get_info().device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    });
    adapters.into_iter().next().ok_or(GpuError::NoDevice)
}
