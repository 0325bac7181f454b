//! Effects of the trained adapter on the run's data and on general questions, measured once after the last step.

use web_time::Instant;

use super::general::longest;
use super::metrics::{Effects, GeneralReply, MetricsEvent, Shift, TOLERATED};
use super::{DriveError, Host, Phase, Run, RunEvent, answers};
use crate::adapter::lora::Adapter;
use crate::data::batch::Sample;
use crate::verify::{self, Effect, HeldOut};

/// Describes the text that [`OpenBase::questions`](super::OpenBase::questions) gives.
pub const GENERAL: &str = "8 built-in questions";
/// Training samples and their tokens that stand for the data if there are no validation samples.
const SAMPLES: [usize; 2] = [8, 1024];

impl Run<'_> {
    /// Measures the effects of `adapter`, which is that of `step`, and warns of damage. `exported`: its effect on the validation samples, where the
    /// export has measured it. Afterwards the trainer holds an unspecified adapter.
    pub(super) async fn measure_effects<H: Host>(
        &mut self,
        step: usize,
        adapter: &Adapter,
        exported: Option<Effect>,
        host: &mut H,
    ) -> Result<(), H::Error> {
        if !self.trainer.ranks().is_first() {
            return Ok(());
        }
        let started = Instant::now();
        // Prompts have no loss: the export is compared on the built-in questions then.
        let validated = !self.prepared.validation.is_empty();
        let mut effects = Effects { step, ..Effects::default() };
        let general = match exported.filter(|_| !validated) {
            Some(effect) => Some(effect),
            None if self.recipe.eval.general => {
                host.on_event(self, RunEvent::Progress { phase: Phase::General, done: 0, of: 0 })?;
                let questions = self.base.questions(self.longest_question());
                Some(self.effect(adapter, &questions).await?)
            }
            None => None,
        };
        effects.general = general.as_ref().and_then(|effect| Shift::new(GENERAL, effect));
        if general.is_some() && effects.general.is_none() {
            self.warn(
                "the logits for general questions are not finite: the adapter is damaged".into(),
                host,
            )?;
        }
        effects.data = match exported.filter(|_| validated) {
            Some(effect) => Shift::new("validation samples", &effect),
            None if self.recipe.eval.general && self.prepared.grpo.is_none() => {
                self.effect_on_data(adapter).await?
            }
            None => None,
        };
        effects.replies = self.general_replies(adapter, host).await?;
        self.history.push(MetricsEvent::Effects(effects.clone()));
        let seconds = started.elapsed().as_secs_f64();
        host.on_event(self, RunEvent::Effects { effects: &effects, seconds })?;
        let warnings = warnings(&effects);
        warnings.into_iter().try_for_each(|warning| self.warn(warning, host))
    }

    /// Most tokens of a piece of a question: all positions that the model has.
    pub(super) fn longest_question(&self) -> usize {
        self.trainer.capacity().tokens.min(self.prepared.positions)
    }

    async fn effect(&mut self, adapter: &Adapter, held_out: &HeldOut) -> Result<Effect, DriveError> {
        Ok(verify::effect_of(&mut self.trainer, adapter, held_out).await?)
    }

    /// The effect on validation samples that no export has measured, or on training samples.
    async fn effect_on_data(&mut self, adapter: &Adapter) -> Result<Option<Shift>, DriveError> {
        let data = &self.prepared.data;
        let (on, samples) = match &data.validation[..] {
            [] => ("training samples", &data.train),
            _ => ("validation samples", &data.validation),
        };
        let mut tokens = 0;
        let few: Vec<Sample> = (samples.iter().filter(|sample| !sample.side.is_bad()))
            .take(SAMPLES[0])
            .take_while(|sample| {
                tokens += sample.ids.len();
                tokens <= SAMPLES[1] || tokens == sample.ids.len()
            })
            .cloned()
            .collect();
        let Ok(held_out) = HeldOut::of_samples(&few, self.base.base.config().vocab) else { return Ok(None) };
        Ok(Shift::new(on, &self.effect(adapter, &held_out).await?))
    }

    /// Replies of the base alone and with the adapter; none if the user asked to stop.
    async fn general_replies<H: Host>(
        &self,
        adapter: &Adapter,
        host: &mut H,
    ) -> Result<Vec<GeneralReply>, H::Error> {
        let questions = &self.prepared.general;
        let prompts: Vec<&[u32]> = questions.iter().map(|(_, ids)| &ids[..]).collect();
        let mut alone = adapter.clone();
        alone.pairs.values_mut().for_each(|pair| pair.b.fill(0.0));
        let mut both = Vec::new();
        for (number, adapter) in [&alone, adapter].into_iter().enumerate() {
            let of = 2 * prompts.len();
            let before = |done: usize| {
                let done = number * prompts.len() + done;
                host.on_event(self, RunEvent::Progress { phase: Phase::General, done, of })?;
                Ok(!host.is_stopping())
            };
            let (room, longest) = (answers::Room::of(&self.trainer), longest(self.recipe));
            let all = (&prompts[..], prompts.len());
            let answers = answers::generate::<H::Error>(room, self.base, adapter, all, longest, before);
            let Some(answers) = answers.await? else { return Ok(Vec::new()) };
            both.push(answers);
        }
        let [base, own] = &both[..] else { return Ok(Vec::new()) };
        let reply =
            |(((prompt, _), base), own): ((&(String, Vec<u32>), &answers::Answer), &answers::Answer)| {
                let prompt = prompt.clone();
                let (base, base_ending) = (base.text.clone(), base.ending);
                GeneralReply { prompt, base, base_ending, reply: own.text.clone(), ending: own.ending }
            };
        Ok(questions.iter().zip(base).zip(own).map(reply).collect())
    }
}

/// Warnings about what the adapter does to other questions than those of the data.
fn warnings(effects: &Effects) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(rise) = effects.general_rise() {
        warnings.push(format!(
            "the loss on general questions rose by {rise:.3} (up to {TOLERATED} is usual): the adapter changes answers that the data is not \
             about. A persona does that; otherwise a lower train.learning_rate, fewer epochs, or general samples beside the data keep them"
        ));
    }
    let loops: Vec<&str> = effects.loops().collect();
    if !loops.is_empty() {
        warnings.push(format!(
            "the adapter repeats itself when asked {}, which the base does not: it is damaged. Lower train.learning_rate, or train less",
            super::evaluate::quoted(&loops)
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::talk::ending::Ending;

    #[test]
    fn damage_is_told() {
        let shift = |loss_change| {
            Some(Shift { on: GENERAL.into(), places: 146, other_word: 0.1, loss_change, kl: 0.1 })
        };
        let reply = |base_ending, ending| GeneralReply {
            prompt: "What is the capital of France?".into(),
            base: String::new(),
            base_ending,
            reply: String::new(),
            ending,
        };
        let of = |general, replies| warnings(&Effects { general, replies, ..Effects::default() });
        assert_eq!(of(shift(0.04), vec![reply(None, Some(Ending::Limit))]), Vec::<String>::new());
        assert_eq!(of(None, vec![reply(Some(Ending::Loop), Some(Ending::Loop))]), Vec::<String>::new());
        let found = of(shift(0.086), vec![reply(None, Some(Ending::Loop))]);
        assert!(
            found[0].starts_with("the loss on general questions rose by 0.086 (up to 0.05 is usual): "),
            "{found:?}"
        );
        assert!(found[1].contains(
            "repeats itself when asked \"What is the capital of France?\", which the base does not"
        ));
    }
}
