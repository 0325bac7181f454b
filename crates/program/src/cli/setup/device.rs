//! A device as every command opens it: with the pipelines that earlier commands compiled.

use std::ops::Deref;
use std::sync::Mutex;

use anyhow::Result;
use pollster::block_on;
use rullama_train::gpu::{Gpu, GpuOptions, KernelSetting};
use serde_json::Value;

use super::first_use;
use super::pipeline_cache::PipelineCache;
use crate::cli::fault;

/// An open device. Dropping it saves the compiled pipelines.
pub struct Device {
    gpu: Gpu,
    pipelines: Mutex<PipelineCache>,
}

impl Device {
    /// Opens the GPU with [`Gpu::open`] to run the kernels of `setting` that its self-test passed, and loads the pipelines that are
    /// cached for it. Several processes on this host share its memory evenly.
    pub fn open(options: GpuOptions, setting: KernelSetting) -> Result<Device> {
        let place = options.place;
        let gpu = block_on(Gpu::open(options))?;
        if place.size > 1
            && let Some(bytes) = gpu.host_memory()
        {
            gpu.set_host_memory(bytes / place.size as u64);
        }
        fault::of_device(&gpu);
        let pipelines = Mutex::new(PipelineCache::open(&gpu));
        Ok(Device { gpu: first_use::choose(gpu, setting)?, pipelines })
    }

    /// Opens the GPU with [`Gpu::open`] to run the kernels of `setting`, whatever its self-test found.
    pub fn open_untested(options: GpuOptions, setting: KernelSetting) -> Result<Device> {
        let gpu = block_on(Gpu::open(options))?.running(setting)?;
        let pipelines = Mutex::new(PipelineCache::open(&gpu));
        Ok(Device { gpu, pipelines })
    }

    /// The device with the kernels of `run`, the contents of its `run.json`, if that was on this device: a resumed run goes on with them,
    /// whatever `auto` takes by now.
    pub fn keeping(mut self, run: &Value) -> Device {
        let mut all = self.gpu.all_kernels().into_iter();
        let is_own = run["device"] == self.gpu.description();
        if let Some(kept) = all.find(|kernels| is_own && run["kernels"] == kernels.to_string()) {
            self.gpu = self.gpu.with_kernels(kept);
        }
        self
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
