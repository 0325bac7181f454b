//! The device of GPU tests. Without a device, they are reported as ignored.
#![allow(dead_code, reason = "each test uses a part")]

#[path = "trials.rs"]
pub mod trials;

use libtest_mimic::{Arguments, Failed, Trial};
use rullama_train::gpu::{Gpu, GpuError, GpuOptions, Tier};
use rullama_train::ops::op::Variant;

type Run = Box<dyn Fn(&Gpu) -> Result<(), Failed> + Send>;

/// A test on a device.
pub struct Test {
    /// The name, shown before the variant.
    pub name: String,
    /// The kernels that it runs on. It is ignored if the device does not support them.
    pub variant: Variant,
    /// Whether it takes too long on a software renderer, which ignores it unless asked for.
    pub slow: bool,
    /// The function to run.
    pub run: Run,
}

impl Test {
    pub fn new(
        name: impl Into<String>,
        variant: Variant,
        run: impl Fn(&Gpu) -> Result<(), Failed> + Send + 'static,
    ) -> Test {
        Test { name: name.into(), variant, slow: false, run: Box::new(run) }
    }

    /// The test, ignored on a software renderer if `slow`.
    pub fn slow(self, slow: bool) -> Test {
        Test { slow, ..self }
    }
}

/// The tier whose kernels a variant uses.
fn tier(variant: Variant) -> Tier {
    match variant {
        Variant::F32 | Variant::Plain | Variant::Packed => Tier::F32,
        Variant::F16 => Tier::F16,
        Variant::Coop8 => Tier::Coop8,
        Variant::Coop16 | Variant::Cuda => Tier::Coop16,
    }
}

/// The device with the kernels of a variant; `None` if it does not support them.
pub fn running(gpu: &Gpu, variant: Variant) -> Option<Gpu> {
    let kernels = gpu.kernels_of(tier(variant)).filter(|_| variant != Variant::Packed || gpu.half())?;
    let kernels = match variant {
        Variant::Plain => kernels.without_software(),
        Variant::Cuda => kernels.all_in_cuda()?,
        _ => kernels.without_cuda(),
    };
    Some(gpu.with_kernels(kernels))
}

/// Runs the tests. Without a device, each is reported as ignored, and the reason is printed.
pub fn run(tests: Vec<Test>) -> std::process::ExitCode {
    let mut arguments = Arguments::from_args();
    quiet_mesa();
    let trials = match open() {
        Ok(gpu) => {
            // A software renderer compiles on one thread, which takes most of the time: each thread has a device.
            if !gpu.is_software() {
                arguments.test_threads = Some(1);
            }
            eprintln!("device: {}", gpu.description());
            tests.into_iter().map(|test| trial(&gpu, test)).collect()
        }
        Err(error) => {
            eprintln!("tests are ignored, because there is no device: {error}");
            let ignored = |test: Test| trials::trial(shown(&test), Some(trials::NO_DEVICE), || Ok(()));
            tests.into_iter().map(ignored).collect()
        }
    };
    trials::run(&arguments, trials)
}

/// The variable limits the device to the sizes that every browser guarantees.
fn open() -> Result<Gpu, GpuError> {
    let webgpu_limits = std::env::var_os("RULLAMA_WEBGPU_LIMITS").is_some();
    pollster::block_on(Gpu::open(GpuOptions { webgpu_limits, ..GpuOptions::default() }))
}

thread_local! {
    /// The device of this thread's tests.
    static DEVICE: Gpu = open().expect("a device that opened before");
}

fn trial(gpu: &Gpu, test: Test) -> Trial {
    let ignored = match running(gpu, test.variant) {
        None => Some(lacking(test.variant)),
        Some(_) => (test.slow && gpu.is_software()).then_some(trials::SLOW),
    };
    let run = move |gpu: &Gpu| (test.run)(&running(gpu, test.variant).expect("as before"));
    trials::trial(format!("{} [{}]", test.name, test.variant), ignored, move || DEVICE.with(run))
}

/// The part of a device without which it does not run a variant.
fn lacking(variant: Variant) -> &'static str {
    match variant {
        Variant::F32 | Variant::Plain => trials::NO_DEVICE,
        Variant::F16 | Variant::Packed => "needs f16",
        Variant::Coop8 => "needs 8×8 matrices",
        Variant::Coop16 => "needs 16×16 matrices",
        Variant::Cuda => "needs CUDA",
    }
}

fn shown(test: &Test) -> String {
    format!("{} [{}]", test.name, test.variant)
}

/// Silences Mesa's device-select layer, which prints a warning to stderr without a desktop.
pub fn quiet_mesa() {
    if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // SAFETY: called before any other thread starts.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
}

/// Norm of the difference over the norm of the expected values.
pub fn relative(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len(), "lengths");
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut found.iter().zip(expected).map(|(f, e)| f - e));
    difference / norm(&mut expected.iter().copied()).max(1e-30)
}
