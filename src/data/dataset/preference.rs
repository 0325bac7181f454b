//! Preferences: `{"prompt", "chosen", "rejected"}`, a pair of answers, and `{"prompt", "completion", "label"}`, a rated answer.
//!
//! Prompts and answers are strings, messages or message lists, as in TRL. Strings are one user and one assistant turn. The prompt may
//! have any name of [`beside`], and a rating may stand beside any shape of an example, whose last answer it rates. Without a prompt,
//! the messages that both lists begin with are it. Two strings without a prompt are documents, whose common first tokens are it.

use serde_json::{Map, Value};

use super::comparison_problem::ComparisonProblem;
use super::conversation::{BESIDE, with_beside};
use super::error::Problem;
use super::kinds::Format;
use super::record::{self, Ignored};
use super::sample::{self, Read, add_system, fit, has_empty_answer, is_silent, open_end};
use super::shape::shape;
use super::{Options, beside, fields, text};
use crate::data::batch::IGNORE;
use crate::data::compare::{Side, Supervision};
use crate::data::template::{Conversation, Message, Rendered, Role};
use crate::data::tokenizer::Tokenizer;

/// Converts one record to the two samples of a pair, or to rated samples.
pub(super) fn read(
    object: Map<String, Value>,
    tokenizer: &Tokenizer,
    options: &Options,
) -> Result<Read, Problem> {
    let object = beside::named(fields::rename(object, options.fields)?);
    let rates = options.supervision == Supervision::Ratings;
    let compares = beside::pair(&object).is_some();
    let (read, ignored) = (Read::default(), Ignored::default());
    let mut reader = Reader { object: &object, tokenizer, options, read, ignored };
    let sides = match (rates && beside::rating(&object).is_some(), compares) {
        (true, false) => reader.rated()?,
        (_, true) => reader.pair(if rates {
            [Side::Desirable, Side::Undesirable]
        } else {
            [Side::Chosen, Side::Rejected]
        })?,
        _ => return Err(reader.not_compared()),
    };
    let mut read = reader.read;
    let ignored = reader.ignored;
    (read.ignored, read.nulls, read.kept_nulls) = (ignored.keys, ignored.nulls, ignored.kept_nulls);
    read.length = sides.iter().map(|(_, rendered)| rendered.ids.len()).max().unwrap_or(0);
    read.overlong = read.length > options.max_seq_len;
    read.left_out = sides.iter().flat_map(|(_, rendered)| &rendered.left_out).copied().collect();
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
    ignored: Ignored,
}

impl Reader<'_> {
    fn not_compared(&self) -> Problem {
        let found = self.object.keys().cloned().collect();
        ComparisonProblem::NotCompared { supervision: self.options.supervision, found }.into()
    }

    fn rated(&mut self) -> Result<Vec<(Side, Rendered)>, Problem> {
        self.read.shape = Format::Rated;
        let side = if label(&self.object["label"])? { Side::Desirable } else { Side::Undesirable };
        let (key, conversation) = match beside::has(self.object, "completion") {
            true => ("completion", self.completion()?),
            false => self.example()?,
        };
        let rendered = self.answer(key, conversation)?;
        Ok(vec![(side, rendered)])
    }

    /// The prompt with the rated `completion`.
    fn completion(&mut self) -> Result<Conversation, Problem> {
        let prompt = beside::key(self.object)?;
        self.note(&["completion", "label"], prompt)?;
        let completion = &self.object["completion"];
        let messages = match prompt {
            Some(key) => beside::prompt(self.object, key, &mut self.ignored)?,
            None => Vec::new(),
        };
        let answer = beside::side(completion, "completion", messages.len(), &mut self.ignored)?;
        match (prompt, last_answer(&answer)) {
            (Some(_), _) => self.answered(messages, answer),
            (None, Some(at @ 1..)) => {
                let mut messages = answer;
                let answer = messages.split_off(at);
                self.answered(messages, answer)
            }
            _ => Err(self.not_compared()),
        }
    }

    /// An example of any shape, whose last answer is rated, and the key of this answer.
    fn example(&mut self) -> Result<(&'static str, Conversation), Problem> {
        let mut object = self.object.clone();
        object.shift_remove("label");
        if let Some((renamed, pair)) = fields::pair(&object, Format::Auto) {
            (object, self.read.pair) = (renamed, Some(pair));
        }
        let shape = shape(&object, Format::Auto).map_err(|problem| match problem {
            Problem::Shape { .. } => self.not_compared(),
            other => other,
        })?;
        let Some(conversation) = sample::conversation(&object, shape, &mut self.ignored)? else {
            return Err(self.not_compared());
        };
        let key = shape.keys().last().expect("a shape has keys");
        let Conversation { mut messages, tools, kwargs, .. } = conversation;
        let Some(trained_from) = last_answer(&messages) else {
            return Err(ComparisonProblem::EmptySide(key).into());
        };
        messages[..trained_from].iter_mut().for_each(|message| message.train = None);
        Ok((key, Conversation { messages, tools, kwargs, trained_from }))
    }

    fn pair(&mut self, sides: [Side; 2]) -> Result<Vec<(Side, Rendered)>, Problem> {
        self.read.shape = Format::Preference;
        let object = self.object;
        let values = ["chosen", "rejected"].map(|key| &object[key]);
        if values[0] == values[1] {
            return Err(ComparisonProblem::EqualSides.into());
        }
        let mut ignored = Ignored::default();
        let mut side = |at: usize, key| beside::side(values[at], key, 0, &mut ignored);
        let answers = [side(0, "chosen")?, side(1, "rejected")?];
        let prompt = beside::key(self.object);
        let whole =
            answers.iter().any(|side| side.first().is_some_and(|first| first.role != Role::Assistant));
        // Answers that hold their prompt need none beside them.
        let prompt = if whole { prompt.unwrap_or_default() } else { prompt? };
        self.note(&["chosen", "rejected"], prompt.filter(|key| !whole || *key == "prompt"))?;
        self.ignored.keys.extend(ignored.keys);
        self.ignored.nulls |= ignored.nulls;
        self.ignored.kept_nulls |= ignored.kept_nulls;
        let [chosen, rejected] = match (values, prompt, whole) {
            ([Value::String(chosen), Value::String(rejected)], None, _) => {
                self.documents([chosen, rejected])?
            }
            (_, prompt, true) => self.with_shared_prompt(answers, prompt)?,
            (_, None, false) => self.with_shared_prompt(answers, None)?,
            (_, Some(key), false) => {
                self.read.prompt = Some(key).filter(|key| *key != "prompt");
                let mut messages = beside::prompt(self.object, key, &mut self.ignored)?;
                if messages.last().is_some_and(|last| answers.iter().any(|side| side.first() == Some(last))) {
                    messages.pop();
                }
                let [chosen, rejected] = answers;
                let chosen = self.answered(messages.clone(), chosen)?;
                let rejected = self.answered(messages, rejected)?;
                [self.answer("chosen", chosen)?, self.answer("rejected", rejected)?]
            }
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

    /// Renders two lists of messages, of which the first ones are the prompt. `prompt`: the key of another prompt beside them.
    fn with_shared_prompt(
        &mut self,
        [chosen, rejected]: [Vec<Message>; 2],
        prompt: Option<&'static str>,
    ) -> Result<[Rendered; 2], Problem> {
        let shared = chosen.iter().zip(&rejected).take_while(|(a, b)| a == b).count();
        let before = match (prompt, prompt.map(|key| &self.object[key])) {
            (Some("prompt"), Some(Value::String(text))) => {
                let said = |message: &Message| message.content.trim() == text.trim();
                if !chosen[..shared].iter().any(said) {
                    return Err(ComparisonProblem::OtherPrompt.into());
                }
                Vec::new()
            }
            (Some("prompt"), Some(_)) => {
                let messages = beside::prompt(self.object, "prompt", &mut self.ignored)?;
                let repeated = chosen[..shared].starts_with(&messages);
                if repeated { Vec::new() } else { messages }
            }
            _ => Vec::new(),
        };
        let shared = if before.is_empty() { shared } else { 0 };
        if before.is_empty() && shared == 0 {
            return Err(ComparisonProblem::NoPrompt.into());
        }
        let mut render = |key, mut answer: Vec<Message>| {
            let mut messages = before.clone();
            messages.extend(answer.drain(..shared));
            let conversation = self.answered(messages, answer)?;
            self.answer(key, conversation)
        };
        Ok([render("chosen", chosen)?, render("rejected", rejected)?])
    }

    /// Notes the keys that are ignored. `prompt`: the key of the prompt.
    fn note(&mut self, keys: &[&str], prompt: Option<&'static str>) -> Result<(), Problem> {
        let prompt = prompt.map(beside::keys).unwrap_or_default();
        self.ignored.note(self.object, &[keys, &BESIDE, &prompt].concat(), "")
    }

    /// A prompt and an answer, with what stands beside them.
    fn answered(&mut self, mut prompt: Vec<Message>, answer: Vec<Message>) -> Result<Conversation, Problem> {
        if prompt.last().is_some_and(|last| last.role == Role::Assistant) && !answer.is_empty() {
            return Err(ComparisonProblem::AnsweredPrompt.into());
        }
        prompt.iter_mut().for_each(|message| message.train = None);
        let trained_from = prompt.len();
        prompt.extend(answer);
        with_beside(self.object, prompt, trained_from, &mut self.ignored)
    }

    /// Renders a prompt with the answer that `key` names.
    fn answer(&mut self, key: &'static str, mut conversation: Conversation) -> Result<Rendered, Problem> {
        self.read.system = add_system(&mut conversation, self.options.system);
        let answered = conversation.messages.len() > conversation.trained_from;
        if !answered || has_empty_answer(&conversation, self.options) {
            return Err(ComparisonProblem::EmptySide(key).into());
        }
        let Options { template, train_on, .. } = self.options;
        let rendered = template.render(self.tokenizer, &conversation, *train_on)?;
        self.read.open_end = open_end(&rendered, &conversation, self.tokenizer, self.options);
        if !record::has_loss(&rendered) || is_silent(&rendered, self.tokenizer) {
            return Err(ComparisonProblem::EmptySide(key).into());
        }
        Ok(rendered)
    }

    /// Two texts, whose common first tokens are the prompt.
    fn documents(&mut self, texts: [&String; 2]) -> Result<[Rendered; 2], Problem> {
        if let Some(key) = beside::like_a_prompt(self.object, &["chosen", "rejected"]) {
            return Err(ComparisonProblem::UnreadPrompt(key.to_owned()).into());
        }
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

/// The index of the last message, if it is an answer.
fn last_answer(messages: &[Message]) -> Option<usize> {
    let last = messages.len().checked_sub(1)?;
    (messages[last].role == Role::Assistant).then_some(last)
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
