//! Replies. Consecutive conversations with the same base share the uploaded model.

use std::ops::ControlFlow;
use std::sync::mpsc::Receiver;

use anyhow::{Result, anyhow};
use pollster::block_on;
use rullama_train::adapter::{AdapterPath, OtherBase, load};
use rullama_train::base::Base;
use rullama_train::data::template::{Conversation, Message, Part, ReplyParts, Role};
use rullama_train::families;
use rullama_train::model::Model;
use rullama_train::model::decode::{Lengths, Workspace, longest_context};
use rullama_train::model::plan::OnHost;
use rullama_train::recipe::Template;
use rullama_train::run::OpenBase;
use rullama_train::talk::generate::{CHUNK, Event, Generator, Options};
use rullama_train::talk::refusal;
use rullama_train::talk::sampling::Sampling;

use super::job::{Chat, Job, Piece, quick};
use super::problem::Problem;
use super::types;
use crate::cli::setup::device::Device;

/// Default length limit of a reply, in tokens.
const MAX_NEW_TOKENS: usize = 256;
/// Positions that a model is uploaded with, so that most conversations can use it.
const POSITIONS: usize = 8192;

/// Uploads the base of `first` and answers it, and then all requests until one needs the room. Returns that request.
pub fn on_one_base(gpu: &Device, first: Chat, jobs: &Receiver<Job>) -> Option<Job> {
    let opened = OpenBase::named(&first.base, &Template::Auto).map_err(anyhow::Error::from);
    let frozen = match opened {
        Ok(frozen) => frozen,
        Err(error) => return fail(&first, error),
    };
    let positions = POSITIONS.min(frozen.base.config().context_length);
    let model = match block_on(Model::offloading(gpu, &frozen.base, positions, &OnHost::default(), |_| ())) {
        Ok(model) => model,
        Err(error) => return fail(&first, error.into()),
    };
    let mut chat = first;
    loop {
        // The page may have gone while others were answered.
        if !chat.pieces.is_closed()
            && let Err(error) = reply(gpu, &frozen, &model, &chat)
        {
            fail(&chat, error);
        }
        let base = chat.base.clone();
        drop(chat); // ends the answer
        gpu.keep_pipelines();
        chat = loop {
            match jobs.recv().ok()? {
                Job::Chat(next) if next.base == base => break *next,
                job @ (Job::Gpu(_) | Job::Check(..)) => quick(job, Ok(gpu)),
                job => return Some(job),
            }
        };
    }
}

fn fail(chat: &Chat, error: anyhow::Error) -> Option<Job> {
    let _ = chat.pieces.send(Piece::Failed(Problem::from(error)));
    None
}

/// Replies with the adapter, if there is one. The reasoning is left out.
fn reply(gpu: &Device, frozen: &OpenBase, model: &Model<'_>, chat: &Chat) -> Result<()> {
    let config = frozen.base.config();
    let adapter = match &chat.adapter {
        None => None,
        Some((_, path)) => {
            Some(load(&[AdapterPath::whole(path)], &frozen.base, None, OtherBase::Refuse)?.adapter)
        }
    };
    let messages = chat.messages.iter().map(message).collect::<Result<_>>()?;
    let prompt = refusal::prompt(&frozen.template, &frozen.tokenizer, &Conversation::new(messages))?;
    let options = options(&chat.sampling, &frozen.base)?;
    let wanted = prompt.len().saturating_add(options.max_new_tokens).min(config.context_length);
    let context = longest_context(gpu, config, wanted.min(model.positions()));
    let rank = adapter.as_ref().map_or(0, |adapter| adapter.rank);
    let workspace = Workspace::new(gpu, model, Lengths { context, chunk: CHUNK }, rank)?;
    let mut generator = Generator::new(&workspace, &frozen.tokenizer, adapter.as_ref())?;
    let mut parts = ReplyParts::to(&prompt, &frozen.tokenizer);
    let emit = |part: Part| {
        let text = match part {
            Part::Words(words) => words,
            Part::Thought(_) => return,
            Part::Call(call) => format!("{}({})", call.name, call.arguments_json()),
        };
        let _ = chat.pieces.send(Piece::Text(text));
    };
    let on_event = |event: Event| {
        if let Event::Text(piece) = event {
            parts.push(piece).into_iter().for_each(emit);
        }
        if chat.pieces.is_closed() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    block_on(generator.reply(&prompt, &options, on_event))?;
    parts.finish().into_iter().for_each(emit);
    let _ = chat.pieces.send(Piece::Done);
    Ok(())
}

fn message(message: &types::Message) -> Result<Message> {
    let role = Role::from_name(&message.role);
    let unknown = || anyhow!("unknown role {:?}, expected system, user or assistant", message.role);
    Ok(Message::new(role.ok_or_else(unknown)?, message.content.clone()))
}

fn options(given: &types::Sampling, base: &Base) -> Result<Options> {
    let usual = Sampling::recommended(families::sampling(base));
    let sampling = Sampling {
        temperature: given.temperature.unwrap_or(usual.temperature),
        top_k: given.top_k.unwrap_or(usual.top_k),
        top_p: given.top_p.unwrap_or(usual.top_p),
        min_p: given.min_p.unwrap_or(usual.min_p),
        repetition_penalty: given.repetition_penalty.unwrap_or(usual.repetition_penalty),
        seed: given.seed.map_or(0, u64::from),
        ..usual
    };
    sampling.check().map_err(|problem| anyhow!(problem))?;
    let max_new_tokens = given.max_new_tokens.unwrap_or(MAX_NEW_TOKENS);
    Ok(Options { sampling, max_new_tokens, stop: given.stop.clone().unwrap_or_default(), logprobs: None })
}
