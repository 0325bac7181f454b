//! Preferences: `{"prompt", "chosen", "rejected"}`, a pair of answers, and `{"prompt", "completion", "label"}`, a rated answer.
//!
//! Prompts and answers are strings or message lists, as in TRL. Strings are one user and one assistant turn. Without
//! `prompt`, the messages that both lists begin with are it. Two strings without `prompt` are documents, whose common first
//! tokens are the prompt.

use serde_json::{Map, Value};

use super::comparison_problem::ComparisonProblem;
use super::error::Problem;
use super::messages::{kwargs, list_of};
use super::record::{self, Ignored, optional_text, wrong};
use super::sample::{Read, add_system, fit, has_empty_answer, is_silent};
use super::shape::Format;
use super::{Options, fields, text, tools};
use crate::data::batch::IGNORE;
use crate::data::compare::{Side, Supervision};
use crate::data::template::{Conversation, Message, Rendered, Role};
use crate::data::tokenizer::Tokenizer;

/// Keys beside the answers.
const BESIDE: [&str; 4] = ["prompt", "system", "tools", "chat_template_kwargs"];

/// Converts one record to the two samples of a pair, or to rated samples.
pub(super) fn read(
    object: Map<String, Value>,
    tokenizer: &Tokenizer,
    options: &Options,
) -> Result<Read, Problem> {
    let object = fields::rename(object, options.fields)?;
    let has = |keys: &[&str]| keys.iter().all(|key| object.get(*key).is_some_and(|value| !value.is_null()));
    let rates = options.supervision == Supervision::Ratings;
    let mut reader = Reader { object: &object, tokenizer, options, read: Read::default() };
    let sides = match (rates && has(&["completion", "label"]), has(&["chosen", "rejected"])) {
        (true, _) => reader.rated()?,
        (_, true) => reader.pair(if rates {
            [Side::Desirable, Side::Undesirable]
        } else {
            [Side::Chosen, Side::Rejected]
        })?,
        _ => {
            let found = object.keys().cloned().collect();
            return Err(ComparisonProblem::NotCompared { supervision: options.supervision, found }.into());
        }
    };
    let mut read = reader.read;
    read.length = sides.iter().map(|(_, rendered)| rendered.ids.len()).max().unwrap_or(0);
    read.overlong = read.length > options.max_seq_len;
    read.left_out = sides.iter().any(|(_, rendered)| rendered.left_out);
    let count = sides.len();
    for (side, rendered) in sides {
        read.rendered.extend(fit(rendered, options)?.map(|rendered| (side, rendered)));
    }
    // A pair of which one side is too long is no pair.
    if read.rendered.len() < count {
        read.rendered.clear();
    }
    Ok(read)
}

struct Reader<'a> {
    object: &'a Map<String, Value>,
    tokenizer: &'a Tokenizer,
    options: &'a Options<'a>,
    read: Read,
}

impl Reader<'_> {
    fn rated(&mut self) -> Result<Vec<(Side, Rendered)>, Problem> {
        self.read.shape = Format::Rated;
        self.note(&["completion", "label"])?;
        let side = if label(&self.object["label"])? { Side::Desirable } else { Side::Undesirable };
        if self.prompt().is_none() {
            let found = self.object.keys().cloned().collect();
            return Err(ComparisonProblem::NotCompared { supervision: Supervision::Ratings, found }.into());
        }
        let rendered = self.answer("completion", 0)?;
        Ok(vec![(side, rendered)])
    }

    fn pair(&mut self, sides: [Side; 2]) -> Result<Vec<(Side, Rendered)>, Problem> {
        self.read.shape = Format::Preference;
        self.note(&["chosen", "rejected"])?;
        let (chosen, rejected) = (&self.object["chosen"], &self.object["rejected"]);
        if chosen == rejected {
            return Err(ComparisonProblem::EqualSides.into());
        }
        let [chosen, rejected] = match (self.prompt(), chosen, rejected) {
            (None, Value::String(chosen), Value::String(rejected)) => self.documents([chosen, rejected])?,
            (_, Value::Array(chosen), Value::Array(rejected)) => {
                let shared = chosen.iter().zip(rejected).take_while(|(a, b)| a == b).count();
                [self.answer("chosen", shared)?, self.answer("rejected", shared)?]
            }
            (None, Value::Array(_), other) => return Err(wrong("rejected", "a list like \"chosen\"", other)),
            (None, other, _) => return Err(wrong("chosen", "a list like \"rejected\"", other)),
            _ => [self.answer("chosen", 0)?, self.answer("rejected", 0)?],
        };
        if chosen.ids == rejected.ids {
            return Err(ComparisonProblem::EqualSides.into());
        }
        let prompt = |side: &Rendered| side.labels.iter().skip(1).take_while(|l| **l == IGNORE).count() + 1;
        let prompts = [&chosen.ids[..prompt(&chosen)], &rejected.ids[..prompt(&rejected)]];
        if prompts[0] != prompts[1] {
            let at = prompts[0].iter().zip(prompts[1]).take_while(|(a, b)| a == b).count();
            let rest = |ids: &[u32]| self.tokenizer.decode(&ids[at.min(ids.len())..]);
            return Err(
                ComparisonProblem::Prompts { chosen: rest(prompts[0]), rejected: rest(prompts[1]) }.into()
            );
        }
        Ok(sides.into_iter().zip([chosen, rejected]).collect())
    }

    fn note(&mut self, keys: &[&str]) -> Result<(), Problem> {
        let mut ignored = Ignored::default();
        ignored.note(self.object, &[&BESIDE[..], keys].concat(), "")?;
        self.read.ignored = ignored.0;
        Ok(())
    }

    fn prompt(&self) -> Option<&Value> {
        self.object.get("prompt").filter(|value| !value.is_null())
    }

    /// Renders the prompt with the answer under `key`. `shared`: number of messages that both answers of a pair begin with.
    fn answer(&mut self, key: &'static str, shared: usize) -> Result<Rendered, Problem> {
        let mut conversation = self.conversation(key, shared)?;
        self.read.system = add_system(&mut conversation, self.options.system);
        let answered = conversation.messages.len() > conversation.trained_from;
        if !answered || has_empty_answer(&conversation, self.options) {
            return Err(ComparisonProblem::EmptySide(key).into());
        }
        let Options { template, train_on, .. } = self.options;
        let rendered = template.render(self.tokenizer, &conversation, *train_on)?;
        if !record::has_loss(&rendered) || is_silent(&rendered, self.tokenizer) {
            return Err(ComparisonProblem::EmptySide(key).into());
        }
        Ok(rendered)
    }

    fn conversation(&mut self, key: &'static str, shared: usize) -> Result<Conversation, Problem> {
        let mut ignored = Ignored(std::mem::take(&mut self.read.ignored));
        let mut list = |value, key, before| list_of(value, key, before, &mut ignored);
        let answer = &self.object[key];
        let (mut messages, mut trained_from) = match (self.prompt(), answer) {
            (Some(Value::String(prompt)), Value::String(answer)) => {
                (vec![Message::new(Role::User, prompt), Message::new(Role::Assistant, answer)], 1)
            }
            (Some(prompt @ Value::Array(_)), Value::String(answer)) => {
                let mut messages = list(prompt, "prompt", 0)?;
                messages.push(Message::new(Role::Assistant, answer));
                let trained_from = messages.len() - 1;
                (messages, trained_from)
            }
            (Some(prompt @ Value::Array(_)), Value::Array(_)) => {
                let mut messages = list(prompt, "prompt", 0)?;
                let trained_from = messages.len();
                messages.extend(list(answer, key, trained_from)?);
                (messages, trained_from)
            }
            (prompt @ (None | Some(Value::String(_))), Value::Array(_)) => {
                let mut messages = list(answer, key, 0)?;
                let prompt = prompt.and_then(Value::as_str);
                if let (Some(prompt), Some(Role::Assistant)) = (prompt, messages.first().map(|m| m.role)) {
                    messages.insert(0, Message::new(Role::User, prompt));
                    (messages, 1)
                } else {
                    check_prompt(prompt, &messages[..shared])?;
                    (messages, shared)
                }
            }
            (Some(Value::String(_) | Value::Array(_)), other) => {
                return Err(wrong(key, "a string or a list of messages", other));
            }
            (Some(other), _) => return Err(wrong("prompt", "a string or a list of messages", other)),
            (None, other) => return Err(wrong(key, "a list of messages, as there is no \"prompt\"", other)),
        };
        self.read.ignored = ignored.0;
        let system = optional_text(self.object, "system")?;
        if !system.is_empty() {
            messages.insert(0, Message::new(Role::System, system));
            trained_from += 1;
        }
        let (tools, kwargs) = (tools::declared(self.object.get("tools"))?, kwargs(self.object)?);
        Ok(Conversation { messages, tools, trained_from, kwargs })
    }

    /// Two texts, whose common first tokens are the prompt.
    fn documents(&mut self, texts: [&String; 2]) -> Result<[Rendered; 2], Problem> {
        let mut rendered = Vec::new();
        for (key, document) in ["chosen", "rejected"].into_iter().zip(texts) {
            if document.trim().is_empty() {
                return Err(ComparisonProblem::EmptySide(key).into());
            }
            let object = Map::from_iter([("text".to_owned(), Value::String(document.clone()))]);
            let (sample, spelled) = text::sample(&object, self.tokenizer, &mut Ignored::default())?;
            self.read.control_tokens |= spelled;
            rendered.push(sample);
        }
        let ids = rendered[0].ids.iter().zip(&rendered[1].ids);
        let prompt = ids.take_while(|(a, b)| a == b).count();
        for (key, side) in ["chosen", "rejected"].into_iter().zip(&mut rendered) {
            let prompt = prompt.min(side.labels.len());
            side.labels[..prompt].fill(IGNORE);
            if !record::has_loss(side) || is_silent(side, self.tokenizer) {
                return Err(ComparisonProblem::EmptySide(key).into());
            }
        }
        let [chosen, rejected] = <[Rendered; 2]>::try_from(rendered).expect("two texts");
        Ok([chosen, rejected])
    }
}

/// Fails if the common messages of a pair are no prompt, or do not contain the one that is given.
fn check_prompt(prompt: Option<&str>, shared: &[Message]) -> Result<(), Problem> {
    match prompt {
        None if shared.is_empty() => Err(ComparisonProblem::NoPrompt.into()),
        Some(prompt) if !shared.iter().any(|message| message.content.trim() == prompt.trim()) => {
            Err(ComparisonProblem::OtherPrompt.into())
        }
        _ => Ok(()),
    }
}

/// A rating: true or false, 1 or 0, also as the text that a table has.
fn label(value: &Value) -> Result<bool, Problem> {
    let text = value.as_str().map(|text| text.trim().to_lowercase());
    match (value.as_bool(), value.as_f64(), text.as_deref()) {
        (Some(label), ..) => Ok(label),
        (_, Some(1.0), _) | (.., Some("true" | "1" | "1.0")) => Ok(true),
        (_, Some(0.0), _) | (.., Some("false" | "0" | "0.0")) => Ok(false),
        _ => Err(ComparisonProblem::Rating(value.to_string()).into()),
    }
}
