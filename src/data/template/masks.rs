//! Finds the bytes of a rendering that have loss.
//!
//! A template may mark them with `{% generation %}` (transformers' `return_assistant_tokens_mask`). Otherwise the mask is
//! derived from prefixes, as in TRL: a message's text is the rendering up to and including it, minus the rendering before it
//! with the generation prompt. Each of these renderings must be a prefix of the whole, or end as the whole does at the token
//! that ends the message; otherwise the sample is rejected.

use std::cell::Cell;
use std::ops::Range;

use super::encode::Span;
use super::jinja::GENERATION;
use super::{Conversation, Jinja, Role, TemplateError, TrainOn, meter};
use crate::data::tokenizer::Tokenizer;

/// Upper bound of a control token's length, in bytes.
const LONGEST_TOKEN: usize = 48;

/// Instructions of all prefixes of a conversation. Those of some hundred messages take fewer.
const FUEL: u64 = 10 * meter::FUEL;
/// Instructions that giving a message to the template counts for.
const PER_MESSAGE: u64 = 50;

/// The text of the whole conversation, and its spans with loss.
pub(super) fn masks(
    jinja: &Jinja,
    tokenizer: &Tokenizer,
    conversation: &Conversation,
    trained: &[bool],
    train_on: TrainOn,
) -> Result<(String, Vec<Span>), TemplateError> {
    let all = conversation.messages.len();
    let mut text = jinja.render_marked(tokenizer, conversation, all, false)?;
    let marked = jinja.has_generation().then(|| marks(&mut text)).transpose()?;
    if train_on == TrainOn::All && trained.iter().all(|&trained| trained) {
        let bytes = 0..text.len();
        return Ok((text, vec![Span { bytes, number: all }]));
    }
    let rendering = Rendering { jinja, tokenizer, conversation, left: Cell::new(FUEL) };
    let mut spans = Vec::new();
    if train_on == TrainOn::All {
        // Everything except the messages without loss.
        let mut start = 0;
        for index in (0..all).filter(|&index| !trained[index]) {
            let turn = rendering.turn(&text, index)?;
            spans.push(Span { bytes: start..turn.bytes.start, number: turn.number });
            start = turn.bytes.end;
        }
        spans.push(Span { bytes: start..text.len(), number: all });
    } else {
        let mut marked = marked.map(|spans| by_message(conversation, trained, spans)).transpose()?;
        for index in (0..all).filter(|&index| trained[index]) {
            let span = match (&mut marked, conversation.messages[index].role) {
                (Some(marked), Role::Assistant) => {
                    marked[index].take().expect("each assistant message has one")
                }
                (None, Role::Assistant) => rendering.answer(&mut text, index)?,
                _ => rendering.turn(&text, index)?,
            };
            spans.push(match conversation.messages[index].role {
                Role::Assistant => behind_thought(tokenizer, &text, span, train_on),
                _ => span,
            });
        }
    }
    spans.retain(|span| !span.bytes.is_empty());
    Ok((text, spans))
}

/// `span` without its thought, if that is empty or `train_on` leaves thoughts out.
fn behind_thought(tokenizer: &Tokenizer, text: &str, span: Span, train_on: TrainOn) -> Span {
    let syntax = tokenizer.spec().reply;
    let (open, close) = syntax.thought;
    let Range { start, end } = span.bytes;
    let opened = text[..start].trim_end().ends_with(open);
    let inner = match text[start..end].trim_start().strip_prefix(open) {
        Some(inner) => inner,
        None if opened => &text[start..end],
        None => return span,
    };
    let Some((thought, rest)) = inner.split_once(close) else { return span };
    let empty = thought.trim().is_empty() || thought.trim() == syntax.thought_name.trim();
    if !empty && train_on != TrainOn::Answers {
        return span;
    }
    let rest = if syntax.spaced { rest.trim_start_matches('\n') } else { rest };
    Span { bytes: end - rest.len()..end, ..span }
}

/// Removes the markers from `text` and returns the spans between them.
fn marks(text: &mut String) -> Result<Vec<Span>, TemplateError> {
    let (mut out, mut spans, mut open) = (String::with_capacity(text.len()), Vec::new(), None);
    for c in text.chars() {
        match c {
            c if c == GENERATION.0 => open = Some(out.len()),
            c if c == GENERATION.1 => {
                let start = open.take().ok_or_else(|| TemplateError::Mask {
                    number: spans.len() + 1,
                    problem: "the template's {% generation %} blocks are nested".into(),
                })?;
                spans.push(Span { bytes: start..out.len(), number: spans.len() + 1 });
            }
            c => out.push(c),
        }
    }
    *text = out;
    Ok(spans)
}

/// The marked spans by assistant message.
fn by_message(
    conversation: &Conversation,
    trained: &[bool],
    spans: Vec<Span>,
) -> Result<Vec<Option<Span>>, TemplateError> {
    let assistants = |index: &usize| conversation.messages[*index].role == Role::Assistant;
    let indices: Vec<usize> = (0..conversation.messages.len()).filter(assistants).collect();
    if indices.len() != spans.len() {
        let number = indices.iter().find(|&&index| trained[index]).map_or(1, |index| index + 1);
        let problem = format!(
            "the template marks {} answers with {{% generation %}}, the conversation has {}; correct the template",
            spans.len(),
            indices.len()
        );
        return Err(TemplateError::Mask { number, problem });
    }
    let mut out = vec![None; conversation.messages.len()];
    for (index, span) in indices.into_iter().zip(spans) {
        out[index] = Some(Span { number: index + 1, ..span });
    }
    Ok(out)
}

struct Rendering<'a> {
    jinja: &'a Jinja,
    tokenizer: &'a Tokenizer,
    conversation: &'a Conversation,
    /// Instructions that further prefixes may take.
    left: Cell<u64>,
}

impl Rendering<'_> {
    fn first(&self, count: usize, prompt: bool) -> Result<String, TemplateError> {
        let text = self.jinja.render(self.tokenizer, self.conversation, count, prompt)?;
        let work = meter::used() + PER_MESSAGE * count as u64;
        let left = self.left.get().checked_sub(work).ok_or_else(|| {
            let messages = self.conversation.messages.len();
            let problem = format!(
                "it takes too long to find every answer among {messages} messages; shorten the conversation, or set data.train_on = \
                 \"last_assistant\""
            );
            self.jinja.stopped(problem)
        })?;
        self.left.set(left);
        Ok(text)
    }

    /// End of the rendering up to and including message `index`. It must be a prefix of the whole.
    fn through(&self, text: &str, index: usize) -> Result<usize, TemplateError> {
        let through = self.first(index + 1, false)?;
        if text.starts_with(&through) {
            return Ok(through.len());
        }
        let problem = "the template renders it differently once other messages follow; set data.train_on = \
                       \"last_assistant\", or end the conversation after it";
        Err(TemplateError::Mask { number: index + 1, problem: problem.into() })
    }

    /// The span of a whole message, including its header.
    fn turn(&self, text: &str, index: usize) -> Result<Span, TemplateError> {
        let start = if index == 0 { 0 } else { self.through(text, index - 1)? };
        Ok(Span { bytes: start..self.through(text, index)?, number: index + 1 })
    }

    /// The span that the assistant generates in message `index`: from the end of its prompt to the end token.
    ///
    /// If the prompt ends in a block of control tokens that the history does not have (such as an empty thought), the block is
    /// inserted before the last answer, because a program that requests this answer sends it. An empty thought has no loss,
    /// whoever writes it.
    fn answer(&self, text: &mut String, index: usize) -> Result<Span, TemplateError> {
        let number = index + 1;
        let last = number == self.conversation.messages.len();
        let through = if last { Ok(text.len()) } else { self.through(text, index) };
        let bound = *through.as_ref().unwrap_or(&text.len());
        let prompt = self.first(index, true)?;
        let (start, inserted) = match text[..bound].starts_with(&prompt) {
            true => (prompt.len(), 0),
            false => self.behind_block(text, bound, &prompt, index)?,
        };
        let mut end = match through {
            Ok(end) => end + inserted,
            // Some templates render an answer differently once other messages follow. The end token shows where it ends.
            Err(error) => self.end_token(text, start, index)?.ok_or(error)?,
        };
        // The model never generates the template's text after the end token.
        let words = text[start..end].trim_end();
        if self.ends_in_control_token(words) {
            end = start + words.len();
        }
        Ok(Span { bytes: start..end, number })
    }

    /// The start of an answer whose prompt has a block behind the text that both share, and the number of inserted bytes.
    fn behind_block(
        &self,
        text: &mut String,
        end: usize,
        prompt: &str,
        index: usize,
    ) -> Result<(usize, usize), TemplateError> {
        let number = index + 1;
        let both = text[..end].chars().zip(prompt.chars()).take_while(|(a, b)| a == b);
        let common = self.before_control_token(prompt, both.map(|(a, _)| a.len_utf8()).sum());
        let block = &prompt[common..];
        let history = self.first(index, false)?.len();
        if common < history || !self.is_block(block) {
            let excerpt: String = text[common..end].chars().take(24).collect();
            let problem = format!(
                "the prompt continues with {block:?}, the message with {excerpt:?}; expected the message to begin \
                 with its prompt. Choose another data.template, or data.train_on = \"all\""
            );
            return Err(TemplateError::Mask { number, problem });
        }
        if number < self.conversation.messages.len() {
            return Ok((common, 0));
        }
        // A prompt that only opens a thought, in front of an answer without one.
        let (open, close) = self.tokenizer.spec().reply.thought;
        let closing = if block.trim_end().ends_with(open) { format!("\n{close}\n\n") } else { String::new() };
        let block = [block, &closing].concat();
        text.insert_str(common, &block);
        Ok((common + block.len(), block.len()))
    }

    /// The end of the first token behind `start` that ends a turn, if the answer rendered as the last message ends alike. Where
    /// other messages follow, gpt-oss's template has another token in the place of that one: the answer then ends in front of it.
    fn end_token(&self, text: &str, start: usize, index: usize) -> Result<Option<usize>, TemplateError> {
        let (mut end, alone) = (start, self.first(index + 1, false)?);
        let alone = alone.trim_end();
        let ends =
            |token: &str| self.tokenizer.id(token).is_some_and(|id| self.tokenizer.eos().contains(&id));
        let end_tokens = self.tokenizer.eos().iter().map(|&id| self.tokenizer.decode(&[id]));
        let words_alone = end_tokens.into_iter().find_map(|token| alone.strip_suffix(&token));
        while let Some(token) = self.tokenizer.find_special(&text[end..]) {
            let at = end + text[end..].find(token).expect("it was found");
            end = at + token.len();
            if ends(token) {
                return Ok(Some(end).filter(|&end| alone.ends_with(&text[start..end])));
            }
            if at > start && words_alone.is_some_and(|words| words.ends_with(&text[start..at])) {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// `at`, or the start of the control token that contains `at`: two different control tokens may begin alike.
    fn before_control_token(&self, text: &str, at: usize) -> usize {
        let inside = |start: &usize| {
            let token = text
                .get(*start..)
                .and_then(|rest| self.tokenizer.find_special(rest).filter(|t| rest.starts_with(t)));
            token.is_some_and(|token| start + token.len() > at)
        };
        (at.saturating_sub(LONGEST_TOKEN)..at).find(inside).unwrap_or(at)
    }

    /// Whether a text starts and ends with a control token.
    fn is_block(&self, text: &str) -> bool {
        self.tokenizer.find_special(text).is_some_and(|token| text.starts_with(token))
            && self.ends_in_control_token(text.trim_end())
    }

    fn ends_in_control_token(&self, text: &str) -> bool {
        let from =
            (text.len().saturating_sub(LONGEST_TOKEN)..text.len()).find(|&at| text.is_char_boundary(at));
        let mut rest = from.map_or("", |from| &text[from..]);
        while let Some(token) = self.tokenizer.find_special(rest) {
            if rest.ends_with(token) {
                return true;
            }
            let at = rest.find(token).expect("it was found") + token.len();
            rest = &rest[at..];
        }
        false
    }
}
