//! Sequences that are generated together: those that end leave, and waiting ones take their places.

use std::collections::VecDeque;
use std::ops::ControlFlow;

#[cfg(not(target_arch = "wasm32"))]
use rayon::prelude::*;

use crate::adapter::lora::Adapter;
use crate::data::tokenizer::Tokenizer;
use crate::gpu::GpuError;
use crate::model::decode::{Sequences, Workspace};
use crate::ops::argmax::top::RowTop;
use crate::talk::error::{GenerateError, check};
use crate::talk::reply::Finish;
use crate::talk::sampling::{Sampler, Sampling};
use crate::talk::scores::{MAX_TOP, Score, tempered};

/// A sequence to be generated.
pub(super) struct Job {
    pub prompt: Vec<u32>,
    pub sampling: Sampling,
    /// At least 1.
    pub max_new_tokens: usize,
    /// Compute scores, with this many of the likeliest tokens beside each.
    pub top: Option<usize>,
}

/// A token of a sequence.
pub(super) struct Chosen {
    pub id: u32,
    /// By the softmax over the logits divided by the temperature.
    pub logprob: f32,
    pub score: Option<Score>,
    /// Why the sequence ends here, if it does. Where the model ends it, this is the end token.
    pub finish: Option<Finish>,
}

/// News of a sequence.
pub(super) enum Heard {
    /// Its prompt was read.
    Prompt,
    Token(Chosen),
}

/// The sequences.
pub(super) struct Engine<'a> {
    sequences: Sequences<'a>,
    workspace: &'a Workspace<'a>,
    tokenizer: &'a Tokenizer,
    waiting: VecDeque<(usize, Job)>,
    running: Vec<Running>,
    /// Places without a sequence, the next one last.
    free: Vec<usize>,
}

/// A sequence that is being generated.
struct Running {
    /// The number that its caller gave it.
    of: usize,
    place: usize,
    job: Job,
    sampler: Sampler,
    generated: usize,
    last: u32,
}

impl<'a> Engine<'a> {
    /// Room for the sequences of `workspace`.
    pub fn new(
        workspace: &'a Workspace<'a>,
        tokenizer: &'a Tokenizer,
        adapter: Option<&Adapter>,
    ) -> Result<Engine<'a>, GpuError> {
        let sequences = Sequences::new(workspace, adapter)?;
        let free = (0..sequences.count()).rev().collect();
        let (waiting, running) = Default::default();
        Ok(Engine { sequences, workspace, tokenizer, waiting, running, free })
    }

    /// Lets sequence `of` wait for a place.
    pub fn push(&mut self, of: usize, job: Job) -> Result<(), GenerateError> {
        check(&job.prompt, self.workspace.lengths().context, self.tokenizer)?;
        self.waiting.push_back((of, job));
        Ok(())
    }

    /// Forgets all sequences.
    pub fn clear(&mut self) {
        self.waiting.clear();
        self.free.extend(self.running.drain(..).map(|one| one.place));
    }

    /// Whether there is nothing to generate.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Gives free places to waiting sequences, and generates one token of each that runs. `hear` may end a sequence. An error ends those whose
    /// logits are not finite.
    pub async fn advance(
        &mut self,
        hear: &mut impl FnMut(usize, Heard) -> ControlFlow<()>,
    ) -> Result<(), GenerateError> {
        while !self.free.is_empty() && !self.waiting.is_empty() {
            self.admit(hear).await?;
        }
        if self.running.is_empty() {
            return Ok(());
        }
        let vocab = self.tokenizer.vocab_size();
        let tokens: Vec<(usize, u32)> = self.running.iter().map(|one| (one.place, one.last)).collect();
        self.sequences.step(&tokens, vocab).await?;
        let likeliest = self.sequences.likeliest(tokens.len()).await?;
        let reads = self.running.iter().any(|one| !one.is_greedy());
        let (logits, stride) =
            if reads { self.sequences.all_logits(tokens.len()).await? } else { (Vec::new(), 1) };
        let rows: Vec<&[f32]> = match reads {
            true => logits.chunks_exact(stride).map(|row| &row[..vocab]).collect(),
            false => vec![&[]; likeliest.len()],
        };
        let work: Vec<_> = self.running.iter_mut().zip(rows).zip(&likeliest).collect();
        // Drawing from many logits takes longer than a step.
        #[cfg(not(target_arch = "wasm32"))]
        let work = work.into_par_iter();
        #[cfg(target_arch = "wasm32")]
        let work = work.into_iter();
        let chosen: Vec<Option<Chosen>> =
            work.map(|((one, row), likeliest)| one.choose_of_step(row, likeliest)).collect();
        self.hear_each(0, chosen, hear)
    }

    /// Reads the first waiting prompt, once for all sequences that wait with it, as far as there are places.
    async fn admit(
        &mut self,
        hear: &mut impl FnMut(usize, Heard) -> ControlFlow<()>,
    ) -> Result<(), GenerateError> {
        let (of, job) = self.waiting.pop_front().expect("one waits");
        let mut all = vec![(of, job)];
        let mut i = 0;
        while i < self.waiting.len() && all.len() < self.free.len() {
            match self.waiting[i].1.prompt == all[0].1.prompt {
                true => all.extend(self.waiting.remove(i)),
                false => i += 1,
            }
        }
        let places = self.free.split_off(self.free.len() - all.len());
        let (&first, others) = places.split_last().expect("one is free");
        self.sequences.clear(first);
        let chunks: Vec<&[u32]> = all[0].1.prompt.chunks(self.workspace.lengths().chunk).collect();
        let (last, before) = chunks.split_last().expect("a prompt has tokens");
        for chunk in before {
            self.sequences.append(first, chunk).await?;
            self.workspace.gpu().wait()?;
        }
        let mut logits = self.sequences.logits(first, last).await?;
        logits.truncate(self.tokenizer.vocab_size());
        self.sequences.copy(first, others)?;
        let from = self.running.len();
        let mut chosen = Vec::new();
        for ((of, job), &place) in all.into_iter().zip(places.iter().rev()) {
            let sampler = Sampler::new(job.sampling, &job.prompt);
            let mut one = Running { of, place, job, sampler, generated: 0, last: 0 };
            chosen.push(one.choose(&logits));
            self.running.push(one);
            // Whoever ends it hears of its first token, too.
            let _ = hear(of, Heard::Prompt);
        }
        self.hear_each(from, chosen, hear)
    }

    /// Tells of the tokens of the sequences from `from` on, and lets those go that end.
    fn hear_each(
        &mut self,
        from: usize,
        chosen: Vec<Option<Chosen>>,
        hear: &mut impl FnMut(usize, Heard) -> ControlFlow<()>,
    ) -> Result<(), GenerateError> {
        let mut failed = None;
        let rest = self.running.split_off(from);
        for (mut one, chosen) in rest.into_iter().zip(chosen) {
            let tokens = self.sequences.len(one.place);
            let Some(mut chosen) = chosen else {
                failed.get_or_insert(GenerateError::NotFinite { tokens });
                self.free.push(one.place);
                continue;
            };
            one.generated += 1;
            one.last = chosen.id;
            chosen.finish = match () {
                () if self.tokenizer.eos().contains(&chosen.id) => Some(Finish::Stop),
                () if one.generated == one.job.max_new_tokens => Some(Finish::Length),
                () if tokens == self.workspace.lengths().context => Some(Finish::Context),
                () => None,
            };
            let ends = chosen.finish.is_some();
            match hear(one.of, Heard::Token(chosen)).is_break() || ends {
                true => self.free.push(one.place),
                false => self.running.push(one),
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

impl Running {
    /// Whether the likeliest token is all that it needs.
    fn is_greedy(&self) -> bool {
        self.sampler.is_greedy() && self.job.top.is_none()
    }

    /// The next token by a row of a step. `None` if its logits are not finite.
    fn choose_of_step(&mut self, logits: &[f32], likeliest: &RowTop) -> Option<Chosen> {
        if !self.is_greedy() {
            return self.choose(logits);
        }
        let id = likeliest.top.first()?.index;
        let is_sound = likeliest.largest.is_finite() && likeliest.sum.is_finite();
        let logprob = -f64::from(likeliest.sum).ln() + 0.0;
        is_sound.then_some(Chosen { id, logprob: logprob as f32, score: None, finish: None })
    }

    /// The next token by logits. `None` if they are not finite.
    fn choose(&mut self, logits: &[f32]) -> Option<Chosen> {
        let id = self.sampler.next(&mut logits.to_vec())?;
        let logprob = tempered(logits, id, self.job.sampling.temperature)?;
        let score = match self.job.top {
            Some(top) => Some(Score::of(logits, id, top.min(MAX_TOP))?),
            None => None,
        };
        Some(Chosen { id, logprob, score, finish: None })
    }
}
