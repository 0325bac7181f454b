//! Jinja chat templates in the environment of transformers' `apply_chat_template` (utils/chat_template_utils.py): trimmed
//! blocks, loop controls, `raise_exception`, `strftime_now`, `tojson` and `{% generation %}`.

use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value, context};
use serde_json::{Map, Value as Json, json};
use sha2::{Digest, Sha256};

use super::date::Date;
use super::{Conversation, GENERATION, Message, Role, TemplateError, instrument, limits, meter, python};
use crate::data::catch_panic::caught;
use crate::data::tokenizer::Tokenizer;

/// Keys under which templates look for the assistant's reasoning.
const THINKING: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];

/// The problem where the template engine panics, as it does on a `{% break %}` after the `{% else %}` of a loop.
const FAILS: &str = "the template engine fails on it";

/// Number of characters of a template's own message that errors show.
const MAX_MESSAGE: usize = 500;

/// Characters in front of a key that a template reads.
const KEY: [char; 3] = ['\'', '"', '.'];

/// A compiled chat template. It can render from any thread.
pub struct Jinja {
    env: Environment<'static>,
    /// The name in errors, with a space before it.
    name: String,
    source: Arc<str>,
    today: Date,
    generation: bool,
    /// The template for conversations with functions, if it is another one.
    functions: Option<Box<Jinja>>,
}

impl Jinja {
    /// Compiles a template. `today`: the date that it may write.
    pub fn new(source: &str, today: Date) -> Result<Jinja, TemplateError> {
        Jinja::named("", source, today)
    }

    /// Compiles a template. Errors of the template have `name`, which is that of its file.
    pub fn named(name: &str, source: &str, today: Date) -> Result<Jinja, TemplateError> {
        let name = if name.is_empty() { String::new() } else { format!(" {name}") };
        let unreadable = |problem| TemplateError::Syntax { name: name.clone(), problem };
        let (compiled, generation) = generation_filters(source);
        let compiled = instrument::guard(&compiled).map_err(&unreadable)?;
        let mut env = Environment::new();
        env.set_fuel(Some(limits::FUEL));
        meter::install(&mut env);
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        env.set_syntax(syntax.expect("the usual delimiters"));
        env.set_undefined_behavior(UndefinedBehavior::Lenient);
        env.set_auto_escape_callback(|_| AutoEscape::None);
        env.set_formatter(|out, _, value| out.write_str(&python::display(value)?).map_err(Error::from));
        env.add_filter("tojson", |value: Value, kwargs: Kwargs| python::tojson(&value, kwargs));
        env.add_filter("trim", |value: Value, chars: Option<String>| {
            let text = python::display(&value)?;
            Ok::<_, Error>(match chars {
                Some(chars) => text.trim_matches(|c| chars.contains(c)).to_owned(),
                None => python::strip(&text).to_owned(),
            })
        });
        env.add_filter("string", |value: Value| python::display(&value));
        env.add_filter("upper", |value: Value| python::display(&value).map(|text| text.to_uppercase()));
        env.add_filter("lower", |value: Value| python::display(&value).map(|text| text.to_lowercase()));
        // In Python, strings and mappings are sequences too. In jinja2, so is what is undefined.
        let listed = |value: Value| {
            use ValueKind::{Map, Seq, String, Undefined};
            matches!(value.kind(), String | Seq | Map | Undefined)
        };
        env.add_test("sequence", listed);
        env.add_test("iterable", move |value: Value| {
            listed(value.clone()) || value.kind() == ValueKind::Iterable
        });
        env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        env.add_function("strftime_now", move |format: String| python::strftime(today, &format));
        env.add_filter("generation__", |body: Value| {
            python::display(&body).map(|body| format!("{}{body}{}", GENERATION.0, GENERATION.1))
        });
        let added = caught(|| env.add_template_owned("chat_template", compiled));
        let added = added.ok_or_else(|| unreadable(FAILS.into()))?;
        added.map_err(|error| unreadable(message(&error)))?;
        Ok(Jinja { env, name, source: source.into(), today, generation, functions: None })
    }

    /// With the template that a file has beside its first one for conversations with functions, `tool_use`.
    pub fn with_functions(self, functions: Jinja) -> Jinja {
        Jinja { functions: Some(Box::new(functions)), ..self }
    }

    /// The template for a conversation. As in transformers and llama.cpp, declared functions decide; calls without a declaration do
    /// where only the template for functions has a place for them.
    pub(super) fn of(&self, conversation: &Conversation) -> &Jinja {
        let calls = conversation.messages.iter().any(|message| !message.tool_calls.is_empty());
        let needed = !conversation.tools.is_empty() || calls && !self.reads("tool_calls", &KEY);
        self.functions.as_deref().filter(|_| needed).unwrap_or(self)
    }

    /// Whether the template marks the assistant's text with `{% generation %}`.
    pub(super) fn has_generation(&self) -> bool {
        self.generation
    }

    /// Whether the template writes the current date.
    pub fn writes_date(&self) -> bool {
        self.source.contains("strftime_now")
            || self.functions.as_ref().is_some_and(|other| other.writes_date())
    }

    /// The date given to this template.
    pub fn today(&self) -> Date {
        self.today
    }

    pub(super) fn digest(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(b"jinja 3\0");
        hash.update(self.source.as_bytes());
        if self.writes_date() {
            hash.update(self.today.0.to_le_bytes());
        }
        if let Some(functions) = &self.functions {
            hash.update(functions.digest());
        }
        hash.finalize().into()
    }

    /// Renders the first `count` messages, optionally with the generation prompt after them.
    pub(super) fn render(
        &self,
        tokenizer: &Tokenizer,
        conversation: &Conversation,
        count: usize,
        add_generation_prompt: bool,
    ) -> Result<String, TemplateError> {
        let text = self.render_marked(tokenizer, conversation, count, add_generation_prompt)?;
        Ok(if self.generation { text.replace([GENERATION.0, GENERATION.1], "") } else { text })
    }

    /// Like [`Jinja::render`], with [`GENERATION`] markers around the text that the template marks as generated by the
    /// assistant.
    pub(super) fn render_marked(
        &self,
        tokenizer: &Tokenizer,
        conversation: &Conversation,
        count: usize,
        add_generation_prompt: bool,
    ) -> Result<String, TemplateError> {
        let messages = conversation.messages[..count].iter().map(|m| self.message(m));
        let messages = Json::Array(messages.collect::<Result<_, _>>()?);
        if !conversation.tools.is_empty() && !self.reads("tools", &[]) {
            return Err(TemplateError::Unused("tools".into()));
        }
        // A variable that disables something has no effect on a template that does not use it.
        let lost = |(key, value): &(&String, &Json)| **value != Json::Bool(false) && !self.reads(key, &[]);
        if let Some((key, _)) = conversation.kwargs.iter().find(lost) {
            return Err(TemplateError::Unused(key.clone()));
        }
        let named = |name: &'static str| tokenizer.id(name).map(|_| name);
        let mut variables: Map<String, Json> = conversation.kwargs.clone();
        if conversation.thinks() {
            variables.insert("enable_thinking".into(), true.into());
        }
        let variables = Value::from(Serde(&variables));
        // transformers passes None if there are no tools.
        let tools = Json::Array(conversation.tools.clone());
        let context = context! {
            messages => python::value(&messages),
            tools => (!conversation.tools.is_empty()).then(|| python::value(&tools)),
            documents => Value::from(()),
            add_generation_prompt,
            bos_token => tokenizer.bos_token(),
            eos_token => tokenizer.eos_token(),
            unk_token => named("<unk>"),
            pad_token => named("<pad>"),
            ..variables
        };
        let template = self.env.get_template("chat_template").expect("the only template was added");
        limits::start(limits::size(&messages) + limits::size(&tools));
        let fails = || self.stopped(FAILS.into());
        let rendered = caught(|| template.render_captured(context)).ok_or_else(fails)?;
        let rendered = rendered.map_err(|error| self.failed(&error))?;
        limits::ended(rendered.state());
        Ok(rendered.into_output())
    }

    fn failed(&self, error: &Error) -> TemplateError {
        match limits::exceeded(error) {
            Some(limit) => self.stopped(limit.to_owned() + &line(error)),
            None => TemplateError::Refused { name: self.name.clone(), problem: message(error) },
        }
    }

    /// The error for a limit that renderings exceed.
    pub(super) fn stopped(&self, problem: String) -> TemplateError {
        TemplateError::Stopped { name: self.name.clone(), problem }
    }

    /// Whether the template contains `word` as a whole word, preceded by one of the characters in `behind` unless that is
    /// empty. A template reads a key by its name: `message['key']`, `message.get("key")`, `message.key`.
    fn reads(&self, word: &str, behind: &[char]) -> bool {
        let letter = |c: char| c.is_alphanumeric() || c == '_';
        self.source.match_indices(word).any(|(at, _)| {
            let before = self.source[..at].chars().next_back();
            let after = self.source[at + word.len()..].chars().next();
            let begins = match behind {
                [] => !before.is_some_and(letter),
                _ => before.is_some_and(|c| behind.contains(&c)),
            };
            begins && !after.is_some_and(letter)
        })
    }

    /// Converts a message to the form that transformers passes. Fails if the template does not read one of its fields.
    fn message(&self, message: &Message) -> Result<Json, TemplateError> {
        let mut out = Map::new();
        out.insert("role".into(), message.role.name().into());
        let content = message.result.clone().unwrap_or_else(|| message.content.clone().into());
        out.insert("content".into(), content);
        if !message.thinking.is_empty() {
            let mut known = THINKING.into_iter().filter(|key| self.reads(key, &KEY)).peekable();
            if known.peek().is_none() {
                return Err(TemplateError::Unused(THINKING[0].into()));
            }
            known.for_each(|key| drop(out.insert(key.into(), message.thinking.clone().into())));
        }
        if !message.tool_calls.is_empty() {
            if !self.reads("tool_calls", &KEY) {
                return Err(TemplateError::Unused("tool_calls".into()));
            }
            let calls = message.tool_calls.iter().map(|call| {
                let mut out = Map::new();
                if !call.id.is_empty() {
                    out.insert("id".into(), call.id.clone().into());
                }
                out.insert("type".into(), "function".into());
                out.insert("function".into(), json!({"name": call.name, "arguments": call.arguments}));
                Json::from(out)
            });
            out.insert("tool_calls".into(), calls.collect());
        }
        if message.role == Role::Tool {
            for (key, value) in [("name", &message.name), ("tool_call_id", &message.tool_call_id)] {
                if !value.is_empty() {
                    out.insert(key.into(), value.clone().into());
                }
            }
        }
        Ok(out.into())
    }
}

/// The error's message with the line of the template.
fn message(error: &Error) -> String {
    let mut text = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    if let Some((end, _)) = text.char_indices().nth(MAX_MESSAGE) {
        text.replace_range(end.., "…");
    }
    text + &line(error)
}

/// The line of the template, as the end of a message.
fn line(error: &Error) -> String {
    error.line().map_or(String::new(), |line| format!(" (line {line} of the template)"))
}

/// Replaces transformers' own tag `{% generation %}` by a filter, which keeps the tag's whitespace control. Variables that the block sets
/// are its own, and namespaces are not.
fn generation_filters(source: &str) -> (String, bool) {
    let mut out = String::new();
    let (mut rest, mut found) = (source, false);
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out += before;
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let (tag, tail) = tag.split_at(end);
        let inner = tag.trim_start_matches("{%").trim_end_matches("%}");
        let word = inner.trim_matches(['-', '+']).trim();
        match word {
            "generation" => (out += &tag.replacen(word, "with %}{% filter generation__", 1), found = true).1,
            "endgeneration" => out += &tag.replacen(word, "endfilter %}{% endwith", 1),
            _ => out += tag,
        }
        rest = tail;
    }
    (out + rest, found)
}
