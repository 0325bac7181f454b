//! Sequences that are generated together: those that end leave, and waiting ones take their places.

use std::collections::VecDeque;
use std::ops::ControlFlow;

#[cfg(not(target_arch = "wasm32"))]
use rayon::prelude::*;

use crate::adapter::lora::Adapter;
use crate::data::tokenizer::Tokenizer;
use crate::gpu::GpuError;
use crate::model::decode::{Sequences, Workspace};
use crate::ops::categorical::{Draw, Drawn};
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
    /// Its prompt was read, but for this many tokens that were kept.
    Prompt(usize),
    Token(Chosen),
    /// It ends, since its logits are not finite.
    Failed(GenerateError),
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
    /// The tokens of each place, which a later prompt may begin with, if those are kept.
    kept: Option<Vec<Vec<u32>>>,
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
    /// Room for the sequences of `workspace`, which depend on nothing but their job.
    pub fn new(
        workspace: &'a Workspace<'a>,
        tokenizer: &'a Tokenizer,
        adapter: Option<&Adapter>,
    ) -> Result<Engine<'a>, GpuError> {
        let sequences = Sequences::new(workspace, adapter)?;
        let free = (0..sequences.count()).rev().collect();
        let (waiting, running) = Default::default();
        Ok(Engine { sequences, workspace, tokenizer, waiting, running, free, kept: None })
    }

    /// Keeps the tokens of a sequence that has ended for a prompt that begins with them. By rounding, a sequence then depends on those before.
    pub fn keep_prefixes(self) -> Engine<'a> {
        Engine { kept: Some(vec![Vec::new(); self.sequences.count()]), ..self }
    }

    /// Compiles the kernels, so that no sequence waits for them.
    pub fn compile(&mut self) -> Result<(), GpuError> {
        self.sequences.compile().map(drop)
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

    /// Gives free places to waiting sequences, and generates one token of each that runs. `hear` may end a sequence.
    pub async fn advance(
        &mut self,
        hear: &mut impl FnMut(usize, Heard) -> ControlFlow<()>,
    ) -> Result<(), GpuError> {
        while !self.free.is_empty() && !self.waiting.is_empty() {
            self.admit(hear).await?;
        }
        if self.running.is_empty() {
            return Ok(());
        }
        let vocab = self.tokenizer.vocab_size();
        let tokens: Vec<(usize, u32)> = self.running.iter().map(|one| (one.place, one.last)).collect();
        let draws: Vec<Option<Draw>> = self.running.iter_mut().map(Running::draw_on_device).collect();
        let given: Vec<Draw> = draws.iter().map(|draw| draw.unwrap_or(Draw::LIKELIEST)).collect();
        self.sequences.step(&tokens, &given, vocab).await?;
        if let Some(kept) = &mut self.kept {
            tokens.iter().for_each(|&(place, token)| kept[place].push(token));
        }
        let drawn = self.sequences.drawn(tokens.len()).await?;
        let reads = draws.contains(&None);
        let (logits, stride) =
            if reads { self.sequences.all_logits(tokens.len()).await? } else { (Vec::new(), 1) };
        let rows: Vec<&[f32]> = match reads {
            true => logits.chunks_exact(stride).map(|row| &row[..vocab]).collect(),
            false => vec![&[]; drawn.len()],
        };
        let work: Vec<_> = self.running.iter_mut().zip(rows).zip(draws.iter().zip(&drawn)).collect();
        // Sorting many logits takes longer than a step.
        #[cfg(not(target_arch = "wasm32"))]
        let work = work.into_par_iter();
        #[cfg(target_arch = "wasm32")]
        let work = work.into_iter();
        let chosen: Vec<Option<Chosen>> =
            work.map(|((one, row), (draw, drawn))| one.choose_of_step(row, *draw, drawn)).collect();
        self.hear_each(0, chosen, hear);
        Ok(())
    }

    /// Reads the first waiting prompt, once for all sequences that wait with it, as far as there are places.
    async fn admit(
        &mut self,
        hear: &mut impl FnMut(usize, Heard) -> ControlFlow<()>,
    ) -> Result<(), GpuError> {
        let (of, job) = self.waiting.pop_front().expect("one waits");
        let mut all = vec![(of, job)];
        let mut i = 0;
        while i < self.waiting.len() && all.len() < self.free.len() {
            match self.waiting[i].1.prompt == all[0].1.prompt {
                true => all.extend(self.waiting.remove(i)),
                false => i += 1,
            }
        }
        let prompt = all[0].1.prompt.clone();
        let common = self.choose_place(&prompt);
        let places = self.free.split_off(self.free.len() - all.len());
        let (&first, others) = places.split_last().expect("one is free");
        let common = match common {
            0 => 0,
            common => self.sequences.rewind(first, common),
        };
        if common == 0 {
            self.sequences.clear(first);
        }
        let chunks: Vec<&[u32]> = prompt[common..].chunks(self.workspace.lengths().chunk).collect();
        let (last, before) = chunks.split_last().expect("a prompt has tokens");
        for chunk in before {
            self.sequences.append(first, chunk).await?;
            self.workspace.gpu().wait()?;
        }
        let mut logits = self.sequences.logits(first, last).await?;
        logits.truncate(self.tokenizer.vocab_size());
        self.sequences.copy(first, others)?;
        if let Some(kept) = &mut self.kept {
            places.iter().for_each(|&place| kept[place].clone_from(&prompt));
        }
        let from = self.running.len();
        let mut chosen = Vec::new();
        for ((of, job), &place) in all.into_iter().zip(places.iter().rev()) {
            let sampler = Sampler::new(job.sampling, &job.prompt);
            let mut one = Running { of, place, job, sampler, generated: 0, last: 0 };
            chosen.push(one.choose(&logits));
            self.running.push(one);
            // Whoever ends it hears of its first token, too.
            let _ = hear(of, Heard::Prompt(common));
        }
        self.hear_each(from, chosen, hear);
        Ok(())
    }

    /// Makes the free place with the longest common beginning with `prompt` the next one, or that which has been free for longest. Returns the
    /// length of the beginning, less than the prompt, whose last token is needed for its logits.
    fn choose_place(&mut self, prompt: &[u32]) -> usize {
        let Some(kept) = &self.kept else { return 0 };
        let common = |place: usize| {
            let most = prompt.len() - 1;
            prompt[..most].iter().zip(&kept[place]).take_while(|(a, b)| a == b).count()
        };
        let best = (0..self.free.len()).rev().max_by_key(|&i| common(self.free[i])).expect("one is free");
        let place = self.free.remove(best);
        self.free.push(place);
        common(place)
    }

    /// Tells of the tokens of the sequences from `from` on, and lets those go that end.
    fn hear_each(
        &mut self,
        from: usize,
        chosen: Vec<Option<Chosen>>,
        hear: &mut impl FnMut(usize, Heard) -> ControlFlow<()>,
    ) {
        let rest = self.running.split_off(from);
        for (mut one, chosen) in rest.into_iter().zip(chosen) {
            let tokens = self.sequences.len(one.place);
            let Some(mut chosen) = chosen else {
                let _ = hear(one.of, Heard::Failed(GenerateError::NotFinite { tokens }));
                self.kept.iter_mut().for_each(|kept| kept[one.place].clear());
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
    }
}

impl Running {
    /// The draw of its next token, if the device can make it: not where scores or a choice by the host need the logits.
    fn draw_on_device(&mut self) -> Option<Draw> {
        if self.job.top.is_some() { None } else { self.sampler.draw_on_device() }
    }

    /// The next token of a step: the one that the device drew, or one by the row of logits. `None` if they are not finite.
    fn choose_of_step(&mut self, logits: &[f32], draw: Option<Draw>, drawn: &Drawn) -> Option<Chosen> {
        let Some(draw) = draw else { return self.choose(logits) };
        let logprob = drawn.logprob(draw) as f32;
        drawn.is_sound().then_some(Chosen { id: drawn.id, logprob, score: None, finish: None })
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
