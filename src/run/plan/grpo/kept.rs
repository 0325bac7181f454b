//! Completions that several steps train on: what a checkpoint between these steps keeps.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::draw::Drawn;

/// Completions with what their steps need to know. Numbers are kept as bits, which text would round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// Number of the generation, from 0.
    pub index: usize,
    /// The prompts, as indices of samples.
    pub prompts: Vec<usize>,
    /// The completions of each prompt, in order.
    pub drawn: Vec<Drawn>,
    advantages: Vec<u64>,
    /// Log-probability of each token before the first step; empty if no other step follows.
    old: Vec<u32>,
    /// Those under the reference; empty without one.
    reference: Vec<u32>,
    metrics: BTreeMap<String, u64>,
}

impl Kept {
    /// Completions without log-probabilities.
    pub fn new(
        index: usize,
        prompts: Vec<usize>,
        drawn: Vec<Drawn>,
        advantages: &[f64],
        metrics: BTreeMap<String, f64>,
    ) -> Kept {
        let advantages = advantages.iter().map(|x| x.to_bits()).collect();
        let metrics = metrics.into_iter().map(|(name, x)| (name, x.to_bits())).collect();
        Kept { index, prompts, drawn, advantages, old: Vec::new(), reference: Vec::new(), metrics }
    }

    /// The advantage of each completion.
    pub fn advantages(&self) -> Vec<f64> {
        self.advantages.iter().map(|bits| f64::from_bits(*bits)).collect()
    }

    /// The measurements of the completions.
    pub fn metrics(&self) -> BTreeMap<String, f64> {
        self.metrics.iter().map(|(name, bits)| (name.clone(), f64::from_bits(*bits))).collect()
    }

    /// Log-probabilities of all tokens before the first step.
    pub fn old(&self) -> Vec<f32> {
        self.old.iter().map(|bits| f32::from_bits(*bits)).collect()
    }

    /// Sets [`Kept::old`].
    pub fn set_old(&mut self, logps: &[f32]) {
        self.old = logps.iter().map(|logp| logp.to_bits()).collect();
    }

    /// Log-probabilities of all tokens under the reference.
    pub fn reference(&self) -> Vec<f32> {
        self.reference.iter().map(|bits| f32::from_bits(*bits)).collect()
    }

    /// Sets [`Kept::reference`].
    pub fn set_reference(&mut self, logps: &[f32]) {
        self.reference = logps.iter().map(|logp| logp.to_bits()).collect();
    }

    /// For a checkpoint.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).expect("lists of numbers")
    }

    /// Reads what [`Kept::to_text`] wrote, for a run of `samples` prompts with `generations` completions each.
    pub fn from_text(text: &str, samples: usize, generations: usize) -> Result<Kept, String> {
        let kept: Kept = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let tokens: usize = kept.drawn.iter().map(|drawn| drawn.ids.len()).sum();
        let fits = |values: &[u32]| values.is_empty() || values.len() == tokens;
        let is_whole = kept.prompts.iter().all(|prompt| *prompt < samples)
            && kept.drawn.len() == kept.advantages.len()
            && kept.drawn.len() == kept.prompts.len() * generations
            && fits(&kept.old)
            && fits(&kept.reference);
        if is_whole { Ok(kept) } else { Err("the completions are not those of this run".into()) }
    }
}
