//! The optimizers: the gradient norm, clipping, the steps that read them, and the norm of the update.

use super::bench::Bench;
use super::case::{Case, Needs, Shapes};
use super::inputs::{values, wide};
use super::tolerance::Tolerance;
use crate::gpu::GpuError;
use crate::ops::adamw::{self, AdamW, Clip, Shard};
use crate::ops::update_norm::{Taken, UpdateNorm};
use crate::reference::adamw as reference;

/// The squares are summed in stripes of 4096 by 64 threads: an error of some ε.
const NORM: Tolerance = Tolerance::new(5e-7, 5e-7, 0.0);
/// Ten steps of ten roundings each. Parameters start at the size of a step, so that a wrong step shows.
const STEPS: Tolerance = Tolerance::new(1e-6, 2e-6, 2e-6);
/// The update is recomputed from rounded moments and parameters.
const UPDATE: Tolerance = Tolerance::new(5e-6, 5e-6, 0.0);

/// Weight decay of the same order as the steps.
const DECAY: f64 = 0.3;
const ADAM: AdamW = AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: DECAY };
const RATE: f64 = 1e-2;

/// Floats per buffer: one vec4, an odd number of vec4s, and more than a workgroup of the norm sums, or than four of them.
const FEW: [usize; 3] = [4, 252, 20_004];
const MANY: [usize; 3] = [4, 252, 70_004];

const EVERY: &[u64] = &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10];

pub const CASES: [Case; 2] = [
    Case {
        op: "adamw",
        name: "AdamW, clipping, norms",
        needs: Needs::Any,
        variants: super::F32,
        shapes: &Shapes {
            small: SMALL,
            more: MORE,
            check: |b, shape| shape.2.iter().try_for_each(|&count| steps(b, shape, count, true)),
        },
    },
    Case {
        op: "adamw",
        name: "gradient descent",
        needs: Needs::Any,
        variants: super::F32,
        shapes: &Shapes {
            small: SMALL,
            more: MORE,
            check: |b, shape| shape.2.iter().try_for_each(|&count| steps(b, shape, count, false)),
        },
    },
];

/// Floats of each buffer, the largest norm, and numbers of steps, after each of which all is compared.
type Shape = ([usize; 3], f64, &'static [u64]);

const SMALL: &[Shape] = &[(FEW, 4.0, &[3])];
/// The norm is about 0.1·√(70 260·(1 + 0.09)/3) = 16: clipped to a quarter, not clipped, never clipped.
const MORE: &[Shape] = &[(MANY, 4.0, EVERY), (MANY, 100.0, EVERY), (MANY, 0.0, EVERY)];

/// Similar from step to step, as in training, so that the moments grow.
fn gradients(shards: [usize; 3], step: u64) -> [Vec<f32>; 3] {
    let of = |len: usize| values(7, len).into_iter().zip(values(100 + step, len));
    shards.map(|len| of(len).map(|(x, noise)| 0.1 * (x + 0.3 * noise)).collect())
}

/// So many clipped steps of AdamW, or of gradient descent: parameters, moments, norms.
fn steps(b: &mut Bench, &(shards, max_norm, _): &Shape, count: u64, adam: bool) -> Result<(), GpuError> {
    let start = shards.map(|len| values(1, len).iter().map(|x| 0.01 * x).collect::<Vec<f32>>());
    let upload = |data: &[Vec<f32>; 3]| -> Result<Vec<wgpu::Buffer>, GpuError> {
        data.iter().map(|data| b.gpu.upload("case", data)).collect()
    };
    let zeros = shards.map(|len| vec![0f32; len]);
    let [parameters, buffers, first, second] =
        [upload(&start)?, upload(&zeros)?, upload(&zeros)?, upload(&zeros)?];
    let bytes = || shards.iter().map(|len| 4 * *len as u64);
    let (clip, update_norm) = (Clip::new(b.gpu, bytes())?, UpdateNorm::new(b.gpu, bytes())?);
    let shard = |i: usize| Shard {
        parameters: &parameters[i],
        gradients: &buffers[i],
        first: &first[i],
        second: &second[i],
    };
    for update in 1..=count {
        buffers.iter().zip(gradients(shards, update)).for_each(|(buffer, g)| b.gpu.write(buffer, &g));
        let taken = Taken { adam: adam.then_some(&ADAM), weight_decay: DECAY, learning_rate: RATE, update };
        b.run(|rec| {
            clip.norm(rec, &buffers, max_norm);
            let shards = [shard(0), shard(1), shard(2)];
            for shard in &shards {
                match adam {
                    true => adamw::adamw(rec, shard, &clip, &ADAM, RATE, update),
                    false => adamw::sgd(rec, shard, &clip, DECAY, RATE),
                }
            }
            update_norm.record(rec, &shards, &clip, &taken);
        })?;
    }
    if !b.compares() {
        return Ok(());
    }
    let expected = Stepped::new(shards, start.each_ref().map(|x| wide(x)), max_norm, count, adam);
    let name = |what: &str| format!("{what} max_norm={max_norm} step={count}");
    b.expect_start(&name("norm, factor, finite"), &clip.state, expected.clipped, NORM);
    b.expect_norms(&clip.state, expected.norms, UPDATE);
    for i in 0..shards.len() {
        for (what, buffers, expected) in
            [("x", &parameters, &expected.x), ("m", &first, &expected.m), ("v", &second, &expected.v)]
        {
            b.expect_start(&name(&format!("{what} of buffer {i}")), &buffers[i], expected[i].clone(), STEPS);
        }
    }
    Ok(())
}

/// The reference after some steps.
struct Stepped {
    x: [Vec<f64>; 3],
    m: [Vec<f64>; 3],
    v: [Vec<f64>; 3],
    /// Norm of the last gradient, the factor that clips it, and 1: it is finite.
    clipped: Vec<f64>,
    /// Norms of the last update and of the parameters.
    norms: [f64; 2],
}

impl Stepped {
    fn new(shards: [usize; 3], x: [Vec<f64>; 3], max_norm: f64, count: u64, adam: bool) -> Stepped {
        let limit = if max_norm > 0.0 { max_norm } else { f64::INFINITY };
        let zeros = || shards.map(|len| vec![0.0; len]);
        let mut all = Stepped { x, m: zeros(), v: zeros(), clipped: Vec::new(), norms: [0.0; 2] };
        for update in 1..=count {
            let mut g = gradients(shards, update).each_ref().map(|g| wide(g));
            let norm = reference::clip(&mut g.each_mut().map(|g| &mut g[..]), limit);
            let before = all.x.concat();
            for (i, g) in g.iter().enumerate() {
                let AdamW { beta1, beta2, epsilon, weight_decay } = ADAM;
                let (x, m, v) = (&mut all.x[i], &mut all.m[i], &mut all.v[i]);
                match adam {
                    true => reference::adamw(x, g, m, v, update, RATE, beta1, beta2, epsilon, weight_decay),
                    false => reference::sgd(x, g, RATE, DECAY),
                }
            }
            all.clipped = vec![norm, (limit / (norm + 1e-6)).min(1.0), 1.0];
            let length = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
            let now = all.x.concat();
            let moved = length(&mut now.iter().zip(before).map(|(x, old)| x - old));
            all.norms = [moved, length(&mut now.iter().copied())];
        }
        all
    }
}
