//! Opens a device, and tests its cooperative matrices of 8×8, and f16 in browsers, before anything is trained with them: drivers
//! report what computes wrongly. The test is one product and one attention, forward and backward.

use crate::base::formats::GgmlType;
use crate::gpu::{Gpu, GpuError, GpuOptions, Recorder, Tier};
use crate::ops::attention::Attention;
use crate::ops::{Rows, Weight, linear};

/// `T`, `N` and `K` of the product: more than a tile of 64×64, and more than 32 steps.
const SHAPE: [usize; 3] = [68, 72, 36];

/// `T`, `H`, `G` and `K` of the attention: more than a block of 32, heads that share keys, more than 64 columns.
const HEADS: [usize; 4] = [40, 2, 1, 68];

/// Most relative error of attention's results, by norm: f16 gives about 1e-3.
const TOLERANCE: f64 = 1e-2;

impl Gpu {
    /// Opens the device that the options ask for.
    ///
    /// # Errors
    /// [`GpuError::NoDevice`], [`GpuError::NotNamed`], [`GpuError::Refused`], [`GpuError::TooFew`] for one of several processes, and
    /// [`GpuError::Lost`] where the self-test loses the device. A self-test that fails is no error: the device is used without what
    /// failed, see [`Gpu::failed_self_test`].
    pub async fn open(options: GpuOptions) -> Result<Gpu, GpuError> {
        let gpu = Gpu::open_untested(&options).await?;
        let tier = gpu.kernels().tier();
        let tested = tier == Tier::Coop8 || (tier == Tier::F16 && cfg!(target_arch = "wasm32"));
        if tested && let Err(reason) = gpu.self_test(tier).await {
            gpu.check()?; // lost
            return Ok(gpu.rejecting(reason));
        }
        Ok(gpu)
    }

    /// Multiplies small integers, whose sums are exact, forward and backward with the kernels of `tier`, and compares; then computes
    /// attention, forward and backward, and compares with f64. Drops the kernels that it compiled.
    ///
    /// # Errors
    /// The driver's error, or the first value that differs, on one line.
    pub async fn self_test(&self, tier: Tier) -> Result<(), String> {
        let kernels = self.kernels_of(tier).ok_or_else(|| format!("the device does not support {tier}"))?;
        let gpu = &self.with_kernels(kernels);
        let outcome = match product(gpu).await {
            Ok(()) => attention(gpu).await,
            wrong => wrong,
        };
        self.forget_kernels();
        // A driver that cannot compile these kernels can still run all others.
        let reported = self.take_reported();
        let reason = reported.or(outcome.err().map(|error| error.to_string()));
        reason.map_or(Ok(()), |text| Err(text.split_whitespace().collect::<Vec<_>>().join(" ")))
    }
}

async fn product(gpu: &Gpu) -> Result<(), GpuError> {
    let [t, n, k] = SHAPE;
    let integers = |rows: usize, cols: usize, seed: usize| -> Vec<f32> {
        (0..rows * cols).map(|i| ((i * seed + i / cols) % 7) as f32 - 3.0).collect()
    };
    let [x, w, dy] = [integers(t, k, 5), integers(n, k, 3), integers(t, n, 2)];
    let weight = Weight::upload(gpu, "self-test", GgmlType::F32, n, k, bytemuck::cast_slice(&w))?;
    let (y_rows, dx_rows) = (rows(gpu, t, n)?, rows(gpu, t, k)?);
    let (x_rows, dy_rows) = (filled(gpu, &x, k)?, filled(gpu, &dy, n)?);
    let mut rec = Recorder::new(gpu);
    linear::tiled::forward(&mut rec, y_rows.all(), x_rows.all(), &weight, 1.0, None, t);
    linear::tiled::backward(&mut rec, dx_rows.all(), dy_rows.all(), &weight, 1.0, None, t, false);
    rec.submit()?;

    let y: Vec<f32> = gpu.read(&y_rows.buffer, t * n).await?;
    let dx: Vec<f32> = gpu.read(&dx_rows.buffer, t * k).await?;
    equal("x·Wᵀ", &y, |i| (0..k).map(|c| x[i / n * k + c] * w[i % n * k + c]).sum())?;
    equal("dy·W", &dx, |i| (0..n).map(|r| dy[i / k * n + r] * w[r * k + i % k]).sum())
}

fn rows(gpu: &Gpu, height: usize, width: usize) -> Result<Rows, GpuError> {
    Rows::new(gpu, "self-test", height, width)
}

fn filled(gpu: &Gpu, values: &[f32], width: usize) -> Result<Rows, GpuError> {
    Ok(Rows { buffer: gpu.upload("self-test", values)?, ..rows(gpu, 0, width)? })
}

async fn attention(gpu: &Gpu) -> Result<(), GpuError> {
    let [t, heads, kv_heads, head_size] = HEADS;
    let (wide, narrow) = (heads * head_size, kv_heads * head_size);
    // Scores stay below about 3.
    let values = |width: usize, seed: usize| -> Vec<f32> {
        (0..t * width).map(|i| ((i * seed + i / width) % 17) as f32 / 16.0 - 0.5).collect()
    };
    let [q, k, v, dout] = [values(wide, 5), values(narrow, 3), values(narrow, 7), values(wide, 11)];
    let [q_rows, k_rows] = [filled(gpu, &q, wide)?, filled(gpu, &k, narrow)?];
    let [v_rows, dout_rows] = [filled(gpu, &v, narrow)?, filled(gpu, &dout, wide)?];
    let inputs = [&q_rows, &k_rows, &v_rows];
    let bounds = gpu.upload("self-test", &vec![[0, t as u32]; t])?;
    let (out, lse) = (rows(gpu, t, wide)?, rows(gpu, t, heads)?);
    let (delta, dheads) = (rows(gpu, t, 2 * heads)?, rows(gpu, t, wide)?);
    let gradients = [rows(gpu, t, wide)?, rows(gpu, t, narrow)?, rows(gpu, t, narrow)?];
    let attention = Attention::of_sample([heads, kv_heads, head_size], t, &bounds);
    let mut rec = Recorder::new(gpu);
    attention.forward(&mut rec, &out, &lse, &q_rows, &k_rows, &v_rows);
    attention.backward(&mut rec, gradients.each_ref(), [&delta, &dheads], &dout_rows, inputs, &out, &lse);
    rec.submit()?;

    let names = ["attention", "its gradient of q", "its gradient of k", "its gradient of v"];
    let found = [&out, &gradients[0], &gradients[1], &gradients[2]];
    for ((name, rows), expected) in names.iter().zip(found).zip(attention_loops([&q, &k, &v, &dout])) {
        close(name, &gpu.read(&rows.buffer, expected.len()).await?, &expected)?;
    }
    Ok(())
}

/// Causal attention of one sample by plain loops: out, and the gradients of q, k and v.
fn attention_loops(inputs: [&[f32]; 4]) -> [Vec<f64>; 4] {
    let [t, heads, kv_heads, head_size] = HEADS;
    let [q, k, v, dout] = inputs.map(|x| x.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>());
    let [mut out, mut dq] = [vec![0.0; q.len()], vec![0.0; q.len()]];
    let [mut dk, mut dv] = [vec![0.0; k.len()], vec![0.0; k.len()]];
    for (i, head) in (0..t).flat_map(|i| (0..heads).map(move |head| (i, head))) {
        let own = (i * heads + head) * head_size;
        let keys: Vec<usize> =
            (0..=i).map(|j| (j * kv_heads + head / (heads / kv_heads)) * head_size).collect();
        let dot =
            |x: &[f64], y: &[f64], at: usize| -> f64 { (0..head_size).map(|c| x[own + c] * y[at + c]).sum() };
        let weights: Vec<f64> = keys.iter().map(|at| dot(&q, &k, *at).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let weights: Vec<f64> = weights.iter().map(|weight| weight / sum).collect();
        let passed: Vec<f64> = keys.iter().map(|at| dot(&dout, &v, *at)).collect();
        let delta: f64 = weights.iter().zip(&passed).map(|(weight, passed)| weight * passed).sum();
        for ((at, weight), passed) in keys.iter().zip(&weights).zip(&passed) {
            let dscore = weight * (passed - delta);
            for c in 0..head_size {
                out[own + c] += weight * v[at + c];
                dv[at + c] += weight * dout[own + c];
                dq[own + c] += dscore * k[at + c];
                dk[at + c] += dscore * q[own + c];
            }
        }
    }
    [out, dq, dk, dv]
}

fn equal(name: &str, found: &[f32], expected: impl Fn(usize) -> f32) -> Result<(), GpuError> {
    let wrong = found.iter().enumerate().find(|(i, found)| **found != expected(*i));
    wrong.map_or(Ok(()), |(i, found)| {
        Err(GpuError::Device(format!("value {i} of {name} is {found}, expected {}", expected(i))))
    })
}

fn close(name: &str, found: &[f32], expected: &[f64]) -> Result<(), GpuError> {
    let squares = found.iter().zip(expected).map(|(found, expected)| (f64::from(*found) - expected).powi(2));
    let norm = expected.iter().map(|x| x * x).sum::<f64>().sqrt();
    let error = squares.sum::<f64>().sqrt() / norm;
    // Written so that NaN fails.
    if error <= TOLERANCE {
        return Ok(());
    }
    Err(GpuError::Device(format!(
        "{name} has a relative error of {error:.1e}, expected at most {TOLERANCE:.0e}"
    )))
}
