//! Answers that a model generates to questions of the validation data, for `eval.metrics`.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use regex::Regex;
use serde::{Deserialize, Serialize};

use super::{Data, DriveError, OpenBase, RunError};
use crate::adapter::lora::Adapter;
use crate::data::batch::{Sample, Together};
use crate::data::dataset::{Notice, What};
use crate::gpu::Gpu;
use crate::model::Model;
use crate::model::decode::{Lengths, Workspace};
use crate::recipe::{Eval, Metric, Recipe};
use crate::talk::ending::Ending;
use crate::talk::generate::{CHUNK, Generator, Options, Reply};
use crate::talk::metrics::{Question, json};
use crate::talk::replies::{News, Replies};
use crate::talk::sampling::Sampling;
use crate::train::Trainer;

/// The questions of `eval.metrics`: the last answers of at most `eval.metric_samples` validation samples, spread evenly. The
/// notice is about answers that are too long.
///
/// Fails if there are no validation samples, or if their answers do not suit the metrics.
pub fn questions(
    recipe: &Recipe,
    base: &OpenBase,
    data: &Data,
) -> Result<(Vec<Question>, Option<Notice>), RunError> {
    let eval = &recipe.eval;
    if eval.metrics.is_empty() {
        return Ok((Vec::new(), None));
    }
    let good: Vec<&Sample> = data.validation.iter().filter(|s| !s.side.is_bad()).collect();
    let total = good.len();
    if total == 0 {
        return Err(conflict(
            "eval.metrics needs validation samples: set data.valid or data.val_size, or remove it",
        ));
    }
    let count = total.min(eval.metric_samples.unwrap_or(usize::MAX));
    let mut questions = Vec::new();
    for sample in (0..count).map(|i| good[i * total / count]) {
        let Some(question) = Question::of(sample, &base.tokenizer) else {
            return Err(conflict(format!(
                "eval.metrics needs samples with questions and answers, but {} is all loss tokens; remove eval.metrics, or \
                 set data.train_on = \"assistant\" where the samples are conversations",
                sample.origin
            )));
        };
        if eval.metrics.contains(&Metric::Json) && json(&question.reference).is_none() {
            return Err(conflict(format!(
                "eval.metrics has \"json\", but the answer of {} is not JSON: {:?}; remove \"json\", or correct the samples",
                sample.origin, question.reference
            )));
        }
        questions.push(question);
    }
    let context = base.base.config().context_length;
    let longest = with_answer(recipe, &questions);
    if longest > context {
        return Err(conflict(format!(
            "the longest question of eval.metrics needs {longest} tokens with its answer, but {} has a context of {context}; \
             lower eval.max_new_tokens, or data.max_seq_len",
            base.base.name()
        )));
    }
    let long = questions.iter().map(|q| q.tokens).filter(|&tokens| tokens > eval.max_new_tokens);
    let notice = long.clone().max().map(|longest| Notice {
        place: "eval.metrics".into(),
        what: What::LongAnswers {
            count: long.count(),
            total: count,
            longest,
            max_new_tokens: eval.max_new_tokens,
        },
    });
    Ok((questions, notice))
}

fn conflict(message: impl Into<String>) -> RunError {
    RunError::Conflict(message.into())
}

/// Tokens of the longest question with its answer.
pub fn with_answer(recipe: &Recipe, questions: &[Question]) -> usize {
    questions.iter().map(|q| q.prompt.len() + recipe.eval.max_new_tokens).max().unwrap_or(0)
}

/// A generated answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The text.
    pub text: String,
    /// Its fault, if it does not end as it should.
    pub ending: Option<Ending>,
}

impl Answer {
    fn of(reply: Reply) -> Answer {
        Answer { ending: Ending::of(&reply), text: reply.text }
    }
}

/// Mean of each metric of `eval` over `answers` to `questions`, in their order.
pub fn scores(eval: &Eval, questions: &[Question], answers: &[Answer]) -> BTreeMap<Metric, f64> {
    let pattern = eval.regex.as_deref().map(|p| Regex::new(p).expect("checked with the recipe"));
    let mean = |&metric: &Metric| {
        let each = questions.iter().zip(answers);
        let sum: f64 =
            each.map(|(q, answer)| metric.score(&answer.text, &q.reference, pattern.as_ref())).sum();
        (metric, sum / answers.len().max(1) as f64)
    };
    eval.metrics.iter().map(mean).collect()
}

/// Prompts from which on answers are generated together: a device takes about as long for many sequences as for one, but longer than for
/// one alone.
const MANY: usize = 6;

/// The sequences that [`generate`] is best given room for, to answer each of some lists of so many prompts, of `reply` tokens with their
/// answers.
pub fn together(lists: &[usize], reply: usize) -> Together {
    match lists.iter().copied().max() {
        Some(count @ MANY..) => Together { count, context: reply, comes_first: false },
        _ => Together::default(),
    }
}

/// The number of answers that [`generate`] works on at once, of `prompts`.
pub fn at_once(room: Room<'_>, prompts: usize) -> usize {
    if prompts < MANY { 1 } else { room.sequences.min(prompts) }
}

/// The device's side of [`generate`].
#[derive(Clone, Copy)]
pub struct Room<'a> {
    /// The device.
    pub gpu: &'a Gpu,
    /// The base on it.
    pub model: &'a Model<'a>,
    /// Sequences that there is memory for; their number changes no answer.
    pub sequences: usize,
}

impl<'a> Room<'a> {
    /// The room that `trainer` has planned.
    pub fn of(trainer: &'a Trainer) -> Room<'a> {
        let sequences = trainer.plan().sequences.max(1);
        Room { gpu: trainer.gpu(), model: trainer.model(), sequences }
    }
}

/// Generates a greedy answer of at most `max_new_tokens` tokens to each prompt, independently of the others. `before` gets the number of
/// answers so far, and returns false to stop; the result is then `None`. All ranks together answer `of` prompts, which decides on the
/// kernels.
pub async fn generate<E: From<DriveError>>(
    room: Room<'_>,
    base: &OpenBase,
    adapter: &Adapter,
    (prompts, of): (&[&[u32]], usize),
    max_new_tokens: usize,
    before: impl FnMut(usize) -> Result<bool, E>,
) -> Result<Option<Vec<Answer>>, E> {
    let Some(longest) = prompts.iter().map(|prompt| prompt.len()).max() else { return Ok(Some(Vec::new())) };
    let lengths = Lengths { context: longest + max_new_tokens, chunk: CHUNK };
    let options = Options { sampling: Sampling::GREEDY, max_new_tokens, stop: Vec::new(), logprobs: None };
    let work = Work { room, lengths, base, adapter, prompts, options };
    if of < MANY { work.alone(before).await } else { work.together(before).await }
}

/// The prompts of [`generate`], and all that their answers follow from.
struct Work<'w> {
    room: Room<'w>,
    lengths: Lengths,
    base: &'w OpenBase,
    adapter: &'w Adapter,
    prompts: &'w [&'w [u32]],
    options: Options,
}

impl Work<'_> {
    /// Answers one prompt after the other.
    async fn alone<E: From<DriveError>>(
        &self,
        mut before: impl FnMut(usize) -> Result<bool, E>,
    ) -> Result<Option<Vec<Answer>>, E> {
        let Room { gpu, model, .. } = self.room;
        let workspace = Workspace::stream(gpu, model, self.lengths, self.adapter.rank).await;
        let workspace = workspace.map_err(DriveError::from)?;
        let generator = Generator::new(&workspace, &self.base.tokenizer, Some(self.adapter));
        let mut generator = generator.map_err(DriveError::from)?;
        let mut answers = Vec::new();
        for prompt in self.prompts {
            if !before(answers.len())? {
                return Ok(None);
            }
            // Not even by rounding may an answer depend on what is cached.
            generator.reset();
            let reply = generator.reply(prompt, &self.options, |_| ControlFlow::Continue(())).await;
            answers.push(Answer::of(reply.map_err(DriveError::from)?));
        }
        Ok(Some(answers))
    }

    /// Answers as many prompts at once as there is room for.
    async fn together<E: From<DriveError>>(
        &self,
        mut before: impl FnMut(usize) -> Result<bool, E>,
    ) -> Result<Option<Vec<Answer>>, E> {
        let Room { gpu, model, sequences } = self.room;
        let count = sequences.min(self.prompts.len());
        let workspace = Workspace::for_sequences(gpu, model, self.lengths, self.adapter.rank, count).await;
        let workspace = workspace.map_err(DriveError::from)?;
        let replies = Replies::new(&workspace, &self.base.tokenizer, Some(self.adapter));
        let mut replies = replies.map_err(DriveError::from)?;
        let all: Vec<(&[u32], &Options)> =
            self.prompts.iter().map(|&prompt| (prompt, &self.options)).collect();
        let mut answers = vec![None; all.len()];
        if !before(0)? {
            return Ok(None);
        }
        let (mut done, mut go_on) = (0, Ok(true));
        let hear = |of: usize, news: News<'_>| {
            if let News::Done(reply) = news {
                answers[of] = Some(Answer::of(reply));
                done += 1;
            }
            // A user who stops the run does not wait for the end of long answers.
            if matches!(go_on, Ok(true)) && done < answers.len() {
                go_on = before(done);
            }
            if matches!(go_on, Ok(true)) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        replies.reply(&all, hear).await.map_err(DriveError::from)?;
        Ok(if go_on? { answers.into_iter().collect() } else { None })
    }
}
