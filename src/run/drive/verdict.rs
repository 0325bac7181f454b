//! A run in a few sentences: whether it learned, whether it was long enough, and what it did to other questions.

use super::metrics::{Effects, History, TOLERATED};

/// Part of the whole fall of the loss that the last evaluation adds where a longer run may learn more.
const STILL_FALLING: f64 = 0.05;
/// Part of the lowest loss by which it has risen where a run has learned its samples by heart.
const RISEN: f64 = 0.02;

/// The sentences about a finished run. `kept`: the step whose adapter was exported.
pub fn verdict(history: &History, kept: usize) -> Vec<String> {
    let losses: Vec<(usize, f64)> =
        history.evaluations().filter_map(|e| Some((e.step, e.scores?.eval_loss))).collect();
    let rewards: Vec<(usize, f64)> =
        history.evaluations().filter_map(|e| Some((e.step, e.reward()?))).collect();
    let mut sentences = vec![match rewards.is_empty() {
        true => of_losses(&losses, kept),
        false => of_rewards(&rewards, kept),
    }];
    sentences.extend(history.effects().and_then(of_effects));
    sentences
}

/// A sentence about the validation losses by step.
fn of_losses(losses: &[(usize, f64)], kept: usize) -> String {
    let [(0, before), .., (end, last)] = losses[..] else {
        return "Whether it learned more than its samples by heart is unknown: there are no validation samples".into();
    };
    let (at, lowest) =
        losses[1..].iter().copied().fold((0, f64::MAX), |best, e| if e.1 < best.1 { e } else { best });
    if lowest >= before {
        return format!(
            "Nothing learned: the validation loss did not fall below {before:.4}, where it was before training"
        );
    }
    let part = 100.0 * (1.0 - lowest / before);
    let fell = format!("The validation loss fell by {part:.0} %, from {before:.4} to {lowest:.4}");
    if last > lowest * (1.0 + RISEN) {
        let rise = 100.0 * (last / lowest - 1.0);
        let written = match kept == at {
            true => "that adapter is the one written".into(),
            false => format!("the adapter written is that of step {kept}; eval.keep_best keeps the best"),
        };
        return format!(
            "{fell} after step {at}, and then rose by {rise:.0} %: the rest of the run learned its samples by heart; {written}"
        );
    }
    let unknown = format!("{fell}; with so few evaluations it is unknown whether it had settled");
    let [.., (_, earlier), _] = losses[1..] else { return unknown };
    // The second half of a run still learns, which says nothing about its end.
    match (at == end && earlier - last >= STILL_FALLING * (before - last), losses.len()) {
        (true, ..=3) => unknown,
        (true, _) => {
            format!("{fell}, and was still falling: a longer run or a higher learning rate may learn more")
        }
        (false, _) => format!("{fell}, and had settled"),
    }
}

/// A sentence about the rewards of validation prompts by step.
fn of_rewards(rewards: &[(usize, f64)], kept: usize) -> String {
    let [(0, before), .., (_, last)] = rewards[..] else {
        return "The reward of validation prompts was measured once: whether it rose is unknown".into();
    };
    let (at, highest) =
        rewards[1..].iter().copied().fold((0, f64::MIN), |best, e| if e.1 > best.1 { e } else { best });
    if highest <= before {
        return format!(
            "Nothing learned: the reward of validation prompts did not rise above {before:.3}, where it was before training"
        );
    }
    let rose = format!("The reward of validation prompts rose from {before:.3} to {highest:.3}");
    match last < highest {
        true if kept == at => {
            format!("{rose} after step {at}, whose adapter is the one written, and was {last:.3} at the end")
        }
        true => format!(
            "{rose} after step {at}, and was {last:.3} at the end; the adapter written is that of step {kept}"
        ),
        false => rose,
    }
}

/// A sentence about general questions; `None` if that was not measured.
fn of_effects(effects: &Effects) -> Option<String> {
    let general = effects.general.as_ref()?;
    let loops = effects.loops().count();
    let (change, of) = (general.loss_change, effects.replies.len());
    Some(match (loops, change) {
        (1.., _) => format!(
            "General knowledge is damaged: {loops} of {of} replies to general questions repeat themselves"
        ),
        (0, change) if change > TOLERATED => format!(
            "It changes general questions too: their loss rose by {change:.3}; compare the replies, and train less if they should stay"
        ),
        _ => format!("General questions are answered as before (loss {change:+.3})"),
    })
}

#[cfg(test)]
mod tests {
    use super::super::metrics::{Evaluation, GeneralReply, MetricsEvent, Scores, Shift};
    use super::*;
    use crate::talk::ending::Ending;

    fn of(losses: &[f64], kept: usize) -> Vec<String> {
        let mut history = History::default();
        for (i, &eval_loss) in losses.iter().enumerate() {
            let scores = Some(Scores { eval_loss, ..Scores::default() });
            history.push(MetricsEvent::Evaluation(Evaluation {
                step: 10 * i,
                scores,
                ..Evaluation::default()
            }));
        }
        verdict(&history, kept)
    }

    #[test]
    fn the_curve_is_told_in_words() {
        let starts = |losses: &[f64], kept: usize, expected: &str| {
            let found = of(losses, kept);
            assert!(found.len() == 1 && found[0].contains(expected), "{found:?}, expected {expected:?}");
        };
        starts(&[], 0, "there are no validation samples");
        starts(&[2.0, 2.1, 2.2], 20, "Nothing learned");
        starts(&[2.5615, 1.8330, 1.5404, 1.4950], 30, "fell by 42 %, from 2.5615 to 1.4950, and had settled");
        starts(&[2.5615, 1.8330, 1.6404, 1.4950], 30, "and was still falling");
        starts(&[2.0, 1.5], 10, "so few evaluations");
        starts(&[2.0, 1.5, 1.2], 20, "so few evaluations");
        starts(&[2.0, 1.5, 1.5], 10, "and had settled");
        starts(
            &[2.0, 1.0, 1.2, 1.5],
            10,
            "after step 10, and then rose by 50 %: the rest of the run learned its samples by heart; that",
        );
        starts(
            &[2.0, 1.0, 1.2, 1.5],
            30,
            "the adapter written is that of step 30; eval.keep_best keeps the best",
        );
    }

    #[test]
    fn damage_is_told_in_words() {
        let of = |loss_change, ending| {
            let general = Some(Shift { on: "".into(), places: 1, other_word: 0.0, loss_change, kl: 0.0 });
            let reply = GeneralReply {
                prompt: "?".into(),
                base: "".into(),
                base_ending: None,
                reply: "".into(),
                ending,
            };
            let mut history = History::default();
            history.push(MetricsEvent::Effects(Effects {
                general,
                replies: vec![reply],
                ..Effects::default()
            }));
            verdict(&history, 1)[1].clone()
        };
        assert_eq!(of(0.01, None), "General questions are answered as before (loss +0.010)");
        assert!(of(0.2, None).starts_with("It changes general questions too: their loss rose by 0.200"));
        assert!(of(0.01, Some(Ending::Loop)).starts_with("General knowledge is damaged: 1 of 1 replies"));
    }
}
