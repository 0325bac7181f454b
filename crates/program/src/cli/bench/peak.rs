//! Peak memory bandwidth and arithmetic throughput of a GPU, measured.

use std::time::Instant;

use anyhow::Result;
use rullama_train::gpu::{Gpu, Recorder};
use rullama_train::ops::peak;
use serde_json::{Value, json};

/// Number of measurements; the fastest counts.
const TRIES: usize = 5;

/// The peak rates of a GPU.
pub struct Peak {
    /// Bytes per second that a plain copy reads and writes.
    pub bytes: f64,
    /// Operations per second: of cooperative matrices with f16 factors and f32 sums if products run on them, otherwise of f32.
    pub operations: f64,
}

impl Peak {
    /// Measures both rates. Takes a few tenths of a second.
    pub fn measure(gpu: &Gpu) -> Result<Peak> {
        // A software renderer would take minutes.
        let (copied, rounds, repeat) =
            if gpu.is_software() { (32 << 20, 16, 1) } else { (256 << 20, 1024, 8) };
        let [x, y] = [gpu.buffer("copied", copied)?, gpu.buffer("copy", copied)?];
        let bytes = best(gpu, repeat, |rec| {
            peak::copy(rec, &x, &y, copied);
            2.0 * copied as f64
        })?;
        let operations = match gpu.kernels().matrices() {
            Some(matrices) => {
                let y = gpu.buffer("products", peak::coop::WRITTEN)?;
                best(gpu, repeat, |rec| peak::coop::multiply_add(rec, &x, &y, matrices, rounds))?
            }
            None => {
                let y = gpu.buffer("products", peak::WRITTEN)?;
                best(gpu, repeat, |rec| peak::multiply_add(rec, &x, &y, rounds))?
            }
        };
        Ok(Peak { bytes, operations })
    }

    /// For `--json`.
    pub fn json(&self) -> Value {
        json!({ "copy_bytes_per_second": self.bytes, "operations_per_second": self.operations })
    }
}

/// The highest rate per second of the amount that `work` returns, with `repeat` calls of `work` per measurement.
fn best<'g>(gpu: &'g Gpu, repeat: usize, work: impl Fn(&mut Recorder<'g>) -> f64) -> Result<f64> {
    let mut most = 0f64;
    // One more: the first try compiles the kernel.
    for _ in 0..=TRIES {
        gpu.wait()?;
        let mut rec = Recorder::new(gpu);
        let started = Instant::now();
        let done: f64 = (0..repeat).map(|_| work(&mut rec)).sum();
        rec.submit()?;
        gpu.wait()?;
        most = most.max(done / started.elapsed().as_secs_f64());
    }
    Ok(most)
}
