//! Norm of the last optimizer step's update of the adapter, beside the norm of the adapter.

use crate::gpu::{Binding, Gpu, GpuError, Kernel, Recorder};
use crate::ops::adamw::{AdamW, Clip, Shard};

/// Parameters / 4 that one workgroup of shaders/update_norm/plain.wgsl sums.
const STRIPE: u64 = 4096;

/// Twin of `Params` in shaders/update_norm/plain.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    count4: u32,
    offset: u32,
    rate: f32,
    bias_correction2_sqrt: f32,
    epsilon: f32,
    decay: f32,
}

/// The optimizer step that was taken.
#[derive(Clone, Copy, Debug)]
pub struct Taken<'a> {
    /// `None` for plain gradient descent.
    pub adam: Option<&'a AdamW>,
    /// Weight decay of the optimizer.
    pub weight_decay: f64,
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// Adam's count, from 1.
    pub update: u64,
}

/// Scratch of the two norms.
pub struct UpdateNorm {
    partials: wgpu::Buffer,
}

impl UpdateNorm {
    /// For parameter buffers of these many bytes.
    pub fn new(gpu: &Gpu, bytes: impl Iterator<Item = u64>) -> Result<UpdateNorm, GpuError> {
        let pairs: u64 = bytes.map(|b| (b / 16).div_ceil(STRIPE)).sum();
        Ok(UpdateNorm { partials: gpu.buffer("update norm sums", pairs * 8)? })
    }

    /// Puts the norm of the update and that of the parameters into `clip`. Must run after the optimizer, while
    /// gradients and moments are those that it read and wrote.
    pub fn record(&self, rec: &mut Recorder, shards: &[Shard], clip: &Clip, taken: &Taken) {
        let Taken { adam, weight_decay, learning_rate, update } = *taken;
        let correction = |beta: f64| 1.0 - beta.powf(update as f64);
        let mut offset = 0;
        for shard in shards {
            let count4 = shard.parameters.size() / 16;
            let params = Params {
                count4: count4 as u32,
                offset,
                rate: adam.map_or(learning_rate, |a| learning_rate / correction(a.beta1)) as f32,
                bias_correction2_sqrt: adam.map_or(1.0, |a| correction(a.beta2).sqrt()) as f32,
                epsilon: adam.map_or(0.0, |a| a.epsilon) as f32,
                decay: (learning_rate * weight_decay) as f32,
            };
            let (parameters, partials) = (bind(3, shard.parameters), bind(6, &self.partials));
            let groups = count4.div_ceil(STRIPE) as u32;
            match adam {
                Some(_) => {
                    let bindings = [parameters, bind(4, shard.first), bind(5, shard.second), partials];
                    rec.dispatch(
                        Kernel::new("update_norm/plain", "adamw"),
                        &params,
                        &bindings,
                        [groups, 1, 1],
                    );
                }
                None => {
                    let bindings = [bind(1, &clip.state), bind(2, shard.gradients), parameters, partials];
                    rec.dispatch(Kernel::new("update_norm/plain", "sgd"), &params, &bindings, [groups, 1, 1]);
                }
            }
            offset += groups;
        }
        let zero = Params {
            count4: offset,
            offset: 0,
            rate: 0.0,
            bias_correction2_sqrt: 0.0,
            epsilon: 0.0,
            decay: 0.0,
        };
        let bindings = [bind(1, &clip.state), bind(6, &self.partials)];
        rec.dispatch(Kernel::new("update_norm/plain", "finish"), &zero, &bindings, [1, 1, 1]);
    }
}

fn bind(index: u32, buffer: &wgpu::Buffer) -> Binding<'_> {
    Binding { index, buffer, range: None }
}
