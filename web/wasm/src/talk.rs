//! Chat replies.

use rullama_train::base::Base;
use rullama_train::families;
use std::ops::ControlFlow;

use rullama_train::adapter::{AdapterPath, OtherBase, load};
use rullama_train::data::template::{Conversation, Message, Part, ReplyParts, Role};
use rullama_train::model::decode::{Lengths, Workspace, longest_context};
use rullama_train::talk::generate::{CHUNK, Event, Generator, Options};
use rullama_train::talk::{refusal, sampling};

use crate::control::Control;
use crate::engine::Stage;
use crate::tree;
use crate::types::{self, FileEntry, Problem, Sampling};

/// Default length limit of a reply, in tokens.
const MAX_NEW_TOKENS: usize = 256;

/// Replies to `messages`. `on_piece` gets the reply piece by piece, without the reasoning.
pub async fn reply(
    stage: &Stage<'_>,
    adapter: Vec<FileEntry>,
    messages: Vec<types::Message>,
    sampling: Sampling,
    control: &Control,
    on_piece: &dyn Fn(&str),
) -> Result<(), Problem> {
    let gpu = stage.gpu;
    let frozen = stage.frozen;
    let adapter = match adapter.is_empty() {
        true => None,
        false => {
            tree::fill(Vec::new());
            let path = AdapterPath::whole(tree::adapter(adapter)?);
            Some(load(&[path], &frozen.base, None, OtherBase::Refuse)?.adapter)
        }
    };
    let messages = messages.into_iter().map(message).collect::<Result<_, _>>()?;
    let conversation = Conversation::new(messages);
    let prompt = refusal::prompt(&frozen.template, &frozen.tokenizer, &conversation).map_err(Problem::new)?;
    let options = options(sampling, &frozen.base)?;

    let wanted = (prompt.len() + options.max_new_tokens).min(frozen.base.config().context_length);
    let context = longest_context(gpu, frozen.base.config(), wanted.min(stage.model.positions()));
    let rank = adapter.as_ref().map_or(0, |a| a.rank);
    let workspace = Workspace::stream(gpu, stage.model, Lengths { context, chunk: CHUNK }, rank).await?;
    let mut generator = Generator::new(&workspace, &frozen.tokenizer, adapter.as_ref())?;
    let mut parts = ReplyParts::to(&prompt, &frozen.tokenizer);
    let emit = |part: Part| match part {
        Part::Words(words) => on_piece(&words),
        Part::Thought(_) => {}
        Part::Call(call) => on_piece(&format!("{}({})", call.name, call.arguments_json())),
    };
    let on_event = |event: Event| {
        if let Event::Text(piece) = event {
            parts.push(piece).into_iter().for_each(emit);
        }
        if control.is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    generator.reply(&prompt, &options, on_event).await?;
    parts.finish().into_iter().for_each(emit);
    Ok(())
}

fn message(message: types::Message) -> Result<Message, Problem> {
    let role = Role::from_name(&message.role);
    let unknown =
        || Problem::new(format!("unknown role {:?}, expected system, user or assistant", message.role));
    Ok(Message::new(role.ok_or_else(unknown)?, message.content.clone()))
}

fn options(s: Sampling, base: &Base) -> Result<Options, Problem> {
    let usual = sampling::Sampling::recommended(families::sampling(base));
    let sampling = sampling::Sampling {
        temperature: s.temperature.unwrap_or(usual.temperature),
        top_k: s.top_k.unwrap_or(usual.top_k),
        top_p: s.top_p.unwrap_or(usual.top_p),
        min_p: s.min_p.unwrap_or(usual.min_p),
        repetition_penalty: s.repetition_penalty.unwrap_or(usual.repetition_penalty),
        seed: s.seed.map_or(0, u64::from),
        ..usual
    };
    sampling.check().map_err(Problem::new)?;
    let max_new_tokens = s.max_new_tokens.unwrap_or(MAX_NEW_TOKENS);
    Ok(Options { sampling, max_new_tokens, stop: s.stop.unwrap_or_default(), logprobs: None })
}
