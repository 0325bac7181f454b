//! Measurements of completions.

use std::collections::BTreeMap;

use super::draw::Drawn;

/// Lengths of completions, under TRL's names.
pub fn lengths(drawn: &[Drawn]) -> BTreeMap<String, f64> {
    let all: Vec<usize> = drawn.iter().map(|drawn| drawn.ids.len()).collect();
    let ended: Vec<usize> =
        drawn.iter().filter(|drawn| drawn.finished).map(|drawn| drawn.ids.len()).collect();
    let mut metrics = BTreeMap::new();
    for (name, lengths) in [("length", &all), ("terminated_length", &ended)] {
        let mean = lengths.iter().sum::<usize>() as f64 / lengths.len().max(1) as f64;
        let [least, most] =
            [lengths.iter().min(), lengths.iter().max()].map(|n| n.copied().unwrap_or(0) as f64);
        for (what, value) in [("mean", mean), ("min", least), ("max", most)] {
            metrics.insert(format!("completions/{what}_{name}"), value);
        }
    }
    let cut = (all.len() - ended.len()) as f64 / all.len().max(1) as f64;
    metrics.insert("completions/clipped_ratio".into(), cut);
    metrics
}
