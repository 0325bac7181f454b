//! The first use of a device and driver: a short self-test, remembered in the user's cache folder, and the kernels that it allows.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use pollster::block_on;
use rullama_train::files;
use rullama_train::gpu::{Gpu, KernelSetting, Kernels, Tier};
use rullama_train::selftest;
use serde::{Deserialize, Serialize};

use super::cache_file;
use crate::cli::output;

/// Setting it to 0 skips the self-test.
const VARIABLE: &str = "RULLAMA_SELF_TEST";

/// The result of the self-test, as it is remembered.
#[derive(Default, Serialize, Deserialize)]
struct Verdict {
    /// The device, for people who read the file.
    device: String,
    /// Kernels that compute wrongly, and what.
    failed: BTreeMap<String, String>,
    /// Operations per second of products and attention in f32 and in f16, where either may be the faster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    measured: Option<[f64; 2]>,
}

/// Least ratio of f16's speed to f32's from which `auto` takes f16, which rounds operands.
const WORTH_F16: f64 = 1.03;

/// The faster operands.
fn faster([f32, f16]: [f64; 2]) -> Tier {
    if f16 > WORTH_F16 * f32 { Tier::F16 } else { Tier::F32 }
}

/// The device running the fastest kernels of `setting` that its self-test passed.
pub fn choose(gpu: Gpu, setting: KernelSetting) -> Result<Gpu> {
    let gpu = gpu.running(setting)?;
    if std::env::var_os(VARIABLE).is_some_and(|value| value == "0") {
        return Ok(gpu);
    }
    let verdict = verdict(&gpu)?;
    let (kernels, skipped) = allowed(&gpu, &verdict, setting)?;
    if let Some(reason) = skipped {
        let (name, was) = (gpu.device_name(), gpu.kernels());
        eprintln!("note: {was} kernels failed the self-test on {name} ({reason}); using {kernels}");
    }
    Ok(gpu.with_kernels(kernels))
}

/// The kernels to run, and why they are not those that `gpu` has.
fn allowed(gpu: &Gpu, verdict: &Verdict, setting: KernelSetting) -> Result<(Kernels, Option<String>)> {
    let name = gpu.device_name();
    let measured = verdict.measured.filter(|_| setting == KernelSetting::Auto);
    let own = measured.and_then(|speeds| gpu.kernels_of(faster(speeds))).unwrap_or(gpu.kernels());
    let reason = |kernels: &Kernels| verdict.failed.get(&kernels.to_string());
    let Some(why) = reason(&own) else { return Ok((own, None)) };
    let all = gpu.all_kernels();
    let sound = all.iter().find(|kernels| reason(kernels).is_none());
    let Some(sound) = sound else {
        bail!(
            "{name} computes wrongly even with plain f32 kernels: {why}. Update its driver or choose another GPU (device.gpu, --gpu), \
             and please report it with what `rullama-train selftest` prints"
        );
    };
    let as_exact = own.tier() == sound.tier(); // for software renderers, or without CUDA
    if setting != KernelSetting::Auto && !as_exact {
        bail!(
            "{name} computes wrongly with kernels in {own}: {why}. Set device.kernels (--kernels) to \"auto\", or omit it, and please \
             report it with what `rullama-train selftest` prints"
        );
    }
    Ok((*sound, Some(why.clone())))
}

/// The verdict of an earlier use, or a new one.
fn verdict(gpu: &Gpu) -> Result<Verdict> {
    let file = cache_file(gpu, "self-test");
    let known = file.as_ref().and_then(|file| files::read(file).ok());
    // A file that cannot be read is made again.
    if let Some(known) = known.and_then(|bytes| serde_json::from_slice(&bytes).ok()) {
        return Ok(known);
    }
    let bar = output::spinner("testing the GPU, at its first use");
    let found = block_on(selftest::usable(gpu))?;
    bar.finish_and_clear();
    let failed = found.failed.into_iter().map(|failed| (failed.kernels.to_string(), failed.reason)).collect();
    let verdict = Verdict { device: gpu.description(), failed, measured: found.measured };
    if let Some([f32, f16]) = verdict.measured {
        let taken = faster([f32, f16]);
        eprintln!(
            "note: products and attention ran at {:.0} GFLOP/s in f32 and {:.0} in f16; auto takes {taken} here",
            f32 / 1e9,
            f16 / 1e9
        );
    }
    if let Some(file) = file {
        let bytes = serde_json::to_vec_pretty(&verdict)?;
        // Without the file, the next use tests again.
        let _ = files::write_atomic(&file, &bytes);
    }
    Ok(verdict)
}

#[cfg(test)]
mod tests {
    use super::{Tier, faster};

    #[test]
    fn f16_is_taken_where_it_pays() {
        assert_eq!(
            [[1e12, 1.5e12], [1e12, 1e12], [1e12, 0.6e12], [1e12, 1.02e12]].map(faster),
            [Tier::F16, Tier::F32, Tier::F32, Tier::F32]
        );
    }
}
