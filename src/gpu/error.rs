//! Errors of a device, and those that it reported.

use std::sync::{Arc, Mutex};

use super::{Gpu, Tier};
use crate::words;

/// Whether the program can load no library while it runs, so that it finds no driver: musl's loader is not in a static program.
pub(super) const IS_STATIC: bool = cfg!(all(target_env = "musl", target_feature = "crt-static"));

/// Why there is no device, and what to do.
const NO_DRIVER: &str = if IS_STATIC {
    "this program is linked statically, and such a program can load no driver. Install it by pip or the install script, or build it with \
     RUSTFLAGS=\"-C target-feature=-crt-static\""
} else {
    "no driver answered. Install a Vulkan driver (Debian and Ubuntu: `apt-get install mesa-vulkan-drivers` gives a software device, Alpine: \
     `apk add vulkan-loader mesa-vulkan-swrast`)"
};

/// An error of a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// There is no device.
    #[error("no GPU found: {NO_DRIVER}")]
    NoDevice,
    /// There is no device, and CUDA cannot be used though there is a GPU for it.
    #[error("no GPU found: no driver of Vulkan answered, and CUDA cannot be used: {reason}")]
    NoDeviceNorCuda {
        /// The reason.
        reason: String,
    },
    /// CUDA was asked for and cannot be used.
    #[error("CUDA cannot be used: {reason}")]
    NoCuda {
        /// The reason.
        reason: String,
    },
    /// There are fewer devices than processes on this host.
    #[error(
        "{processes} processes were started on this host, which has {found} GPUs of the kind that they would use; start at most {found} \
         per host"
    )]
    TooFew {
        /// Devices of the best kind.
        found: usize,
        /// Processes on the host.
        processes: usize,
    },
    /// No device has the wanted name.
    #[error("no GPU has a name that contains \"{wanted}\"; found: {found}")]
    NotNamed {
        /// The part of a name that was asked for.
        wanted: String,
        /// The names of the devices, separated by commas.
        found: String,
    },
    /// The driver refused to open the device.
    #[error("{adapter} refused to open: {source}")]
    Refused {
        /// The device's name.
        adapter: String,
        /// The driver's reason.
        source: wgpu::RequestDeviceError,
    },
    /// A buffer is larger than the device allows.
    #[error("{name} needs a buffer of {needed} bytes, {device} allows {allowed}")]
    TooLarge {
        /// The label of the buffer.
        name: String,
        /// Its size.
        needed: u64,
        /// The device's limit.
        allowed: u64,
        /// The device.
        device: String,
    },
    /// A matrix of the LoRA adapter is larger than a binding.
    #[error(
        "{module} of layer {layer} needs {needed} bytes for one matrix of its adapter, {device} allows {allowed}"
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
    /// A plan exceeds its memory limit even with every layer recomputed.
    #[error("{needed} bytes are needed with every layer recomputed, and {limit} are allowed")]
    OverLimit {
        /// Bytes that the plan needs.
        needed: u64,
        /// The memory limit in bytes.
        limit: u64,
    },
    /// The device cannot copy to memory of the host.
    #[error("{device} cannot copy inputs of layers to host memory and back")]
    NoHostBuffers {
        /// The device and its interface.
        device: String,
    },
    /// The matrices that stay off the device do not fit into host memory.
    #[error(
        "the matrices of {layers} layers need {} of host memory, {} are available",
        words::bytes(*.needed), words::bytes(*.available)
    )]
    HostMemory {
        /// Layers whose matrices stay in host memory.
        layers: usize,
        /// Bytes that they need.
        needed: u64,
        /// Bytes that are available.
        available: u64,
    },
    /// The data for a buffer could not be read.
    #[error(transparent)]
    Read(Box<dyn std::error::Error + Send + Sync>),
    /// The device's shaders cannot convert f32 to f16 and back, as those of llvmpipe on CPUs for which it has no f16.
    #[error("{device} cannot convert f32 to f16 in shaders, which all kernels do")]
    NoConversion {
        /// The device.
        device: String,
    },
    /// The device does not support the wanted kernels.
    #[error("{device} does not support {wanted} kernels; its best is {best}")]
    NoTier {
        /// The device.
        device: String,
        /// The kernels that were asked for.
        wanted: Tier,
        /// The best that the device supports.
        best: Tier,
    },
    /// The device reports cooperative matrices, but failed the self-test on them.
    #[error("{device} has cooperative matrices, but its self-test on them failed: {reason}")]
    FailedSelfTest {
        /// The device.
        device: String,
        /// Why it failed.
        reason: String,
    },
    /// The device reported that its memory is used up.
    #[error("the GPU reported an error: {OUT_OF_MEMORY}")]
    OutOfMemory,
    /// The device reported an error.
    #[error("the GPU reported an error: {0}")]
    Device(String),
    /// The device is gone: its driver failed, or the system or the browser took it away.
    #[error("the GPU was lost: {0}; open it again and resume from the last checkpoint")]
    Lost(String),
}

impl GpuError {
    /// Wraps the error of reading the data for a buffer.
    pub(crate) fn read(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> GpuError {
        GpuError::Read(error.into())
    }
}

/// An error that the device reported on its own.
#[derive(Clone)]
pub(super) enum Fault {
    OutOfMemory,
    Reported(String),
    Lost(String),
}

impl Gpu {
    /// Returns the first error that the device reported since it was opened.
    pub fn check(&self) -> Result<(), GpuError> {
        let fault = || self.errors.lock().expect("lock is not poisoned").clone();
        if let Some(Fault::Reported(_) | Fault::OutOfMemory) = fault() {
            self.settle();
        }
        match fault() {
            Some(Fault::OutOfMemory) => Err(GpuError::OutOfMemory),
            Some(Fault::Reported(text)) => Err(GpuError::Device(text)),
            Some(Fault::Lost(text)) => Err(GpuError::Lost(text)),
            None => Ok(()),
        }
    }

    /// Reports `error` as the device's own, unless an earlier one is there.
    pub(super) fn report(&self, error: String) {
        self.errors.lock().expect("lock is not poisoned").get_or_insert(Fault::Reported(error));
    }

    /// Waits for what was submitted. A loss, of which other errors are consequences, is reported only then.
    pub(super) fn settle(&self) {
        let timeout = Some(std::time::Duration::from_secs(5));
        let _ = self.drive(wgpu::PollType::Wait { submission_index: None, timeout });
    }

    /// Takes the error that the device reported since it was opened: [`Gpu::check`] ignores it from now on. A loss stays.
    pub fn take_reported(&self) -> Option<String> {
        let mut errors = self.errors.lock().expect("lock is not poisoned");
        match errors.take_if(|fault| !matches!(fault, Fault::Lost(_)))? {
            Fault::OutOfMemory => Some(OUT_OF_MEMORY.into()),
            Fault::Reported(text) => Some(text),
            Fault::Lost(_) => None,
        }
    }
}

/// The words for an allocation that the device refused.
const OUT_OF_MEMORY: &str = "out of memory";

/// Joins the lines of a driver's text.
pub(super) fn one_line(text: &str) -> String {
    text.split('\n').map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Keeps the first error that the device reports on its own, or its loss.
pub(super) fn watch(device: &wgpu::Device) -> Arc<Mutex<Option<Fault>>> {
    let errors = Arc::new(Mutex::new(None));
    let (reported, lost) = (errors.clone(), errors.clone());
    device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
        let fault = match error {
            wgpu::Error::OutOfMemory { .. } => Fault::OutOfMemory,
            other => Fault::Reported(one_line(&other.to_string())),
        };
        reported.lock().expect("lock is not poisoned").get_or_insert(fault);
    }));
    device.set_device_lost_callback(move |_, text| {
        // Other errors followed from the loss.
        let text = if text.is_empty() { "the driver gave no reason".into() } else { one_line(&text) };
        *lost.lock().expect("lock is not poisoned") = Some(Fault::Lost(text));
    });
    errors
}
