//! The device as every command opens it: with the pipelines that earlier commands compiled, and keeping its own for later ones.

use std::ops::Deref;
use std::sync::Mutex;

use pollster::block_on;
use rullama_train::gpu::{Backend, Gpu, GpuError};

use super::pipelines::Pipelines;

/// An open device, whose pipelines are kept when it is dropped.
pub struct Device {
    gpu: Gpu,
    pipelines: Mutex<Pipelines>,
}

impl Device {
    /// [`Gpu::open`], and then what an earlier command kept for this device.
    pub fn open(backend: Backend, name: Option<&str>, webgpu_limits: bool) -> Result<Device, GpuError> {
        let gpu = block_on(Gpu::open(backend, name, webgpu_limits))?;
        let pipelines = Mutex::new(Pipelines::open(&gpu));
        Ok(Device { gpu, pipelines })
    }

    /// Keeps what was compiled so far: for commands that run long, and may be killed.
    pub fn keep_pipelines(&self) {
        self.pipelines.lock().expect("held here only").keep(&self.gpu);
    }
}

impl Deref for Device {
    type Target = Gpu;

    fn deref(&self) -> &Gpu {
        &self.gpu
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.keep_pipelines();
    }
}
