//! The device's side: answers the queued requests one at a time.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Result;
use pollster::block_on;
use rullama_train::talk::generate::{Event, Finish, GenerateError, Options, Reply};
use rullama_train::talk::scores::Score;
use rullama_train::words;
use tokio::sync::mpsc::Receiver;

use super::{Job, Piece};
use crate::cli::output;
use crate::cli::talk::{Generators, Loaded};

/// Answers the queued requests until the HTTP side closes the queue.
pub fn work(loaded: &Loaded, generators: &mut Generators, mut queue: Receiver<Job>, stop: &AtomicBool) {
    while let Some(job) = queue.blocking_recv() {
        let gone = || job.pieces.is_closed() || stop.load(Ordering::Relaxed);
        for number in 0..job.prompts.len() {
            if gone() {
                break; // dropping the channel answers the client
            }
            match answer(generators, &job, number, &gone) {
                Ok(reply) if reply.finish == Finish::Cancelled => break,
                Ok(reply) => {
                    let _ = job.pieces.send(Piece::Done(number, reply));
                }
                Err(error) => {
                    fail(&job, &error);
                    break;
                }
            }
        }
        loaded.gpu.keep_pipelines();
    }
}

/// Replies to prompt `number` of a job, and prints a line.
fn answer(generators: &mut Generators, job: &Job, number: usize, gone: &dyn Fn() -> bool) -> Result<Reply> {
    let start = Instant::now();
    let reply = reply(generators, job, number, gone)?;
    print_line(job, &reply, start);
    Ok(reply)
}

/// Prints a line about a reply that was begun at `start`.
pub fn print_line(job: &Job, reply: &Reply, start: Instant) {
    let prompt = reply.prompt_tokens;
    let cached = reply.cached_tokens;
    let tokens = reply.ids.len();
    let time = words::duration(start.elapsed().as_secs_f64(), 1);
    let finish = format!("{:?}", reply.finish).to_lowercase();
    let model = &job.model;
    output::line(
        "request",
        format_args!(
            "{model}: prompt {prompt} tokens, {cached} cached; reply {tokens} tokens in {time}, {finish}"
        ),
    );
}

/// The options of prompt `number` of a job: equal prompts of one request get different replies.
pub fn options(job: &Job, number: usize) -> Options {
    let mut options = job.options.clone();
    options.sampling.seed = options.sampling.seed.wrapping_add(number as u64);
    options
}

fn reply(generators: &mut Generators, job: &Job, number: usize, gone: &dyn Fn() -> bool) -> Result<Reply> {
    let (prompt, options) = (&job.prompts[number].ids, options(job, number));
    let Some(scored) = echo(generators, job, number, gone)? else {
        return Ok(Reply::cancelled(prompt.len()));
    };
    let mut scores = Vec::new();
    let on_event = |event: Event| {
        pass_on(job, number, event, &mut scores);
        flow(gone())
    };
    let mut reply = block_on(generators.get(job.with_adapter)?.reply(prompt, &options, on_event))?;
    if scored {
        reply.cached_tokens = 0; // the prompt was computed for its scores
    }
    Ok(reply)
}

/// Goes on unless the client is gone.
pub fn flow(gone: bool) -> ControlFlow<()> {
    if gone { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// Sends the client prompt `number` of a job if it wants it, and says whether its scores were computed. `None` if the client is gone.
pub fn echo(
    generators: &mut Generators,
    job: &Job,
    number: usize,
    gone: &dyn Fn() -> bool,
) -> Result<Option<bool>> {
    if !job.echo {
        return Ok(Some(false));
    }
    let mut scores = Vec::new();
    if let Some(top) = job.options.logprobs {
        let generator = generators.get(job.with_adapter)?;
        let prompt = &job.prompts[number].ids;
        let Some(found) = block_on(generator.scores(prompt, top, |_| flow(gone())))? else { return Ok(None) };
        scores = found;
    }
    let _ = job.pieces.send(Piece::Prompt(number, scores));
    Ok(Some(job.options.logprobs.is_some()))
}

/// Sends the client what is new in the reply to prompt `number`. `scores`: those of tokens whose text is not sent yet.
pub fn pass_on(job: &Job, number: usize, event: Event, scores: &mut Vec<Score>) {
    match event {
        Event::Scores(new) => scores.extend_from_slice(new),
        Event::Text(piece) if !piece.is_empty() || !scores.is_empty() => {
            let _ = job.pieces.send(Piece::Text(number, piece.into(), std::mem::take(scores)));
        }
        Event::Text(_) | Event::Prompt(_) => {}
    }
}

/// Tells the client and the terminal of a failure.
pub fn fail(job: &Job, error: &anyhow::Error) {
    let _ = job.pieces.send(Piece::Failed(for_client(error).into()));
    output::line("failed", super::super::message(error));
}

/// The message for a client after a failure: nothing in its request is the cause, and the terminal has the details.
fn for_client(error: &anyhow::Error) -> &'static str {
    match error.downcast_ref() {
        Some(GenerateError::NotFinite { .. }) => {
            "the model computed values that are not finite, so there is no reply; try another model of this server"
        }
        _ => "the device that computes the model failed; the server's terminal says why",
    }
}
