//! A device as every command opens it: with the pipelines that earlier commands compiled.

use std::ops::Deref;
use std::sync::Mutex;

use pollster::block_on;
use rullama_train::gpu::{Backend, Gpu, GpuError, KernelSetting};

use super::pipeline_cache::PipelineCache;

/// An open device. Dropping it saves the compiled pipelines.
pub struct Device {
    gpu: Gpu,
    pipelines: Mutex<PipelineCache>,
}

impl Device {
    /// Opens the GPU with [`Gpu::open`] to run the kernels of `setting`, and loads the pipelines that are cached for it.
    pub fn open(
        backend: Backend,
        name: Option<&str>,
        webgpu_limits: bool,
        setting: KernelSetting,
    ) -> Result<Device, GpuError> {
        let gpu = block_on(Gpu::open(backend, name, webgpu_limits))?.running(setting)?;
        let pipelines = Mutex::new(PipelineCache::open(&gpu));
        Ok(Device { gpu, pipelines })
    }

    /// Saves the pipelines that were compiled so far. For commands that run long and may be killed.
    pub fn keep_pipelines(&self) {
        self.pipelines.lock().expect("lock is not poisoned").save(&self.gpu);
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
