//! Platforms without CUDA's kernels.

use super::{Entry, GpuError, Launch};

/// A device's side of CUDA's kernels: there is none.
pub(super) enum Cuda {}

/// Times of launches: there are none.
pub(super) enum Timers {}

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
    ) -> Option<Result<wgpu::Buffer, GpuError>> {
        match *self {}
    }

    pub fn allocated_bytes(&self) -> u64 {
        match *self {}
    }

    pub fn multiprocessors(&self) -> usize {
        match *self {}
    }

    pub fn prepare(&self, _entry: Entry) -> Result<(), String> {
        match *self {}
    }

    pub fn record(
        &self,
        _encoder: &mut wgpu::CommandEncoder,
        _launches: &[&Launch],
        _timed: bool,
    ) -> Result<Option<Timers>, String> {
        match *self {}
    }
}

impl Timers {
    pub fn read(&self) -> Vec<(&'static str, u64, u64)> {
        match *self {}
    }
}
