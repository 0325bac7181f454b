//! Platforms without CUDA.

use super::{Entry, Launch, MatrixInstructions};

/// A device of CUDA: there is none.
pub(super) enum Cuda {}

/// Commands that run again and again.
pub(super) enum Graph {}

impl Cuda {
    pub fn of(_adapter: &wgpu::Adapter, _device: &wgpu::Device) -> Option<Cuda> {
        None
    }

    pub fn matrix_instructions(&self) -> Option<MatrixInstructions> {
        match *self {}
    }

    pub fn repeats(&self, _encoder: &wgpu::CommandEncoder) {
        match *self {}
    }

    pub fn graph(&self, _encoder: &wgpu::CommandEncoder) -> Graph {
        match *self {}
    }

    pub fn replay(&self, _encoder: &wgpu::CommandEncoder, _graph: &Graph) {
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
        _encoder: &wgpu::CommandEncoder,
        _launch: &Launch,
        _timer: Option<wgpu::ComputePassTimestampWrites>,
    ) {
        match *self {}
    }
}
