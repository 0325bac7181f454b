//! The self-test of a device: does it compute what it should?
//!
//! Every operation runs on small, odd sizes and is compared with f64; two small models train some steps beside the f64 reference;
//! memory is copied and compared. Outputs hold a poison before, so that a driver that reports success and writes nothing is seen.
//!
//! [`usable`] is the short form for the first use of a device, [`cases::of_selftest`], [`model::Golden`], [`memory::copy`] and [`speed::measure`] are
//! the parts of the long one.

pub mod memory;
pub mod model;
pub mod speed;

use model::Golden;

use crate::cases;
use crate::cases::bench::Bench;
use crate::cases::case::Case;
use crate::gpu::{Gpu, GpuError, Kernels, Tier};

/// Bytes that the short form copies.
const SHORT_COPY: usize = 1 << 20;
/// Checks of the short form, beside a model that runs most other operations.
const SHORT: [(&str, &str); 3] =
    [("linear", "products"), ("adamw", "AdamW, clipping, norms"), ("attention", "forward and backward")];

/// Runs the small shapes of one case on the kernels of `gpu`; returns the largest error as a share of what is allowed.
///
/// # Errors
/// A description of the first mismatch.
pub async fn run(gpu: &Gpu, case: &Case) -> Result<f64, String> {
    let mut bench = Bench::new(gpu);
    record(&mut bench, case).map_err(|error| error.to_string())?;
    bench.verdict().await
}

/// Compiles the kernels of the small shapes of `cases` in parallel.
///
/// # Errors
/// The device's error.
pub fn compile<'c>(gpu: &Gpu, mut cases: impl Iterator<Item = &'c Case>) -> Result<(), GpuError> {
    let mut bench = Bench::ahead(gpu);
    cases.try_for_each(|case| record(&mut bench, case))?;
    bench.compile()
}

fn record(bench: &mut Bench, case: &Case) -> Result<(), GpuError> {
    let [small, _] = case.shapes.counts();
    (0..small).try_for_each(|shape| case.shapes.run(bench, shape))
}

/// Kernels that compute wrongly.
#[derive(Clone, Debug, PartialEq)]
pub struct Failed {
    /// The kernels.
    pub kernels: Kernels,
    /// The wrong result, on one line.
    pub reason: String,
}

/// The result of the short form.
#[derive(Clone, Debug, PartialEq)]
pub struct Usable {
    /// The fastest kernels that compute right; `None` if even the plainest do not.
    pub kernels: Option<Kernels>,
    /// Faster ones that do not.
    pub failed: Vec<Failed>,
    /// Operations per second of products and attention, with operands in f32 and in f16, where both compute right and nothing is faster
    /// for sure.
    pub measured: Option<[f64; 2]>,
}

/// Finds the fastest kernels of the device that compute right, in about a second.
///
/// # Errors
/// [`GpuError::Lost`] where the device is lost.
pub async fn usable(gpu: &Gpu) -> Result<Usable, GpuError> {
    let golden = Golden::small();
    let mut failed = Vec::new();
    for kernels in gpu.all_kernels() {
        // The small model has no product that is long.
        let gpu = &gpu.with_kernels(kernels.all_in_cuda().unwrap_or(kernels));
        let outcome = short(gpu, &golden).await;
        // A driver that cannot compile some kernels can still run others.
        let reported = gpu.take_reported();
        gpu.check()?;
        match reported.map_or(outcome, Err) {
            Ok(()) => {
                let measured = if failed.is_empty() { in_both(gpu, kernels, &golden).await } else { None };
                return Ok(Usable { kernels: Some(kernels), failed, measured });
            }
            Err(reason) => {
                let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
                failed.push(Failed { kernels, reason });
            }
        }
    }
    Ok(Usable { kernels: None, failed, measured: None })
}

/// Speeds in f32 and f16, where `kernels`, which compute right, have one of them and the other computes right too.
async fn in_both(gpu: &Gpu, kernels: Kernels, golden: &Golden) -> Option<[f64; 2]> {
    let other = match kernels.tier() {
        Tier::F32 => Tier::F16,
        Tier::F16 => Tier::F32,
        Tier::Coop8 | Tier::Coop16 => return None,
    };
    let other = gpu.kernels_of(other).filter(|_| !gpu.is_software())?;
    short(&gpu.with_kernels(other), golden).await.ok().filter(|()| gpu.take_reported().is_none())?;
    let speed = |tier| Some(speed::measure(&gpu.with_kernels(gpu.kernels_of(tier)?)).ok()?.of_step());
    Some([speed(Tier::F32)?, speed(Tier::F16)?])
}

/// A software renderer compiles slowly, and has no driver for a GPU that could be wrong: it runs the first two checks only.
async fn short(gpu: &Gpu, golden: &Golden) -> Result<(), String> {
    let wanted = if gpu.is_software() { &SHORT[..2] } else { &SHORT };
    let cases = || cases::of_selftest(gpu).filter(|case| wanted.contains(&(case.op, case.name)));
    compile(gpu, cases()).map_err(|error| error.to_string())?;
    memory::copy(gpu, SHORT_COPY).await.map_err(|reason| format!("a copy of memory: {reason}"))?;
    if !gpu.is_software() {
        golden.check(gpu, 1).await.map_err(|reason| format!("a small model: {reason}"))?;
    }
    for case in cases() {
        run(gpu, case).await.map_err(|reason| format!("{}: {reason}", case.op))?;
    }
    Ok(())
}
