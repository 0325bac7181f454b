//! The statistics of dropout's masks.

use rullama_train::cases::ROWS_OF_VALUES;
use rullama_train::gpu::Gpu;
use rullama_train::ops::dropout::{self, Mask};

use super::check::{Block, Outcome, run};

/// The properties of a mask: two values, their share, and no pattern.
pub fn masks(gpu: &Gpu) -> Outcome {
    for (height, width) in ROWS_OF_VALUES.iter().copied() {
        let len = height * width;
        for (probability, key) in [(0.05, 1), (0.5, 0xdead_beef), (0.9, 0)] {
            let name = format!("[{height}, {width}] p={probability} key={key}");
            let mask = mask_of(gpu, &name, Mask { probability, key }, height, width)?;
            let kept = 1.0 / (1.0 - probability);
            let wrong = mask.iter().find(|&&m| m != 0.0 && (m - kept).abs() > 1e-6 * kept);
            if let Some(m) = wrong {
                return Err(format!("dropout {name}: expected 0 or {kept} for 1, found {m}").into());
            }
            let share = |test: &dyn Fn(usize) -> bool| {
                (1..len).filter(|&i| test(i)).count() as f64 / (len - 1) as f64
            };
            let dropped = |i: usize| mask[i] == 0.0;
            // Five standard deviations of the share among independent elements.
            let near = |what: &str, found: f64, expected: f64| {
                let allowed = 5.0 * (expected * (1.0 - expected) / (len - 1) as f64).sqrt();
                match (found - expected).abs() <= allowed {
                    true => Ok(()),
                    false => Err(format!(
                        "dropout {name}: {what}: expected {expected} ± {allowed:.4}, found {found}"
                    )),
                }
            };
            near("share of zeros", share(&dropped), probability)?;
            let both = probability * probability;
            near("share of zeros after a zero", share(&|i| dropped(i) && dropped(i - 1)), both)?;
            let next = mask_of(gpu, &name, Mask { probability, key: key.wrapping_add(1) }, height, width)?;
            near("share of zeros under the next key too", share(&|i| dropped(i) && next[i] == 0.0), both)?;
            near("and one place before", share(&|i| dropped(i) && next[i - 1] == 0.0), both)?;
        }
    }
    Ok(())
}

/// Dropout of ones.
fn mask_of(
    gpu: &Gpu,
    case: &str,
    mask: Mask,
    height: usize,
    width: usize,
) -> Result<Vec<f64>, libtest_mimic::Failed> {
    let ones = Block::input(gpu, (0, 0), width, &vec![1.0; height * width]);
    let y = Block::output(gpu, (0, 0), width, height);
    run(gpu, |rec| dropout::forward(rec, &y.rows, &ones.rows, mask, 0, height))?;
    y.read(gpu, case)
}
