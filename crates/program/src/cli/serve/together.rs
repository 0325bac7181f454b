//! The device's side with `--parallel`: answers several prompts at once, of one request or of several.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Result;
use pollster::block_on;
use rullama_train::model::decode::Workspace;
use rullama_train::talk::generate::{Finish, GenerateError};
use rullama_train::talk::replies::{News, Replies};
use rullama_train::talk::scores::Score;
use tokio::sync::mpsc::Receiver;

use super::work::{echo, fail, flow, options, pass_on, print_line};
use super::{Job, Piece};
use crate::cli::output;
use crate::cli::talk::{Generators, Loaded};

/// The prompts that are being answered.
pub struct Desk<'a> {
    loaded: &'a Loaded,
    workspace: &'a Workspace<'a>,
    /// For the scores of prompts.
    generators: Generators<'a>,
    /// Without and with the adapters. Each is created on first use, with its own key-value cache.
    replies: [Option<Replies<'a>>; 2],
    open: HashMap<usize, Open>,
    /// Number of the next prompt.
    next: usize,
    /// Prompts that are answered at once.
    count: usize,
}

/// A prompt that is being answered.
struct Open {
    job: Rc<Job>,
    number: usize,
    started: Instant,
    /// Those of tokens whose text is not sent yet.
    scores: Vec<Score>,
    /// Whether the scores of the prompt were computed.
    scored: bool,
}

impl<'a> Desk<'a> {
    /// Compiles the kernels of replies with the adapters, or without if there are none.
    pub fn new(loaded: &'a Loaded, workspace: &'a Workspace<'a>, count: usize) -> Result<Desk<'a>> {
        let generators = Generators::new(loaded, workspace);
        let (replies, open) = ([None, None], HashMap::new());
        let mut desk = Desk { loaded, workspace, generators, replies, open, next: 0, count };
        let _bar = output::spinner("compiling kernels");
        desk.get(!loaded.adapters.is_empty())?.compile()?;
        desk.generators.get(!loaded.adapters.is_empty())?.compile_scores()?;
        loaded.gpu.keep_pipelines();
        Ok(desk)
    }

    /// Answers the queued requests until the HTTP side closes the queue.
    pub fn work(&mut self, mut queue: Receiver<Job>, stop: &AtomicBool) {
        loop {
            if self.open.is_empty() {
                self.loaded.gpu.keep_pipelines();
                let Some(job) = queue.blocking_recv() else { return };
                self.take(job, stop);
            }
            while self.open.len() < self.count
                && let Ok(job) = queue.try_recv()
            {
                self.take(job, stop);
            }
            for with_adapter in [false, true] {
                self.advance(with_adapter, stop);
            }
        }
    }

    fn get(&mut self, with_adapter: bool) -> Result<&mut Replies<'a>> {
        let place = &mut self.replies[usize::from(with_adapter)];
        if place.is_none() {
            let adapter = self.loaded.adapter.as_ref().filter(|_| with_adapter);
            let replies = Replies::new(self.workspace, &self.loaded.frozen.tokenizer, adapter)?;
            *place = Some(replies.keep_prefixes());
        }
        Ok(place.as_mut().expect("created above"))
    }

    /// Lets the prompts of a job wait for a reply.
    fn take(&mut self, job: Job, stop: &AtomicBool) {
        let job = Rc::new(job);
        for number in 0..job.prompts.len() {
            if let Err(error) = self.begin(&job, number, stop) {
                fail(&job, &error);
                return;
            }
        }
    }

    fn begin(&mut self, job: &Rc<Job>, number: usize, stop: &AtomicBool) -> Result<()> {
        let (started, prompt, options) = (Instant::now(), &job.prompts[number].ids, options(job, number));
        let gone = || is_gone(job, stop);
        let Some(scored) = echo(&mut self.generators, job, number, &gone)? else { return Ok(()) };
        let of = self.next;
        self.next += 1;
        self.get(job.with_adapter)?.push(of, prompt, &options)?;
        self.open.insert(of, Open { job: job.clone(), number, started, scores: Vec::new(), scored });
        Ok(())
    }

    /// Adds a token to replies with or without the adapters.
    fn advance(&mut self, with_adapter: bool, stop: &AtomicBool) {
        let Some(replies) = &mut self.replies[usize::from(with_adapter)] else { return };
        if replies.is_idle() {
            return;
        }
        let open = &mut self.open;
        if let Err(error) = block_on(replies.advance(|of, news| hear(open, of, news, stop))) {
            // The device is lost, or its memory is full: whoever waits for it is told.
            let error = anyhow::Error::from(GenerateError::from(error));
            open.values()
                .filter(|one| one.job.with_adapter == with_adapter)
                .for_each(|one| fail(&one.job, &error));
            open.retain(|_, one| one.job.with_adapter != with_adapter);
            self.replies[usize::from(with_adapter)] = None;
        }
    }
}

/// Passes news of reply `of` to its client.
fn hear(open: &mut HashMap<usize, Open>, of: usize, news: News, stop: &AtomicBool) -> ControlFlow<()> {
    let Some(one) = open.get_mut(&of) else { return ControlFlow::Break(()) };
    match news {
        News::Event(event) => pass_on(&one.job, one.number, event, &mut one.scores),
        News::Done(mut reply) => {
            if one.scored {
                reply.cached_tokens = 0; // the prompt was computed for its scores
            }
            print_line(&one.job, &reply, one.started);
            if reply.finish != Finish::Cancelled {
                let _ = one.job.pieces.send(Piece::Done(one.number, reply));
            }
            open.remove(&of);
            return ControlFlow::Break(());
        }
        News::Failed(error) => {
            fail(&one.job, &error.into());
            open.remove(&of);
            return ControlFlow::Break(());
        }
    }
    flow(is_gone(&one.job, stop))
}

/// Whether nobody waits for the replies of a job.
fn is_gone(job: &Job, stop: &AtomicBool) -> bool {
    job.pieces.is_closed() || stop.load(Ordering::Relaxed)
}
