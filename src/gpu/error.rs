//! What can go wrong on a device, and what it reported.

use std::sync::Mutex;

use super::{Gpu, Tier};
use crate::words;

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
        "no GPU has a name that contains \"{wanted}\"; found: {found}. Name one of these in device.gpu or with --gpu"
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
    Base(crate::base::Error),
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
pub(super) enum Fault {
    Reported(String),
    Lost(String),
}

impl Gpu {
    /// The first error that the device reported since it was opened.
    pub fn check(&self) -> Result<(), GpuError> {
        match self.errors.lock().expect("the lock is held for a move only").as_ref() {
            Some(Fault::Reported(text)) => Err(GpuError::Device(text.clone())),
            Some(Fault::Lost(text)) => Err(GpuError::Lost(text.clone())),
            None => Ok(()),
        }
    }

    /// What the device reported since it was opened, which counts no more.
    pub(super) fn forget_reported(&self) -> Option<String> {
        let mut errors = self.errors.lock().expect("the lock is held for a move only");
        let reported = errors.take_if(|fault| matches!(fault, Fault::Reported(_)))?;
        let Fault::Reported(text) = reported else { return None };
        Some(text)
    }
}

/// What the device said, with the next step where there is one.
pub(super) fn describe(error: &wgpu::Error) -> String {
    match error {
        wgpu::Error::OutOfMemory { .. } => "out of memory; set train.gradient_checkpointing = true, lower \
            data.max_seq_len, train.batch_size or lora.rank (for replies: --context), or close what else uses the GPU"
            .into(),
        other => other.to_string(),
    }
}

pub(super) fn remember(slot: &Mutex<Option<Fault>>, fault: Fault) {
    slot.lock().expect("the lock is held for a move only").get_or_insert(fault);
}
