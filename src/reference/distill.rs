//! Divergence from a teacher's distribution, with cross entropy, over the teacher's likeliest tokens and one bucket for all others.

use super::cross_entropy::{log_sum_exp, softcap};
use super::{row, row_mut};
use crate::ops::distill::{Distill, Divergence};

/// The teacher's distribution for one row.
#[derive(Clone, Debug, PartialEq)]
pub struct Taught {
    /// Tokens and their log-probabilities.
    pub tokens: Vec<(u32, f64)>,
    /// Log-probability of all other tokens together; `None` if there are none.
    pub rest: Option<f64>,
}

/// Divergence and cross entropy of each row of `logits` before the softcap `[N, V]`, `[N]`.
pub fn forward(
    distill: &Distill,
    logits: &[f64],
    targets: &[u32],
    taught: &[Taught],
    cap: Option<f64>,
    vocab: usize,
) -> Vec<[f64; 2]> {
    let mut results = Vec::new();
    for n in 0..targets.len() {
        let capped = softcap(row(logits, n, vocab), cap);
        let student = Student::of(distill, &capped, &taught[n]);
        let mut divergence = 0.0;
        for bucket in student.buckets(&taught[n]) {
            divergence += term(distill.divergence, bucket).0;
        }
        results.push([divergence, log_sum_exp(&capped) - capped[targets[n] as usize]]);
    }
    results
}

/// Gradient of `Σ_n coefficients_n·(weight·divergence_n + sft_weight·cross_entropy_n)` with respect to the logits before the softcap,
/// `[N, V]`.
pub fn backward(
    distill: &Distill,
    coefficients: &[f64],
    logits: &[f64],
    targets: &[u32],
    taught: &[Taught],
    cap: Option<f64>,
    vocab: usize,
) -> Vec<f64> {
    let mut dlogits = vec![0.0; logits.len()];
    for n in 0..targets.len() {
        let capped = softcap(row(logits, n, vocab), cap);
        let student = Student::of(distill, &capped, &taught[n]);
        // By each bucket's log-probability, then by each logit: ∂(ln p_b)/∂c_j = ([j in b]·p_j/p_b − p_j) / T.
        let slopes: Vec<f64> = student.buckets(&taught[n]).map(|b| term(distill.divergence, b).1).collect();
        let sum: f64 = slopes.iter().sum();
        let lse = log_sum_exp(&capped);
        let dlogits = row_mut(&mut dlogits, n, vocab);
        for j in 0..vocab {
            let own = match taught[n].tokens.iter().position(|(id, _)| *id as usize == j) {
                Some(place) => slopes[place],
                None => slopes[slopes.len() - 1] * (student.logs[j] - student.rest).exp(),
            };
            let divergence = (own - student.logs[j].exp() * sum) / distill.temperature;
            let one_hot = if j == targets[n] as usize { 1.0 } else { 0.0 };
            let entropy = (capped[j] - lse).exp() - one_hot;
            let slope = cap.map_or(1.0, |cap| 1.0 - (capped[j] / cap) * (capped[j] / cap));
            let dcapped = distill.weight * divergence + distill.sft_weight * entropy;
            dlogits[j] = coefficients[n] * dcapped * slope;
        }
    }
    dlogits
}

/// The student's distribution at the temperature.
struct Student {
    logs: Vec<f64>,
    /// Log-probability of the tokens that the teacher's list lacks.
    rest: f64,
}

impl Student {
    fn of(distill: &Distill, capped: &[f64], taught: &Taught) -> Student {
        let warm: Vec<f64> = capped.iter().map(|c| c / distill.temperature).collect();
        let lse = log_sum_exp(&warm);
        let logs: Vec<f64> = warm.iter().map(|c| c - lse).collect();
        let listed = |j: usize| taught.tokens.iter().any(|(id, _)| *id as usize == j);
        let others: Vec<f64> = (0..logs.len()).filter(|&j| !listed(j)).map(|j| logs[j]).collect();
        let rest = if others.is_empty() { f64::NEG_INFINITY } else { log_sum_exp(&others) };
        Student { logs, rest }
    }

    /// Log-probabilities of each bucket under the teacher and under the student; the last is that of all other tokens, if there are any.
    fn buckets<'a>(&'a self, taught: &'a Taught) -> impl Iterator<Item = [f64; 2]> + 'a {
        let listed = taught.tokens.iter().map(|(id, log)| [*log, self.logs[*id as usize]]);
        listed.chain(taught.rest.map(|rest| [rest, self.rest]))
    }
}

/// A bucket's part of the divergence, and its derivative with respect to the student's log-probability, less a multiple of the student's
/// probability, which cancels out.
fn term(divergence: Divergence, [teacher, student]: [f64; 2]) -> (f64, f64) {
    let (q, p) = (teacher.exp(), student.exp());
    match divergence {
        Divergence::ForwardKl => (q * (teacher - student), -q),
        Divergence::ReverseKl => (p * (student - teacher), p * (student - teacher)),
        Divergence::Jsd { beta } => {
            let mixed = (beta * q + (1.0 - beta) * p).ln();
            let own = (1.0 - beta) * p * (student - mixed);
            (beta * q * (teacher - mixed) + own, own)
        }
    }
}
