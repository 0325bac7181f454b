//! The backend and the kernels that a recipe can choose.

use serde::{Deserialize, Serialize};

/// Which kernels a device runs, as `device.kernels` of a recipe asks for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelSetting {
    /// The fastest that the device supports, with long products, attention and delta nets in CUDA where it can run.
    Auto,
    /// Everything in f32.
    F32,
    /// Products and attention with operands in f16.
    F16,
    /// Products and attention on cooperative matrices, with operands in f16; no product in CUDA.
    Cooperative,
}

/// The graphics interface that reaches the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// Any that the machine has.
    Auto,
    /// Vulkan.
    Vulkan,
    /// Metal.
    Metal,
    /// Direct3D 12.
    Dx12,
}
