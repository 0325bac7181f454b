//! Losses, their gradients, the status of rows, and the optimizers.

use crate::gpu::GpuError;
use crate::ops::adamw::{self, AdamW, Clip, Shard};
use crate::ops::cross_entropy::{Chunk, cap};
use crate::ops::row_status::{self, NOT_FINITE, RIGHT, Verdicts, WRONG};
use crate::ops::update_norm::{Taken, UpdateNorm};
use crate::reference::cross_entropy::Adjusted;
use crate::reference::{self, cross_entropy};
use crate::selftest::bench::{Bench, F32, values, wide};

/// Rows and vocabulary: more than a workgroup's threads, no multiple of 4.
const SHAPE: (usize, usize) = (7, 1003);
/// Softcap of the logits.
pub const SOFTCAP: f32 = 30.0;
/// A temperature of logits.
pub const WARM: f32 = 1.25;

/// Targets of rows: the last token, the first, and some in between.
pub fn targets(rows: usize, vocab: usize) -> Vec<u32> {
    (0..rows).map(|n| ((n * 77 + 1) * (vocab - 1) % vocab) as u32).collect()
}

/// Losses and gradients of logits up to 60, with a softcap and without, at two temperatures; the softcap alone.
pub fn losses(b: &mut Bench) -> Result<(), GpuError> {
    let (rows, vocab) = SHAPE;
    let logits: Vec<f32> = values(1, rows * vocab).iter().map(|x| 60.0 * x).collect();
    let (ids, factors) = (targets(rows, vocab), values(2, rows));
    let on_device = (b.gpu.upload("self-test", &ids)?, b.gpu.upload("self-test", &factors)?);
    for (softcap, temperature) in [(None, 1.0), (Some(SOFTCAP), 1.0), (Some(SOFTCAP), WARM)] {
        let (wide_logits, limit) = (wide(&logits), softcap.map(f64::from));
        let adjusted = Adjusted { softcap: limit, temperature: temperature.into() };
        let loss = cross_entropy::forward(&wide_logits, &ids, adjusted, vocab);
        let dlogits = cross_entropy::backward(&wide(&factors), &wide_logits, &ids, adjusted, vocab);
        let (forward, backward) = (b.in_out(vocab, &logits)?, b.in_out(vocab, &logits)?);
        let (first, second) = (b.output(8, 1)?, b.output(8, 1)?);
        let of = |logits, losses| Chunk {
            logits,
            rows,
            vocab,
            softcap,
            temperature,
            targets: (&on_device.0, 0),
            losses: (losses, 0),
        };
        b.run(|rec| {
            of(forward.rows(), &first.rows().buffer).forward(rec);
            of(backward.rows(), &second.rows().buffer).backward(rec, &on_device.1);
        })?;
        let name = |what: &str| format!("{what}, softcap {softcap:?}, temperature {temperature}");
        b.expect_first(name("losses"), &first, loss.clone(), F32);
        b.expect_first(name("losses with gradients"), &second, loss, F32);
        b.expect(name("logits"), &forward, cross_entropy::softcap(&wide_logits, limit), F32);
        b.expect(name("gradients"), &backward, dlogits, F32);
    }
    let capped = b.in_out(vocab, &logits)?;
    b.run(|rec| cap(rec, capped.rows(), vocab, SOFTCAP, rows))?;
    b.expect("softcap", &capped, cross_entropy::softcap(&wide(&logits), Some(f64::from(SOFTCAP))), F32);
    Ok(())
}

/// Right, wrong and lost rows.
pub fn statuses(b: &mut Bench) -> Result<(), GpuError> {
    let (rows, vocab, width) = (7, 1003, 60);
    let mut logits = values(1, rows * vocab);
    let (mut hidden, mut ids) = (values(2, rows * width), targets(rows, vocab));
    for row in [0, 3, 6] {
        logits[row * vocab + 1002] = 5.0;
        ids[row] = 1002;
    }
    logits[2 * vocab + 999] = f32::NAN;
    hidden[5 * width + 59] = f32::INFINITY;
    let status = |row: usize| match row {
        0 | 3 | 6 => RIGHT,
        2 | 5 => NOT_FINITE,
        _ => WRONG,
    };
    let (logits, hidden) = (b.input(vocab, &logits)?, b.input(width, &hidden)?);
    let (ids, losses) = (b.gpu.upload("self-test", &ids)?, b.gpu.buffer("self-test", 4 * rows as u64)?);
    let found = b.gpu.upload("self-test", &vec![77u32; rows + 2])?;
    let chunk = Chunk {
        logits: logits.rows(),
        rows,
        vocab,
        softcap: None,
        temperature: 1.0,
        targets: (&ids, 0),
        losses: (&losses, 0),
    };
    b.run(|rec| row_status::rows(rec, &chunk, &Verdicts { hidden: hidden.rows(), buffer: (&found, 0) }))?;
    b.expect_bits("status of rows", &found, (0..rows).map(status).chain([77, 77]));
    Ok(())
}

/// Floats of two buffers: less than a workgroup, and more than one workgroup of the norm sums.
const SHARDS: [usize; 2] = [252, 20_004];
const ADAM: AdamW = AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.3 };
const RATE: f64 = 1e-2;
const MAX_NORM: f64 = 4.0;

/// Three clipped steps of AdamW, or of gradient descent: parameters, moments, norms.
pub fn adamw_steps(b: &mut Bench) -> Result<(), GpuError> {
    optimize(b, true)
}

/// Three clipped steps of plain gradient descent.
pub fn sgd_steps(b: &mut Bench) -> Result<(), GpuError> {
    optimize(b, false)
}

fn optimize(b: &mut Bench, adam: bool) -> Result<(), GpuError> {
    let start = SHARDS.map(|len| values(1, len).iter().map(|x| 0.01 * x).collect::<Vec<f32>>());
    let mut x = start.each_ref().map(|x| wide(x));
    let [mut m, mut v] = [(); 2].map(|()| SHARDS.map(|len| vec![0.0; len]));
    let upload = |data: &[Vec<f32>; 2]| -> Result<Vec<wgpu::Buffer>, GpuError> {
        data.iter().map(|data| b.gpu.upload("self-test", data)).collect()
    };
    let zeros = SHARDS.map(|len| vec![0f32; len]);
    let [parameters, gradients, first, second] =
        [upload(&start)?, upload(&zeros)?, upload(&zeros)?, upload(&zeros)?];
    let bytes = || SHARDS.iter().map(|len| 4 * *len as u64);
    let (clip, update_norm) = (Clip::new(b.gpu, bytes())?, UpdateNorm::new(b.gpu, bytes())?);
    let shard = |i: usize| Shard {
        parameters: &parameters[i],
        gradients: &gradients[i],
        first: &first[i],
        second: &second[i],
    };
    let (mut norm, mut before) = (0.0, x.clone());
    for update in 1..=3 {
        let g = SHARDS.map(|len| values(100 + update, len));
        gradients.iter().zip(&g).for_each(|(buffer, g)| b.gpu.write(buffer, g));
        let taken = Taken { adam: adam.then_some(&ADAM), weight_decay: 0.3, learning_rate: RATE, update };
        b.run(|rec| {
            clip.norm(rec, &gradients, MAX_NORM);
            let shards = [shard(0), shard(1)];
            for shard in &shards {
                match adam {
                    true => adamw::adamw(rec, shard, &clip, &ADAM, RATE, update),
                    false => adamw::sgd(rec, shard, &clip, 0.3, RATE),
                }
            }
            update_norm.record(rec, &shards, &clip, &taken);
        })?;
        let mut g = g.each_ref().map(|g| wide(g));
        norm = reference::adamw::clip(&mut g.each_mut().map(|g| &mut g[..]), MAX_NORM);
        before = x.clone();
        for i in 0..SHARDS.len() {
            let AdamW { beta1, beta2, epsilon, weight_decay } = ADAM;
            let (x, g, m, v) = (&mut x[i], &g[i], &mut m[i], &mut v[i]);
            match adam {
                true => {
                    reference::adamw::adamw(x, g, m, v, update, RATE, beta1, beta2, epsilon, weight_decay)
                }
                false => reference::adamw::sgd(x, g, RATE, 0.3),
            }
        }
    }
    let length = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
    let moved: Vec<f64> = x.concat().iter().zip(before.concat()).map(|(x, old)| x - old).collect();
    b.expect_start("norm", &clip.state, vec![norm], F32);
    b.expect_norms(&clip.state, [length(&moved), length(&x.concat())]);
    for i in 0..SHARDS.len() {
        b.expect_start(&format!("parameters {i}"), &parameters[i], x[i].clone(), F32);
        b.expect_start(&format!("first moments {i}"), &first[i], m[i].clone(), F32);
        b.expect_start(&format!("second moments {i}"), &second[i], v[i].clone(), F32);
    }
    Ok(())
}

/// The counts of a step's rows; one row that is not finite stops the optimizer.
pub fn tally(b: &mut Bench) -> Result<(), GpuError> {
    let rows = 5003;
    let mut statuses: Vec<u32> = (0..rows).map(|n| if n % 3 == 0 { RIGHT } else { WRONG }).collect();
    statuses[rows - 1] = NOT_FINITE;
    let right = statuses.iter().filter(|status| **status == RIGHT).count() as f32;
    statuses.extend([NOT_FINITE, RIGHT]);
    let statuses = b.gpu.upload("self-test", &statuses)?;
    let gradients = [b.gpu.upload("self-test", &[3.0f32, 4.0, 0.0, 0.0])?];
    let clip = Clip::new(b.gpu, [16].into_iter())?;
    b.run(|rec| {
        clip.norm(rec, &gradients, 1.0);
        row_status::tally(rec, &clip, &statuses, rows);
    })?;
    let factor = (1.0 / (5.0 + 1e-6)) as f32;
    let state = [5.0, factor, 0.0, right, 1.0].map(f64::from);
    b.expect_start("norm, factor, finite, right, lost", &clip.state, state.to_vec(), F32);
    Ok(())
}
