//! The backend and the kernels that a recipe can choose, and CUDA as a backend, for which wgpu has no name.

use serde::{Deserialize, Serialize};

/// Which kernels a device runs, as `device.kernels` of a recipe asks for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelSetting {
    /// The fastest that the device supports, with long products, attention and delta nets in CUDA where it can run.
    #[default]
    Auto,
    /// Everything in f32.
    F32,
    /// Products and attention with operands in f16.
    F16,
    /// Products and attention on cooperative matrices, with operands in f16; no product in CUDA.
    Cooperative,
}

/// The graphics interface that reaches the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// The one that reaches the best device.
    #[default]
    Auto,
    /// CUDA, on NVIDIA's GPUs.
    Cuda,
    /// Vulkan.
    Vulkan,
    /// Metal.
    Metal,
    /// Direct3D 12.
    Dx12,
}

/// NVIDIA's number as a vendor.
pub(super) const NVIDIA: u32 = 0x10de;
/// AMD's number as a vendor.
pub(super) const AMD: u32 = 0x1002;
/// Intel's number as a vendor.
pub(super) const INTEL: u32 = 0x8086;
/// Qualcomm's number as a vendor.
pub(super) const QUALCOMM: u32 = 0x5143;

impl Backend {
    /// The backends of wgpu; none for CUDA.
    pub(super) fn of_wgpu(self) -> wgpu::Backends {
        match self {
            Backend::Auto => wgpu::Backends::all(),
            Backend::Cuda => wgpu::Backends::empty(),
            Backend::Vulkan => wgpu::Backends::VULKAN,
            Backend::Metal => wgpu::Backends::METAL,
            Backend::Dx12 => wgpu::Backends::DX12,
        }
    }
}

/// Whether the adapter is one of CUDA's: they alone have wgpu's backend without an interface.
pub(super) fn is_cuda(info: &wgpu::AdapterInfo) -> bool {
    info.backend == wgpu::Backend::Noop
}

/// The name of the interface that reaches the device.
pub(super) fn interface(info: &wgpu::AdapterInfo) -> String {
    if is_cuda(info) { "CUDA".into() } else { format!("{:?}", info.backend) }
}

/// CUDA's devices, or why there are none: on one line.
#[cfg(has_cuda)]
pub(super) fn cuda_adapters() -> Result<Vec<wgpu::Adapter>, String> {
    wgpu_cuda::adapters().map_err(|reason| reason.to_string())
}

#[cfg(not(has_cuda))]
pub(super) fn cuda_adapters() -> Result<Vec<wgpu::Adapter>, String> {
    Err("this platform has none: it needs Linux or Windows".into())
}

/// Whether the machine has a GPU of NVIDIA's, with or without a driver; `false` where the system does not tell.
pub(super) fn has_nvidia_gpu() -> bool {
    let read =
        |folder: &std::path::Path, file: &str| std::fs::read_to_string(folder.join(file)).unwrap_or_default();
    let devices = std::fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten();
    devices.map(|device| device.path()).any(|device| {
        // 0x03: displays, which GPUs of servers are too.
        read(&device, "vendor").trim() == "0x10de" && read(&device, "class").starts_with("0x03")
    })
}
