//! The device's side: answers the queued requests one at a time.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Result;
use pollster::block_on;
use rullama_train::talk::generate::{Event, Finish, GenerateError, Generator, Options, Reply};
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
                    let _ = job.pieces.send(Piece::Failed(for_client(&error).into()));
                    output::line("failed", super::super::message(&error));
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
    let reply = reply(generators.get(job.with_adapter)?, job, number, gone)?;
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

fn reply(
    generator: &mut Generator,
    job: &Job,
    number: usize,
    gone: &dyn Fn() -> bool,
) -> Result<Reply, GenerateError> {
    let flow = || if gone() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let prompt = &job.prompts[number].ids;
    let options = options(job, number);
    let scored = options.logprobs.filter(|_| job.echo);
    if let Some(top) = scored {
        let Some(scores) = block_on(generator.scores(prompt, top, |_| flow()))? else {
            return Ok(Reply::cancelled(prompt.len()));
        };
        let _ = job.pieces.send(Piece::Prompt(number, scores));
    } else if job.echo {
        let _ = job.pieces.send(Piece::Prompt(number, Vec::new()));
    }
    let mut scores = Vec::new();
    let on_event = |event: Event| {
        match event {
            Event::Scores(new) => scores.extend_from_slice(new),
            Event::Text(piece) if !piece.is_empty() || !scores.is_empty() => {
                let piece = Piece::Text(number, piece.into(), std::mem::take(&mut scores));
                let _ = job.pieces.send(piece);
            }
            Event::Text(_) | Event::Prompt(_) => {}
        }
        flow()
    };
    let mut reply = block_on(generator.reply(prompt, &options, on_event))?;
    if scored.is_some() {
        reply.cached_tokens = 0; // the prompt was computed for its scores
    }
    Ok(reply)
}

/// The message for a client after a failure: nothing in its request is the cause, and the terminal has the details.
pub fn for_client(error: &anyhow::Error) -> &'static str {
    match error.downcast_ref() {
        Some(GenerateError::NotFinite { .. }) => {
            "the model computed values that are not finite, so there is no reply; try another model of this server"
        }
        _ => "the device that computes the model failed; the server's terminal says why",
    }
}
