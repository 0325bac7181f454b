//! The kernels of a step in groups, each with its rate and its share of the GPU's peak.

use rullama_train::gpu::profile::KernelTime;
use rullama_train::ops::op::{self, Kind};
use serde_json::{Value, json};

use super::peak::Peak;

/// Kernels of a step that do the same kind of work.
pub struct Group {
    pub name: &'static str,
    /// Time of all kernels together.
    pub seconds: f64,
    /// Floating-point operations; `None` for kernels that are limited by memory bandwidth.
    pub operations: Option<f64>,
    /// Size of the bound buffers, each counted once per dispatch. An upper bound: a kernel need not access all of a buffer.
    pub bytes: f64,
}

impl Group {
    /// The rate, its unit, and its share of the peak.
    pub fn rate(&self, peak: &Peak) -> (f64, &'static str, f64) {
        match self.operations {
            Some(operations) => {
                let rate = operations / self.seconds;
                (rate / 1e12, "TFLOP/s", rate / peak.operations)
            }
            None => {
                let rate = self.bytes / self.seconds;
                (rate / 1e9, "GB/s", rate / peak.bytes)
            }
        }
    }

    /// For `--json`.
    pub fn json(&self, peak: &Peak) -> Value {
        let (rate, unit, share) = self.rate(peak);
        json!({ "group": self.name, "seconds": self.seconds, "rate": rate, "unit": unit, "share_of_peak": share })
    }
}

/// Sorts kernels into groups. `products` and `attention`: operations of these two groups.
pub fn groups(kernels: &[(String, KernelTime)], products: f64, attention: f64) -> Vec<Group> {
    let mut groups = [
        ("products", Some(products)),
        ("attention", Some(attention)),
        ("delta nets", None),
        ("adapters", None),
        ("other", None),
    ]
    .map(|(name, operations)| Group { name, seconds: 0.0, operations, bytes: 0.0 });
    for (name, time) in kernels {
        let group = match op::kind(name) {
            Kind::Product => 0,
            Kind::Attention => 1,
            Kind::DeltaNet => 2,
            Kind::Adapter => 3,
            _ => 4,
        };
        groups[group].seconds += time.seconds;
        groups[group].bytes += time.bytes as f64;
    }
    groups.into_iter().filter(|group| group.seconds > 0.0).collect()
}
