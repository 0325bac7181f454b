//! Rewards of completions: the first rank computes them, and all get them.

use crate::data::batch::Sample;
use crate::rewards::Completion;
use crate::run::OpenBase;
use crate::train::TrainError;
use crate::train::ranks::Ranks;

use super::draw::Drawn;
use super::setup::{Setup, row};

/// Scores, `[reward][completion]`.
pub type Scores = Vec<Vec<Option<f64>>>;

/// The scores of `drawn`, each a completion of the prompt beside it.
pub fn judge(
    setup: &Setup,
    base: &OpenBase,
    ranks: &Ranks,
    prompts: &[&Sample],
    drawn: &[Drawn],
) -> Result<Scores, TrainError> {
    let own = match ranks.is_first() {
        true => to_bytes(&first(setup, base, prompts, drawn)),
        false => Vec::new(),
    };
    from_bytes(&ranks.broadcast(own)?).map_err(TrainError::Rewards)
}

fn first(setup: &Setup, base: &OpenBase, prompts: &[&Sample], drawn: &[Drawn]) -> Result<Scores, String> {
    let texts: Vec<String> = drawn.iter().map(|drawn| drawn.text(base)).collect();
    let each = prompts.iter().zip(drawn).zip(&texts);
    let completions: Vec<Completion> = each
        .map(|((prompt, drawn), text)| Completion {
            prompt: &row(prompt).prompt,
            text,
            ids: &drawn.ids,
            finished: drawn.finished,
            row: &row(prompt).columns,
        })
        .collect();
    let mut rewards = setup.rewards.lock().expect("lock is not poisoned");
    rewards.score(&completions).map_err(|error| error.to_string())
}

/// For other ranks. Numbers travel as bits, which text would round.
fn to_bytes(scores: &Result<Scores, String>) -> Vec<u8> {
    let bits = |scores: &Scores| -> Vec<Vec<Option<u64>>> {
        scores.iter().map(|scores| scores.iter().map(|score| score.map(f64::to_bits)).collect()).collect()
    };
    let scores = scores.as_ref().map(bits);
    serde_json::to_vec(&scores).expect("lists of numbers")
}

fn from_bytes(bytes: &[u8]) -> Result<Scores, String> {
    let scores: Result<Vec<Vec<Option<u64>>>, String> =
        serde_json::from_slice(bytes).expect("what the first rank has written");
    let numbers =
        |scores: Vec<Option<u64>>| scores.into_iter().map(|bits| bits.map(f64::from_bits)).collect();
    Ok(scores?.into_iter().map(numbers).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_and_errors_round_trip() {
        let scores = Ok(vec![vec![Some(0.1 + 0.2), None], vec![Some(-0.0), Some(1e300)]]);
        assert_eq!(from_bytes(&to_bytes(&scores)), scores);
        let error = Err("no answer".to_owned());
        assert_eq!(from_bytes(&to_bytes(&error)), error);
    }
}
