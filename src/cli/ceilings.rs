//! What the device can do at best, measured, and how far each group of a step's kernels is from it.

use std::time::Instant;

use anyhow::Result;
use rullama_train::base::config::{Config, LayerConfig};
use rullama_train::gpu::profile::KernelTime;
use rullama_train::gpu::{Gpu, Recorder};
use rullama_train::model::plan::{Kept, Plan};
use rullama_train::ops::peak as ceiling;
use rullama_train::ops::peak::coop as coop_ceiling;
use serde_json::{Value, json};

/// How often each is tried; the best counts.
const TRIES: usize = 5;

/// Of one device.
pub struct Ceilings {
    /// Bytes a second that a plain copy reads and writes.
    pub bytes: f64,
    /// Operations a second, of f32, or of f16 that add up in f32 where products run on cooperative matrices.
    pub operations: f64,
}

impl Ceilings {
    /// Measures both: some tenths of a second.
    pub fn measure(gpu: &Gpu) -> Result<Ceilings> {
        // A CPU that plays a GPU would take minutes.
        let (copied, rounds, repeat) =
            if gpu.is_software() { (32 << 20, 16, 1) } else { (256 << 20, 1024, 8) };
        let [x, y] = [gpu.buffer("copied", copied)?, gpu.buffer("copy", copied)?];
        let bytes = best(gpu, repeat, |rec| {
            ceiling::copy(rec, &x, &y, copied);
            2.0 * copied as f64
        })?;
        let operations = match gpu.matrices() {
            Some(matrices) => {
                let y = gpu.buffer("products", coop_ceiling::WRITTEN)?;
                best(gpu, repeat, |rec| coop_ceiling::multiply_add(rec, &x, &y, matrices, rounds))?
            }
            None => {
                let y = gpu.buffer("products", ceiling::WRITTEN)?;
                best(gpu, repeat, |rec| ceiling::multiply_add(rec, &x, &y, rounds))?
            }
        };
        Ok(Ceilings { bytes, operations })
    }

    /// What the operations are of.
    pub fn of(gpu: &Gpu) -> String {
        gpu.matrices().map_or("f32".into(), |matrices| matrices.to_string())
    }

    /// For `--json`.
    pub fn json(&self) -> Value {
        json!({ "copy_bytes_per_second": self.bytes, "operations_per_second": self.operations })
    }
}

/// The most a second of what `work` says that it does, `repeat` times one after the other.
fn best<'g>(gpu: &'g Gpu, repeat: usize, work: impl Fn(&mut Recorder<'g>) -> f64) -> Result<f64> {
    let mut most = 0f64;
    // The first try compiles the kernel.
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

/// Kernels of a step that do the same kind of work.
pub struct Group {
    /// What they do.
    pub name: &'static str,
    /// Of all of them.
    pub seconds: f64,
    /// Operations, where they are counted: elsewhere it is bytes that take the time.
    pub operations: Option<f64>,
    /// Bytes of the buffers that they were given, each counted once a run.
    pub bytes: f64,
}

impl Group {
    /// Their rate, its unit, and the share of the ceiling that it is.
    pub fn rate(&self, ceilings: &Ceilings) -> (f64, &'static str, f64) {
        match self.operations {
            Some(operations) => {
                let rate = operations / self.seconds;
                (rate / 1e12, "TFLOP/s", rate / ceilings.operations)
            }
            None => {
                let rate = self.bytes / self.seconds;
                (rate / 1e9, "GB/s", rate / ceilings.bytes)
            }
        }
    }

    /// For `--json`.
    pub fn json(&self, ceilings: &Ceilings) -> Value {
        let (rate, unit, share) = self.rate(ceilings);
        json!({ "group": self.name, "seconds": self.seconds, "rate": rate, "unit": unit, "share_of_ceiling": share })
    }
}

/// The kernels by group: `products` and `attention` are the operations of these two.
pub fn groups(kernels: &[(String, KernelTime)], products: f64, attention: f64) -> Vec<Group> {
    let mut groups = [
        ("products", Some(products)),
        ("attention", Some(attention)),
        ("adapters", None),
        ("the rest", None),
    ]
    .map(|(name, operations)| Group { name, seconds: 0.0, operations, bytes: 0.0 });
    for (name, time) in kernels {
        let group = match name.split('/').next().unwrap_or(name) {
            "linear" => 0,
            "attention" => 1,
            "lora" => 2,
            _ => 3,
        };
        groups[group].seconds += time.seconds;
        groups[group].bytes += time.bytes as f64;
    }
    groups.into_iter().filter(|group| group.seconds > 0.0).collect()
}

/// Floating-point operations of attention over `batch` sequences of `length` tokens: scores and sums forward, again where that is
/// recomputed, and five products backward; only of keys that a query sees.
pub fn attention_operations(config: &Config, plan: &Plan, batch: usize, length: usize) -> f64 {
    let of_layer = |(l, kept): (&LayerConfig, &Kept)| {
        let seen = |t: usize| l.window.map_or(t + 1, |window| window.min(t + 1));
        let pairs = batch * l.heads * (0..length).map(seen).sum::<usize>();
        let products = 2 * if *kept < Kept::Attention { 2 } else { 1 } + 5;
        (2 * products * pairs * l.head_size) as f64
    };
    config.layers.iter().zip(&plan.kept).map(of_layer).sum()
}
