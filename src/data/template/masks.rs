//! Finds the bytes of a rendering that have loss.
//!
//! A template may mark them with `{% generation %}` (transformers' `return_assistant_tokens_mask`). Otherwise the mask is
//! derived from prefixes, as in TRL: a message's text is the rendering up to and including it, minus the rendering before it
//! with the generation prompt. Each of these renderings must be a prefix of the whole, or end as the whole does at the token
//! that ends the message; otherwise the sample is rejected.

use std::cell::Cell;
use std::ops::Range;

use super::GENERATION;
use super::encode::Span;
use super::{Conversation, Jinja, Message, Role, TemplateError, TrainOn, limits};
use crate::data::tokenizer::Tokenizer;

/// Upper bound of a control token's length, in bytes.
const LONGEST_TOKEN: usize = 48;

/// Instructions of all prefixes of a conversation. Those of some hundred messages take fewer.
const FUEL: u64 = 10 * limits::FUEL;
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
    let marked = jinja.has_generation().then(|| marks(&mut text));
    if train_on == TrainOn::All && trained.iter().all(|&trained| trained) {
        let bytes = 0..text.len();
        return Ok((text, vec![Span { bytes, number: all }]));
    }
    let rendering = Rendering { jinja, tokenizer, conversation, left: Cell::new(FUEL), probe: false };
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
        let has_marks = marked.is_some();
        if let Some(blocks) = marked {
            let blocks = rendering.marked(&text, trained, blocks)?;
            spans.extend(blocks.into_iter().map(|span| behind_thought(tokenizer, &text, span, train_on)));
        }
        for index in (0..all).filter(|&index| trained[index]) {
            match conversation.messages[index].role {
                Role::Assistant if has_marks => {}
                Role::Assistant => {
                    let span = rendering.answer(&mut text, index, spans.is_empty())?;
                    spans.push(behind_thought(tokenizer, &text, span, train_on));
                }
                _ => spans.push(rendering.turn(&text, index)?),
            }
        }
        spans.sort_by_key(|span| span.bytes.start);
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

/// Removes the markers from `text` and returns the union of the blocks between them.
fn marks(text: &mut String) -> Vec<Range<usize>> {
    let (mut out, mut blocks, mut open) = (String::with_capacity(text.len()), Vec::new(), Vec::new());
    for c in text.chars() {
        match c {
            c if c == GENERATION.0 => open.push(out.len()),
            c if c == GENERATION.1 => {
                if let (Some(start), true) = (open.pop(), open.is_empty()) {
                    blocks.push(start..out.len());
                }
            }
            c => out.push(c),
        }
    }
    *text = out;
    blocks
}

struct Rendering<'a> {
    jinja: &'a Jinja,
    tokenizer: &'a Tokenizer,
    conversation: &'a Conversation,
    /// Instructions that further prefixes may take.
    left: Cell<u64>,
    /// Whether the conversation is made up to find text of another one.
    probe: bool,
}

impl Rendering<'_> {
    fn first(&self, count: usize, prompt: bool) -> Result<String, TemplateError> {
        let text = self.jinja.render(self.tokenizer, self.conversation, count, prompt)?;
        let work = limits::used() + PER_MESSAGE * count as u64;
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

    /// The blocks of the trained messages. As in transformers, an answer may have several.
    fn marked(
        &self,
        text: &str,
        trained: &[bool],
        blocks: Vec<Range<usize>>,
    ) -> Result<Vec<Span>, TemplateError> {
        let messages = &self.conversation.messages;
        let answers: Vec<usize> =
            (0..messages.len()).filter(|&index| messages[index].role == Role::Assistant).collect();
        if answers.iter().all(|&index| trained[index]) || answers.len() == blocks.len() {
            let last = answers.last().copied().unwrap_or_default();
            let of = |n: usize| answers.get(n).copied().filter(|_| answers.len() == blocks.len());
            let numbered = (0..).map(|n| of(n).unwrap_or(last)).zip(blocks.iter().cloned());
            let trained = numbered.filter(|(index, _)| trained[*index]);
            return Ok(trained.map(|(index, bytes)| Span { bytes, number: index + 1 }).collect());
        }
        let mut spans = Vec::new();
        for index in answers.into_iter().filter(|&index| trained[index]) {
            let turn = self.turn(text, index)?.bytes;
            let inside = blocks.iter().filter(|block| turn.contains(&block.start));
            spans.extend(inside.map(|block| Span { bytes: block.clone(), number: index + 1 }));
        }
        Ok(spans)
    }

    /// The span that the assistant generates in message `index`: from the end of its prompt to the end token.
    ///
    /// If the prompt ends in a block of control tokens that the history does not have (such as an empty thought), the block is
    /// inserted before the last answer, because a program that requests this answer sends it. An empty thought has no loss,
    /// whoever writes it. `only`: no other message has loss.
    fn answer(&self, text: &mut String, index: usize, only: bool) -> Result<Span, TemplateError> {
        let number = index + 1;
        let last = number == self.conversation.messages.len();
        let through = if last { Ok(text.len()) } else { self.through(text, index) };
        let bound = *through.as_ref().unwrap_or(&text.len());
        let prompt = self.first(index, true);
        let found = match &prompt {
            Ok(prompt) if text[..bound].starts_with(prompt) => Ok((prompt.len(), 0)),
            Ok(prompt) => self.behind_block(text, bound, prompt, index),
            Err(error) => Err(error.clone()),
        };
        let (start, inserted) = match (found, &prompt) {
            (Ok(found), _) => found,
            (Err(error), _) if !self.is_asked(index) => (self.unasked(text, bound).ok_or(error)?, 0),
            (Err(error), Ok(prompt)) if last && !self.probe => {
                return self.alone(text, prompt, only, error);
            }
            (Err(error), _) => return Err(error),
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

    /// Whether a question or a result of a function precedes message `index`.
    fn is_asked(&self, index: usize) -> bool {
        self.conversation.messages[..index].iter().any(|message| message.role != Role::System)
    }

    /// A made-up conversation with the functions and variables of this one.
    fn made_up(&self, messages: Vec<Message>) -> Conversation {
        Conversation { messages, trained_from: 0, ..self.conversation.clone() }
    }

    fn of<'b>(&'b self, conversation: &'b Conversation) -> Rendering<'b> {
        let Rendering { jinja, tokenizer, left, .. } = self;
        Rendering { jinja, tokenizer, conversation, left: left.clone(), probe: true }
    }

    /// The start of an answer that no question precedes, such as a greeting. Many templates refuse its prompt, an empty list of messages.
    /// What stands in front of an answer to any question stands in front of this one, too. Texts of messages have no control tokens.
    fn unasked(&self, text: &str, bound: usize) -> Option<usize> {
        let question = self.made_up(vec![Message::new(Role::User, "?")]);
        let probe = self.of(&question);
        let (question, prompt) = (probe.first(1, false).ok()?, probe.first(1, true).ok()?);
        let whole = prompt.strip_prefix(&question)?;
        let (open, _) = self.tokenizer.spec().reply.thought;
        let without_thought = whole.split_once(open).map_or(whole, |(before, _)| before);
        let headers = [whole, without_thought].into_iter();
        let mut marked = headers.filter(|header| self.tokenizer.find_special(header).is_some());
        marked.find_map(|header| text[..bound].find(header).map(|at| at + header.len()))
    }

    /// The last answer behind its own prompt, where that is not in the text of the finished conversation: Mistral's templates put the
    /// system message in front of the last question, and gpt-oss's drops reasoning once an answer follows. Replaces the text.
    fn alone(
        &self,
        text: &mut String,
        prompt: &str,
        only: bool,
        error: TemplateError,
    ) -> Result<Span, TemplateError> {
        let number = self.conversation.messages.len();
        let answer = self.conversation.messages[number - 1].clone();
        let short = self.made_up(vec![Message::new(Role::User, "?"), answer]);
        let probe = self.of(&short);
        let Ok(mut found) = probe.first(2, false) else { return Err(error) };
        let Ok(Span { bytes, .. }) = probe.answer(&mut found, 1, true) else { return Err(error) };
        let (answer, length) = (&found[bytes.start..], bytes.len());
        if !text.ends_with(answer) {
            return Err(error);
        }
        if !only {
            let problem = "the template renders the messages before it differently once it follows, so one text cannot train all answers; \
                           set data.train_on = \"last_assistant\"";
            return Err(TemplateError::Mask { number, problem: problem.into() });
        }
        *text = [prompt, answer].concat();
        Ok(Span { bytes: prompt.len()..prompt.len() + length, number })
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
                 with its prompt. Choose another data.template, or data.train_on = \"{}\"",
                if number < self.conversation.messages.len() { "last_assistant" } else { "all" }
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
        let mut end = start;
        // A template may refuse a conversation without a question.
        let alone = match self.first(index + 1, false) {
            Err(TemplateError::Refused { .. }) if !self.is_asked(index) => None,
            alone => Some(alone?),
        };
        let alone = alone.as_deref().map(str::trim_end);
        let ends =
            |token: &str| self.tokenizer.id(token).is_some_and(|id| self.tokenizer.eos().contains(&id));
        let end_tokens = self.tokenizer.eos().iter().map(|&id| self.tokenizer.decode(&[id]));
        let words_alone = end_tokens.into_iter().find_map(|token| alone?.strip_suffix(&*token));
        while let Some(token) = self.tokenizer.find_special(&text[end..]) {
            let at = end + text[end..].find(token).expect("it was found");
            end = at + token.len();
            if ends(token) {
                return Ok(Some(end)
                    .filter(|&end| alone.is_none_or(|text_alone| text_alone.ends_with(&text[start..end]))));
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
