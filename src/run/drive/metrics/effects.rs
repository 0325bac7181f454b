//! What a trained adapter changes, on the run's data and on general questions.

use serde::{Deserialize, Serialize};

use super::SampleReply;
use crate::talk::ending::Ending;
use crate::verify::Effect;

/// Loss in nats by which general questions may become less likely: 5 % of perplexity, which is more than a base loses by good quantization to
/// 4 bits (1 to 2 %), and less than to 2 bits (15 %).
pub const TOLERATED: f64 = 0.05;

/// The base with the exported adapter, compared with the base alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Effects {
    /// The step whose adapter it is.
    pub step: usize,
    /// On validation samples, or on training samples if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Shift>,
    /// On general questions and answers, which the data is not about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub general: Option<Shift>,
    /// Replies to some of these questions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replies: Vec<GeneralReply>,
}

/// The change of the next word's probabilities, over some text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shift {
    /// The text, in words.
    pub on: String,
    /// Places that were compared.
    pub places: usize,
    /// Fraction of the places at which another word is the likeliest.
    pub other_word: f64,
    /// Loss with the adapter less that of the base alone, in nats.
    pub loss_change: f64,
    /// Mean KL divergence of the base alone from the base with the adapter, in nats.
    pub kl: f64,
}

impl Shift {
    /// The change over the text `on`; `None` if it is not finite.
    pub fn new(on: &str, effect: &Effect) -> Option<Shift> {
        let Effect { divergence, improvement, .. } = effect;
        (divergence.kl.is_finite() && improvement.is_finite()).then(|| Shift {
            on: on.into(),
            places: divergence.tokens,
            other_word: 1.0 - divergence.top1,
            loss_change: -improvement,
            kl: divergence.kl,
        })
    }
}

/// The replies to a general question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GeneralReply {
    /// The question.
    pub prompt: String,
    /// The reply of the base alone.
    pub base: String,
    /// Its fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_ending: Option<Ending>,
    /// The reply of the base with the adapter.
    pub reply: String,
    /// Its fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<Ending>,
}

impl Effects {
    /// The rise of the general questions' loss, if it is more than [`TOLERATED`].
    pub fn general_rise(&self) -> Option<f64> {
        self.general.as_ref().map(|general| general.loss_change).filter(|rise| *rise > TOLERATED)
    }

    /// The general questions whose reply repeats itself, where that of the base does not.
    pub fn loops(&self) -> impl Iterator<Item = &str> {
        let new = |r: &&GeneralReply| r.ending == Some(Ending::Loop) && r.base_ending != Some(Ending::Loop);
        self.replies.iter().filter(new).map(|r| &*r.prompt)
    }
}

/// The prompts whose reply repeats itself, where the one `before` did not.
pub fn new_loops<'r>(before: &[SampleReply], after: &'r [SampleReply]) -> Vec<&'r str> {
    let looped = |prompt: &str| before.iter().any(|r| r.prompt == prompt && r.ending == Some(Ending::Loop));
    let new = after.iter().filter(|r| r.ending == Some(Ending::Loop) && !looped(&r.prompt));
    new.map(|r| &*r.prompt).collect()
}
