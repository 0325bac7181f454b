//! Gradients that are not finite.

use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::gpu::Gpu;
use rullama_train::ops::adamw::{self, AdamW, Clip, ClipState, Shard};
use rullama_train::ops::update_norm::{Taken, UpdateNorm};

use super::check::{Outcome, run, values};

/// A weight decay of the same order as the steps.
const ADAM: AdamW = AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.3 };
const LEARNING_RATE: f64 = 1e-2;
/// Floats per buffer: one vec4, an odd number of vec4s, more than four workgroups of the norm sum.
const SHARDS: [usize; 3] = [4, 4 * 63, 70_004];

/// Buffers on the device, one of each kind per element of [`SHARDS`].
struct Device {
    parameters: Vec<wgpu::Buffer>,
    gradients: Vec<wgpu::Buffer>,
    first: Vec<wgpu::Buffer>,
    second: Vec<wgpu::Buffer>,
    clip: Clip,
    update_norm: UpdateNorm,
}

impl Device {
    fn new(gpu: &Gpu) -> Result<Device, Failed> {
        let small = |seed| SHARDS.map(|len| values(seed, len).iter().map(|x| 0.01 * x).collect::<Vec<f32>>());
        let upload = |data: [Vec<f32>; 3]| data.map(|d| gpu.upload("test", &d).expect("small")).to_vec();
        let zeros = || upload(SHARDS.map(|len| vec![0.0; len]));
        Ok(Device {
            parameters: upload(small(1)),
            gradients: zeros(),
            first: zeros(),
            second: zeros(),
            clip: Clip::new(gpu, SHARDS.iter().map(|&len| 4 * len as u64))?,
            update_norm: UpdateNorm::new(gpu, SHARDS.iter().map(|&len| 4 * len as u64))?,
        })
    }

    fn step(&self, gpu: &Gpu, max_norm: f64, step: u64, adam: bool) -> Outcome {
        run(gpu, |rec| {
            self.clip.norm(rec, &self.gradients, max_norm);
            let shards: Vec<Shard> = (0..SHARDS.len())
                .map(|i| Shard {
                    parameters: &self.parameters[i],
                    gradients: &self.gradients[i],
                    first: &self.first[i],
                    second: &self.second[i],
                })
                .collect();
            for shard in &shards {
                match adam {
                    true => adamw::adamw(rec, shard, &self.clip, &ADAM, LEARNING_RATE, step),
                    false => adamw::sgd(rec, shard, &self.clip, 0.3, LEARNING_RATE),
                }
            }
            let adam = adam.then_some(&ADAM);
            let taken = Taken { adam, weight_decay: 0.3, learning_rate: LEARNING_RATE, update: step };
            self.update_norm.record(rec, &shards, &self.clip, &taken);
        })
    }

    fn read(&self, gpu: &Gpu, buffers: &[wgpu::Buffer]) -> Result<Vec<Vec<f32>>, Failed> {
        let read = |(buffer, len)| Ok(block_on(gpu.read(buffer, len))?);
        buffers.iter().zip(SHARDS).map(read).collect()
    }
}

fn gradients(step: u64) -> Vec<Vec<f32>> {
    // Similar from step to step, as in training, so that the moments grow.
    let noise = |len: usize| values(100 + step, len);
    SHARDS
        .iter()
        .map(|&len| values(7, len).iter().zip(noise(len)).map(|(x, n)| 0.1 * (x + 0.3 * n)).collect())
        .collect()
}

/// One infinite or NaN gradient, or a norm that exceeds f32: parameters and moments stay as they are.
pub fn non_finite(gpu: &Gpu) -> Outcome {
    // 2e19² exceeds f32's largest value, 3.4e38.
    for (bad, buffer, at) in
        [(f32::NAN, 2, 70_003), (f32::INFINITY, 0, 0), (f32::NEG_INFINITY, 1, 251), (2e19, 2, 20_000)]
    {
        for (adam, max_norm) in [(true, 1.0), (true, 0.0), (false, 1.0), (false, 0.0)] {
            let name = format!("gradient {bad} at {at} of buffer {buffer}, adam={adam}, max_norm={max_norm}");
            let device = Device::new(gpu)?;
            let everything = |device: &Device| -> Result<Vec<Vec<u32>>, Failed> {
                let all = [&device.parameters, &device.first, &device.second];
                let all = all
                    .map(|buffers| device.read(gpu, buffers))
                    .into_iter()
                    .collect::<Result<Vec<_>, _>>()?;
                Ok(all.concat().iter().map(|x| x.iter().map(|x| x.to_bits()).collect()).collect())
            };
            // A finite step first, so that the moments are not zero.
            let mut gradients = gradients(1);
            device.gradients.iter().zip(&gradients).for_each(|(buffer, g)| gpu.write(buffer, g));
            device.step(gpu, max_norm, 1, adam)?;
            let before = everything(&device)?;
            gradients[buffer][at] = bad;
            device.gradients.iter().zip(&gradients).for_each(|(buffer, g)| gpu.write(buffer, g));
            device.step(gpu, max_norm, 2, adam)?;
            let state = block_on(gpu.read::<ClipState>(&device.clip.state, 1))?[0];
            if (state.finite, state.update_norm) != (0.0, 0.0) {
                return Err(format!("{name}: expected no finite norm and no update, found {state:?}").into());
            }
            if everything(&device)? != before {
                return Err(format!("{name}: a parameter or moment moved").into());
            }
            // The next finite step changes them again.
            gradients[buffer][at] = 0.0;
            device.gradients.iter().zip(&gradients).for_each(|(buffer, g)| gpu.write(buffer, g));
            device.step(gpu, max_norm, 2, adam)?;
            if everything(&device)?[0] == before[0] {
                return Err(format!("{name}: the step after it does nothing").into());
            }
        }
    }
    Ok(())
}
