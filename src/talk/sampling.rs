//! Sampling: from logits to the next token, by penalties, temperature, top-k, top-p, min-p and a seeded draw.
//!
//! The order is that of transformers (`generation/utils.py`, `_get_logits_processor`): penalties, then temperature, then the
//! cuts. Each cut keeps the head of the tokens sorted by logit; among equal logits the smaller id comes first. The draw is by
//! inverse transform over the remaining tokens, with one ChaCha8 number per token: in that order, or where nothing is cut in the order of
//! the ids, which the device can draw from, too ([`crate::ops::categorical`]).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::families::SamplingDefaults;
use crate::ops::categorical::Draw;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Settings for choosing the next token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the likeliest token.
    pub temperature: f64,
    /// Sample from this many of the likeliest tokens only; 0: all.
    pub top_k: usize,
    /// Sample only from the likeliest tokens that together have this probability; 1: all.
    pub top_p: f64,
    /// Sample only tokens with at least this fraction of the likeliest token's probability; 0: all.
    pub min_p: f64,
    /// Divides the logit of a token that occurred in prompt or reply if the logit is positive, otherwise multiplies it (Keskar
    /// et al. 2019, arXiv:1909.05858); 1: none.
    pub repetition_penalty: f64,
    /// Subtracted from the logits of generated tokens (OpenAI's parameter).
    pub presence_penalty: f64,
    /// Subtracted from a token's logit once for each time that it was generated (OpenAI's parameter).
    pub frequency_penalty: f64,
    /// Seed of all draws.
    pub seed: u64,
}

impl Sampling {
    /// Always the likeliest token.
    pub const GREEDY: Sampling = Sampling {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        seed: 0,
    };

    /// The settings recommended by a family's authors.
    pub const fn recommended(by: SamplingDefaults) -> Sampling {
        let SamplingDefaults { temperature, top_k, top_p } = by;
        Sampling { temperature, top_k, top_p, ..Sampling::GREEDY }
    }

    /// Checks the ranges. Errors name the setting.
    pub fn check(&self) -> Result<(), String> {
        let within = |name: &str, value: f64, from: f64, to: f64| match (from..=to).contains(&value) {
            true => Ok(()),
            false => Err(format!("{name} = {value}: expected a number from {from} to {to}")),
        };
        within("temperature", self.temperature, 0.0, 100.0)?;
        within("top_p", self.top_p, 0.0, 1.0)?;
        within("min_p", self.min_p, 0.0, 1.0)?;
        within("repetition_penalty", self.repetition_penalty, 0.01, 100.0)?;
        within("presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
    }

    /// Whether some tokens are never chosen.
    fn cuts(&self) -> bool {
        self.top_k > 0 || self.top_p < 1.0 || self.min_p > 0.0
    }

    fn penalizes(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

/// Chooses the tokens of one reply.
pub struct Sampler {
    sampling: Sampling,
    random: ChaCha8Rng,
    /// Number of times that each token was generated; 0 for tokens that occur only in the prompt. Empty if no penalty is set.
    occurred: HashMap<u32, u32>,
}

impl Sampler {
    /// Creates a sampler for a reply to `prompt`.
    pub fn new(sampling: Sampling, prompt: &[u32]) -> Sampler {
        let random = ChaCha8Rng::seed_from_u64(sampling.seed);
        let occurred = match sampling.penalizes() {
            true => prompt.iter().map(|&id| (id, 0)).collect(),
            false => HashMap::new(),
        };
        Sampler { sampling, random, occurred }
    }

    /// Whether the likeliest token is all that it needs.
    pub fn is_greedy(&self) -> bool {
        self.sampling.temperature == 0.0 && !self.sampling.penalizes()
    }

    /// The next draw for the device, in place of [`Sampler::next`]. `None` if the choice needs more than a draw: penalties, or a cut.
    pub fn draw_on_device(&mut self) -> Option<Draw> {
        match self.sampling {
            s if s.penalizes() => None,
            s if s.temperature == 0.0 => Some(Draw::LIKELIEST),
            s if s.cuts() => None,
            s => Some(Draw::at(self.random.random(), s.temperature)),
        }
    }

    /// Chooses the next token by a row of logits, which is modified. Returns `None` if the largest logit is not finite.
    pub fn next(&mut self, logits: &mut [f32]) -> Option<u32> {
        self.penalize(logits);
        let largest = likeliest(logits);
        if !logits.get(largest)?.is_finite() {
            return None;
        }
        let id = match self.sampling.temperature {
            0.0 => largest as u32,
            _ => self.draw(logits, logits[largest]),
        };
        self.count(id);
        Some(id)
    }

    fn count(&mut self, id: u32) {
        if self.sampling.penalizes() {
            *self.occurred.entry(id).or_default() += 1;
        }
    }

    fn penalize(&self, logits: &mut [f32]) {
        let s = &self.sampling;
        for (&id, &count) in &self.occurred {
            let Some(logit) = logits.get_mut(id as usize) else { continue };
            let repeated = f64::from(*logit);
            let repeated = if repeated > 0.0 {
                repeated / s.repetition_penalty
            } else {
                repeated * s.repetition_penalty
            };
            let present = if count > 0 { s.presence_penalty } else { 0.0 };
            *logit = (repeated - present - f64::from(count) * s.frequency_penalty) as f32;
        }
    }

    fn draw(&mut self, logits: &[f32], largest: f32) -> u32 {
        let s = &self.sampling;
        let weight = |logit: f32| (f64::from(logit - largest) / s.temperature).exp();
        let point: f64 = self.random.random();
        if !s.cuts() {
            return whole(logits, weight, point);
        }
        let all = if s.top_k == 0 { logits.len() } else { s.top_k.min(logits.len()) };
        let of_all: Option<f64> = (s.top_k == 0).then(|| logits.iter().map(|&l| weight(l)).sum());
        // Sorting a whole vocabulary is slow and rarely needed: sort only the head, and a head eight times as large if that is
        // not enough.
        let mut count = all.min(64.max(s.top_k));
        loop {
            let head = head(logits, count);
            let weights: Vec<f64> = head.iter().map(|c| weight(c.logit)).collect();
            let total = of_all.unwrap_or_else(|| weights.iter().sum());
            if let Some(chosen) = choose(&weights, total, s, point, count == all) {
                return head[chosen].id;
            }
            count = all.min(8 * count);
        }
    }
}

/// The token at which the draw falls, where nothing is cut.
fn whole(logits: &[f32], weight: impl Fn(f32) -> f64, point: f64) -> u32 {
    let total: f64 = logits.iter().map(|&logit| weight(logit)).sum();
    let (mut sum, mut last) = (0.0, 0);
    for (id, &logit) in (0..).zip(logits) {
        let weight = weight(logit);
        if weight > 0.0 {
            (sum, last) = (sum + weight, id);
        }
        if sum > point * total {
            break;
        }
    }
    last
}

/// The position in the sorted `weights` at which the draw falls. `total`: sum of all weights, including those that are not in
/// `weights`. Returns `None` if the result depends on the missing weights. `whole`: no weights are missing.
fn choose(weights: &[f64], total: f64, s: &Sampling, point: f64, whole: bool) -> Option<usize> {
    let mut sum = 0.0;
    let mut sums = Vec::with_capacity(weights.len());
    let mut cut = false;
    for &weight in weights {
        // The likeliest token always stays; the token that reaches top_p stays too.
        if !sums.is_empty() && (weight < s.min_p || sum >= s.top_p * total && s.top_p < 1.0) {
            cut = true;
            break;
        }
        sum += weight;
        sums.push(sum);
    }
    let known = cut || whole || (s.top_p < 1.0 && sum >= s.top_p * total);
    if !known {
        return None;
    }
    let found = sums.iter().position(|&so_far| so_far > point * sum);
    Some(found.unwrap_or(sums.len() - 1)) // rounding
}

/// A token and its logit.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub logit: f32,
    pub id: u32,
}

impl Eq for Candidate {}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Candidate) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Ordered by logit; among equal logits the smaller id is greater.
impl Ord for Candidate {
    fn cmp(&self, other: &Candidate) -> std::cmp::Ordering {
        self.logit.total_cmp(&other.logit).then(other.id.cmp(&self.id))
    }
}

/// The `count` greatest candidates, greatest first.
pub(super) fn head(logits: &[f32], count: usize) -> Vec<Candidate> {
    let mut candidates = (0..).zip(logits).map(|(id, &logit)| Candidate { logit, id });
    let mut heap: BinaryHeap<Reverse<Candidate>> = candidates.by_ref().take(count).map(Reverse).collect();
    for candidate in candidates {
        let mut least = heap.peek_mut().expect("at least one candidate");
        if candidate > least.0 {
            *least = Reverse(candidate);
        }
    }
    heap.into_sorted_vec().into_iter().map(|Reverse(c)| c).collect()
}

/// Index of the largest logit: the first one among equals, 0 if there are none.
pub fn likeliest(logits: &[f32]) -> usize {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANDOM: Sampling = Sampling { temperature: 1.0, top_k: 64, top_p: 0.95, ..Sampling::GREEDY };

    /// Draws the same token by sorting all logits, where some are cut.
    fn plain(logits: &[f32], s: &Sampling, point: f64) -> u32 {
        let mut order: Vec<usize> = (0..logits.len()).collect();
        let by_logit = s.top_k > 0 || s.top_p < 1.0 || s.min_p > 0.0;
        let order_of = |a: &usize, b: &usize| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b));
        order.sort_by(|a, b| if by_logit { order_of(a, b) } else { a.cmp(b) });
        if s.top_k > 0 {
            order.truncate(s.top_k);
        }
        let softmax = |order: &[usize]| -> Vec<f64> {
            let weight = |i: &usize| (f64::from(logits[*i]) / s.temperature).exp();
            let total: f64 = order.iter().map(weight).sum();
            order.iter().map(|i| weight(i) / total).collect()
        };
        let p = softmax(&order);
        let before = |n: usize| p[..n].iter().sum::<f64>();
        let kept = (1..order.len()).take_while(|&n| s.top_p == 1.0 || before(n) < s.top_p).count() + 1;
        order.truncate(kept);
        let p = softmax(&order);
        let kept = p.iter().take_while(|&&x| x >= s.min_p * p[0]).count().max(1);
        order.truncate(kept);
        let p = softmax(&order);
        let mut sum = 0.0;
        for (i, p) in order.iter().zip(p) {
            sum += p;
            if sum > point {
                return *i as u32;
            }
        }
        order[order.len() - 1] as u32
    }

    fn random_logits(seed: u64, len: usize, spread: f32) -> Vec<f32> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        (0..len).map(|_| spread * (random.random::<f32>() - 0.5)).collect()
    }

    #[test]
    fn draws_are_those_of_sorting_everything() {
        let settings = [
            (1.0, 0, 1.0, 0.0),
            (0.7, 40, 1.0, 0.0),
            (1.0, 64, 0.95, 0.0),
            (1.3, 0, 0.9, 0.0),
            (1.0, 0, 1.0, 0.1),
            (2.0, 100, 0.8, 0.05),
            (1.0, 1, 1.0, 0.0),
            (1.0, 0, 0.0, 0.0),
            (0.01, 0, 0.5, 1.0),
            (5.0, 0, 0.999, 0.0),
        ];
        let mut cases = 0;
        for (temperature, top_k, top_p, min_p) in settings {
            for (len, spread) in [(1, 1.0), (2, 3.0), (50, 10.0), (3000, 2.0), (3000, 30.0)] {
                for seed in 0..20 {
                    let logits = random_logits(seed, len, spread);
                    let s = Sampling { temperature, top_k, top_p, min_p, seed, ..Sampling::GREEDY };
                    let mut sampler = Sampler::new(s, &[]);
                    let mut random = ChaCha8Rng::seed_from_u64(seed);
                    for _ in 0..3 {
                        let expected = plain(&logits, &s, random.random());
                        let found = sampler.next(&mut logits.clone());
                        assert_eq!(found, Some(expected), "{s:?}, {len} logits over {spread}");
                        cases += 1;
                    }
                }
            }
        }
        assert_eq!(cases, 3000);
    }

    /// 20 000 draws of five tokens agree with the softmax within four standard deviations.
    #[test]
    fn frequencies_are_the_softmax() {
        let logits = [0.0f32, 1.0, 2.0, -1.0, 0.5];
        let s = Sampling { temperature: 1.0, seed: 3, ..Sampling::GREEDY };
        let mut sampler = Sampler::new(s, &[]);
        let mut counts = [0u32; 5];
        for _ in 0..20_000 {
            counts[sampler.next(&mut logits.clone()).expect("finite") as usize] += 1;
        }
        let total: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
        for (count, logit) in counts.iter().zip(logits) {
            let p = f64::from(logit).exp() / total;
            let deviation = (p * (1.0 - p) * 20_000.0).sqrt();
            let distance = (f64::from(*count) - 20_000.0 * p).abs();
            assert!(distance < 4.0 * deviation, "expected {}, found {count}", 20_000.0 * p);
        }
    }

    #[test]
    fn a_seed_decides_and_another_decides_otherwise() {
        let draws = |seed: u64| -> Vec<u32> {
            let mut sampler = Sampler::new(Sampling { seed, ..RANDOM }, &[]);
            let logits = random_logits(1, 500, 3.0);
            (0..20).map(|_| sampler.next(&mut logits.clone()).expect("finite")).collect()
        };
        assert_eq!(draws(7), draws(7));
        assert_ne!(draws(7), draws(8));
    }

    /// transformers' RepetitionPenaltyLogitsProcessor with a penalty of 2 maps 2 → 1 and -1 → -2; OpenAI's penalties depend on
    /// the count.
    #[test]
    fn penalties_are_of_what_occurred() {
        let s = Sampling {
            repetition_penalty: 2.0,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            ..Sampling::GREEDY
        };
        let mut sampler = Sampler::new(s, &[0, 1]);
        assert!(!sampler.is_greedy());
        sampler.count(2);
        sampler.count(2);
        let mut logits = [2.0, -1.0, 4.0, 3.0];
        assert_eq!(sampler.next(&mut logits), Some(3));
        assert_eq!(logits, [1.0, -2.0, 4.0 / 2.0 - 0.5 - 2.0 * 0.25, 3.0]);
    }

    #[test]
    fn greedy_is_the_first_of_the_largest() {
        assert_eq!(Sampler::new(Sampling::GREEDY, &[]).next(&mut [1.0, 3.0, 3.0]), Some(1));
        assert!(Sampler::new(Sampling::GREEDY, &[]).is_greedy());
        assert_eq!(likeliest(&[]), 0);
    }

    #[test]
    fn what_is_not_finite_is_no_choice() {
        for s in [Sampling::GREEDY, RANDOM] {
            assert_eq!(Sampler::new(s, &[]).next(&mut [1.0, f32::NAN]), None);
            assert_eq!(Sampler::new(s, &[]).next(&mut [1.0, f32::INFINITY]), None);
            assert_eq!(Sampler::new(s, &[]).next(&mut [f32::NEG_INFINITY; 2]), None);
            assert_eq!(Sampler::new(s, &[]).next(&mut []), None);
        }
    }

    #[test]
    fn values_out_of_range_are_named() {
        let s = Sampling { top_p: 1.5, ..RANDOM };
        assert_eq!(s.check().unwrap_err(), "top_p = 1.5: expected a number from 0 to 1");
        assert!(
            Sampling { temperature: f64::NAN, ..s }.check().unwrap_err().starts_with("temperature = NaN")
        );
        assert_eq!(RANDOM.check(), Ok(()));
    }
}
