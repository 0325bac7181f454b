//! Measurements of comparisons, in words.

use std::collections::BTreeMap;

/// The distance from the teacher, if there is one; else the reward margin and the share of pairs that the model ranks as the data does, from metrics under TRL's names:
/// `reward margin 0.512, 87.5 % of pairs ranked right`.
pub fn preference(metrics: &BTreeMap<String, f64>) -> String {
    if let Some(distance) = super::lessons::distance(metrics) {
        return distance;
    }
    let of = |name: &str| metrics.get(&format!("eval_{name}")).copied();
    let margin = of("rewards/margins").map(|margin| format!("reward margin {margin:.3}"));
    // Before the first update both answers have the same reward, 0: no pair is ranked at all.
    let tied = of("rewards/margins") == Some(0.0) && of("rewards/accuracies") == Some(0.0);
    let ranked = of("rewards/accuracies").map(|part| match tied {
        true => "all pairs tied".into(),
        false => format!("{:.1} % of pairs ranked right", 100.0 * part),
    });
    let rewards = match (of("rewards/chosen"), of("rewards/rejected")) {
        _ if ranked.is_some() => None,
        (Some(good), Some(bad)) => Some(format!("rewards {good:.3} and {bad:.3}")),
        _ => None,
    };
    let kl = of("kl").map(|kl| format!("kl {kl:.3}"));
    [margin, ranked, rewards, kl].into_iter().flatten().collect::<Vec<_>>().join(", ")
}
