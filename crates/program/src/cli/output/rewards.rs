//! Measurements of completions, in words.

use std::collections::BTreeMap;

/// Those of a step: `reward 0.625 ± 0.496, 25 % of groups equal, 31 tokens`. `None` where there are none.
pub fn rewards(metrics: &BTreeMap<String, f64>) -> Option<String> {
    let of = |name: &str| metrics.get(name).copied();
    let reward = format!("reward {:.3} ± {:.3}", of("reward")?, of("reward_std").unwrap_or(0.0));
    let equal = of("frac_reward_zero_std").map(|part| format!("{:.0} % of groups equal", 100.0 * part));
    Some([Some(reward), equal].into_iter().chain(lengths(of)).flatten().collect::<Vec<_>>().join(", "))
}

/// Those of an evaluation: `reward 0.625, 31 tokens`.
pub fn eval_rewards(metrics: &BTreeMap<String, f64>) -> Option<String> {
    let of = |name: &str| metrics.get(&format!("eval_{name}")).copied();
    let reward = format!("reward {:.3}", of("reward")?);
    Some([Some(reward)].into_iter().chain(lengths(of)).flatten().collect::<Vec<_>>().join(", "))
}

/// The mean length, and the part that was cut if any were: `31 tokens`, `25 % cut`.
fn lengths(of: impl Fn(&str) -> Option<f64>) -> [Option<String>; 2] {
    let cut = of("completions/clipped_ratio").filter(|part| *part > 0.0);
    [
        of("completions/mean_length").map(|tokens| format!("{tokens:.0} tokens")),
        cut.map(|part| format!("{:.0} % cut", 100.0 * part)),
    ]
}
