//! The likeliest token of a row of logits, and the likeliest tokens of many rows.

pub mod top;

use crate::gpu::{Binding, Gpu, GpuError, Kernel, Recorder};
use crate::ops::Rows;

/// Twin of `Params` in shaders/argmax/plain.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    count: u32,
    groups: u32,
}

/// Maximum number of workgroups in the first pass.
const MAX_GROUPS: usize = 256;

/// The largest value of a row and its index.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct Likeliest {
    /// The index, the first one among equals; 0 if there is none.
    pub index: u32,
    /// The value; at most -3.4e38 if no value is a number.
    pub value: f32,
}

impl Likeliest {
    /// Whether there is a finite value.
    pub fn is_finite(&self) -> bool {
        self.value.is_finite() && self.value > -3.4e38
    }
}

/// The buffers of the two passes.
pub struct Argmax {
    shares: wgpu::Buffer,
    /// One [`Likeliest`].
    pub result: wgpu::Buffer,
}

impl Argmax {
    /// Allocates buffers for rows of any length.
    pub fn new(gpu: &Gpu) -> Result<Argmax, GpuError> {
        let bytes = size_of::<Likeliest>() as u64;
        Ok(Argmax {
            shares: gpu.buffer("shares of the likeliest", MAX_GROUPS as u64 * bytes)?,
            result: gpu.buffer("likeliest", bytes)?,
        })
    }

    /// Finds the largest of the first `count` elements of `values` and stores it in [`Argmax::result`].
    pub fn forward(&self, rec: &mut Recorder, values: &Rows, count: usize) {
        // Each thread reads about sixteen values.
        let groups = count.div_ceil(64 * 16).clamp(1, MAX_GROUPS);
        let params = Params { count: count as u32, groups: groups as u32 };
        let bound = |index, buffer| Binding { index, buffer, range: None };
        let shares = bound(2, &self.shares);
        let bindings = [values.bind(1), shares];
        rec.dispatch(Kernel::new("argmax/plain", "forward"), &params, &bindings, [groups as u32, 1, 1]);
        let bindings = [shares, bound(3, &self.result)];
        rec.dispatch(Kernel::new("argmax/plain", "finish"), &params, &bindings, [1, 1, 1]);
    }
}
