//! Platforms without CUDA.

use std::ffi::CStr;

use super::{GpuError, Launch};

/// The CUDA side of a device: there is none.
pub(super) enum Cuda {}

/// The time of one launch: there is none.
pub(super) enum Timer {}

impl Cuda {
    pub fn open(
        _adapter: &wgpu::Adapter,
        _descriptor: &wgpu::DeviceDescriptor,
    ) -> Option<(wgpu::Device, wgpu::Queue, Cuda)> {
        None
    }

    pub fn buffer(
        &self,
        _device: &wgpu::Device,
        _descriptor: &wgpu::BufferDescriptor,
    ) -> Result<wgpu::Buffer, GpuError> {
        match *self {}
    }

    pub fn allocated_bytes(&self) -> u64 {
        match *self {}
    }

    pub fn prepare(&self, _module: &'static CStr) -> Result<(), String> {
        match *self {}
    }

    pub fn run(
        &self,
        _queue: &wgpu::Queue,
        _launches: &[&Launch],
        _timed: bool,
    ) -> Result<Vec<Timer>, String> {
        match *self {}
    }
}

impl Timer {
    pub fn seconds(&self) -> f64 {
        match *self {}
    }
}
