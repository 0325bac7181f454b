//! Global gradient norm, clipping and the optimizer step, without a read-back in between.

use crate::gpu::{Binding, Gpu, GpuError, Kernel, Recorder, grid};

/// Gradients / 4 that one workgroup of shaders/adamw/grad_norm.wgsl sums.
const STRIPE: u64 = 4096;

/// Twin of `Params` in shaders/adamw/grad_norm.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct NormParams {
    count4: u32,
    offset: u32,
    max_norm: f32,
}

/// Twin of `Params` in shaders/adamw/plain.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct StepParams {
    count: u32,
    learning_rate: f32,
    beta1: f32,
    beta2: f32,
    one_minus_beta1: f32,
    one_minus_beta2: f32,
    epsilon: f32,
    weight_decay: f32,
    bias_correction1: f32,
    bias_correction2_sqrt: f32,
}

/// Adam's constants (Kingma & Ba 2015), as torch names them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// ε under the root's sum.
    pub epsilon: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

/// The figures of a step, which the host reads at once.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct ClipState {
    /// Global norm of all gradients before clipping.
    pub norm: f32,
    /// The factor that clips the gradients.
    pub factor: f32,
    /// 1 where the norm and every loss row are finite; at 0 the optimizer moves nothing.
    pub finite: f32,
    /// Rows whose target is the likeliest token: [`crate::ops::row_status::tally`].
    pub right: f32,
    /// Rows that are not finite.
    pub not_finite: f32,
    /// L2 norm of the update: [`crate::ops::update_norm`].
    pub update_norm: f32,
    /// L2 norm of the parameters after it.
    pub parameter_norm: f32,
    unused: f32,
}

/// Scratch of the norm: partial sums, and norm, factor and finiteness.
pub struct Clip {
    partials: wgpu::Buffer,
    /// [`ClipState`].
    pub state: wgpu::Buffer,
}

impl Clip {
    /// For gradient buffers of these many bytes.
    pub fn new(gpu: &Gpu, bytes: impl Iterator<Item = u64>) -> Result<Clip, GpuError> {
        let partials: u64 = bytes.map(|b| (b / 16).div_ceil(STRIPE)).sum();
        Ok(Clip {
            partials: gpu.buffer("gradient norm sums", partials * 4)?,
            state: gpu.buffer("gradient norm", size_of::<ClipState>() as u64)?,
        })
    }

    /// The norm over all `gradients`, and the factor that clips it to `max_norm` (0: none).
    pub fn norm(&self, rec: &mut Recorder, gradients: &[wgpu::Buffer], max_norm: f64) {
        let mut offset = 0;
        for buffer in gradients {
            let count4 = buffer.size() / 16;
            let params = NormParams { count4: count4 as u32, offset, max_norm: 0.0 };
            let groups = count4.div_ceil(STRIPE) as u32;
            let bindings = [bind(1, buffer), bind(2, &self.partials)];
            rec.dispatch(Kernel::new("adamw/grad_norm", "partial_sums"), &params, &bindings, [groups, 1, 1]);
            offset += groups;
        }
        let params = NormParams { count4: offset, offset: 0, max_norm: max_norm as f32 };
        let bindings = [bind(2, &self.partials), bind(3, &self.state)];
        rec.dispatch(Kernel::new("adamw/grad_norm", "finish"), &params, &bindings, [1, 1, 1]);
    }
}

/// One buffer of parameters with what belongs to it.
pub struct Shard<'a> {
    /// Updated.
    pub parameters: &'a wgpu::Buffer,
    /// Read, clipped.
    pub gradients: &'a wgpu::Buffer,
    /// First moment, updated.
    pub first: &'a wgpu::Buffer,
    /// Second moment, updated.
    pub second: &'a wgpu::Buffer,
}

/// AdamW, `step` counted from 1.
pub fn adamw(rec: &mut Recorder, shard: &Shard, clip: &Clip, adam: &AdamW, learning_rate: f64, step: u64) {
    let params = StepParams {
        count: (shard.parameters.size() / 4) as u32,
        learning_rate: learning_rate as f32,
        beta1: adam.beta1 as f32,
        beta2: adam.beta2 as f32,
        one_minus_beta1: (1.0 - adam.beta1) as f32,
        one_minus_beta2: (1.0 - adam.beta2) as f32,
        epsilon: adam.epsilon as f32,
        weight_decay: adam.weight_decay as f32,
        bias_correction1: (1.0 - adam.beta1.powf(step as f64)) as f32,
        bias_correction2_sqrt: (1.0 - adam.beta2.powf(step as f64)).sqrt() as f32,
    };
    let bindings = [
        bind(1, &clip.state),
        bind(2, shard.gradients),
        bind(3, shard.parameters),
        bind(4, shard.first),
        bind(5, shard.second),
    ];
    let workgroups = grid((params.count as usize).div_ceil(64));
    rec.dispatch(Kernel::new("adamw/plain", "adamw"), &params, &bindings, workgroups);
}

/// Plain gradient descent with torch's (coupled) weight decay.
pub fn sgd(rec: &mut Recorder, shard: &Shard, clip: &Clip, weight_decay: f64, learning_rate: f64) {
    let params = StepParams {
        count: (shard.parameters.size() / 4) as u32,
        learning_rate: learning_rate as f32,
        beta1: 0.0,
        beta2: 0.0,
        one_minus_beta1: 1.0,
        one_minus_beta2: 1.0,
        epsilon: 0.0,
        weight_decay: weight_decay as f32,
        bias_correction1: 1.0,
        bias_correction2_sqrt: 1.0,
    };
    let bindings = [bind(1, &clip.state), bind(2, shard.gradients), bind(3, shard.parameters)];
    let workgroups = grid((params.count as usize).div_ceil(64));
    rec.dispatch(Kernel::new("adamw/plain", "sgd"), &params, &bindings, workgroups);
}

fn bind(index: u32, buffer: &wgpu::Buffer) -> Binding<'_> {
    Binding { index, buffer, range: None }
}
