//! The device that GPU tests run on, and how they show where there is none.
#![allow(dead_code)] // each test uses a part

use libtest_mimic::{Arguments, Failed, Trial};
use rullama_train::gpu::{Backend, Gpu, Tier};

/// A name and what to do on the device.
pub type Test = (String, Box<dyn Fn(&Gpu) -> Result<(), Failed> + Send>);

/// Runs the tests that need a device; without one each of them shows as ignored, with the reason.
///
/// Those with "cooperative" in their names run on cooperative matrices of 16×16, where the device has them, those that end in
/// "(8×8 matrices)" on those, those that end in "f16)" where it computes in that, "(operands in f16)" with such products; the
/// others in f32. Those with "plain" in their names take the kernels that every GPU runs, where the others take a software
/// device's own.
pub fn run(tests: Vec<Test>) -> ! {
    let mut arguments = Arguments::from_args();
    quiet_mesa();
    // One device for all; a software device already uses every core.
    arguments.test_threads = Some(1);
    // Some tests hold the device to what every browser guarantees.
    let webgpu_limits = std::env::var_os("RULLAMA_WEBGPU_LIMITS").is_some();
    let gpu = pollster::block_on(Gpu::open(Backend::Auto, None, webgpu_limits));
    let trials = match gpu {
        Ok(gpu) => {
            eprintln!("device: {}", gpu.description());
            let gpu: &'static Gpu = Box::leak(Box::new(gpu));
            let trial = |(name, test): Test| {
                let (cooperative, half) = (name.contains("cooperative"), name.ends_with("f16)"));
                let plain = name.contains("plain");
                let tier = match () {
                    () if cooperative => Tier::Cooperative,
                    () if name.ends_with("(8×8 matrices)") => Tier::Cooperative8,
                    () if name.ends_with("(operands in f16)") => Tier::F16,
                    () => Tier::F32,
                };
                let run = move || {
                    gpu.set_tier(tier);
                    gpu.set_simd(!plain);
                    test(gpu)
                };
                let lacks = !gpu.has_tier(tier) || (half && !gpu.half());
                Trial::test(name, run).with_ignored_flag(lacks)
            };
            for tier in
                [Tier::Cooperative, Tier::Cooperative8].into_iter().filter(|tier| !gpu.has_tier(*tier))
            {
                eprintln!("the device has no {tier}: their tests are ignored");
            }
            tests.into_iter().map(trial).collect()
        }
        Err(error) => {
            eprintln!("ignored, for want of a device: {error}");
            let ignored = |(name, _)| Trial::test(name, || Ok(())).with_ignored_flag(true);
            tests.into_iter().map(ignored).collect()
        }
    };
    libtest_mimic::run(&arguments, trials).exit()
}

/// Where there is no desktop, a layer of Mesa's complains on stderr that it cannot ask which GPU the desktop uses.
pub fn quiet_mesa() {
    if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // SAFETY: called before any other thread starts.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
}

/// Norm of the difference over the norm of what is expected.
pub fn relative(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len(), "lengths");
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut found.iter().zip(expected).map(|(f, e)| f - e));
    difference / norm(&mut expected.iter().copied()).max(1e-30)
}
