//! [`ReplyParts`]: splits the assistant's output into text, reasoning and function calls while it is streamed.

use serde_json::Value;

use super::ToolCall;
use super::reply_syntax::ReplySyntax;
use crate::data::tokenizer::Tokenizer;

/// A part of a reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Text for the user.
    Words(String),
    /// Reasoning.
    Thought(String),
    /// A function call, without [`ToolCall::id`].
    Call(ToolCall),
}

impl Part {
    /// Joins neighbours of a kind: a reply's parts then do not depend on the pieces in which it came.
    pub fn join(parts: Vec<Part>) -> Vec<Part> {
        let mut joined: Vec<Part> = Vec::new();
        for part in parts {
            match (joined.last_mut(), part) {
                (Some(Part::Words(before)), Part::Words(more)) => *before += &more,
                (Some(Part::Thought(before)), Part::Thought(more)) => *before += &more,
                (_, part) => joined.push(part),
            }
        }
        joined
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    /// At the start, or behind reasoning or a header: a call without marks may follow.
    Start,
    Words,
    /// After the opening mark of reasoning: [`ReplySyntax::thought_name`] may follow.
    ThoughtName,
    Thought,
    /// Between these marks.
    Call(&'static str, &'static str),
}

/// Parses a reply piece by piece. Holds back text that may be the start of a mark.
///
/// Reads each character once, however the pieces are cut: the time for a reply grows with its length alone.
#[derive(Clone, Debug)]
pub struct ReplyParts {
    syntax: &'static ReplySyntax,
    /// The declared functions.
    tools: Vec<Value>,
    place: Place,
    /// Whether the next newline follows reasoning or a call.
    after_mark: bool,
    /// Text that is in no part yet.
    held: String,
    /// Bytes at the start of `held` in which no mark begins.
    searched: usize,
    /// Newlines before `held` that count only if more text follows. Before a mark they belong to the layout.
    newlines: usize,
}

impl ReplyParts {
    /// Starts a reply to `prompt`, which may end within reasoning.
    pub fn to(prompt: &[u32], tokenizer: &Tokenizer) -> ReplyParts {
        let last =
            |mark: &str| tokenizer.id(mark).and_then(|id| prompt.iter().rposition(|&other| other == id));
        let syntax = tokenizer.spec().reply;
        // A prompt that opens reasoning includes its name.
        let thinks = last(syntax.thought.0) > last(syntax.thought.1);
        ReplyParts::new(syntax, thinks)
    }

    /// Starts a reply that begins with reasoning or with text.
    pub(crate) fn new(syntax: &'static ReplySyntax, thinks: bool) -> ReplyParts {
        let place = if thinks { Place::Thought } else { Place::Start };
        ReplyParts {
            syntax,
            tools: Vec::new(),
            place,
            after_mark: false,
            held: String::new(),
            searched: 0,
            newlines: 0,
        }
    }

    /// With the declared functions, by which some syntaxes read arguments.
    pub fn with_tools(self, tools: Vec<Value>) -> ReplyParts {
        ReplyParts { tools, ..self }
    }

    /// Adds a piece and returns the parts that it completes.
    pub fn push(&mut self, piece: &str) -> Vec<Part> {
        self.held += piece;
        let (mut read, mut parts) = (0, Vec::new());
        while self.step(&mut read, &mut parts) {}
        self.held.drain(..read);
        self.searched -= read;
        parts
    }

    /// Returns the rest at the end of the reply. An incomplete call becomes text.
    pub fn finish(mut self) -> Vec<Part> {
        let rest = "\n".repeat(self.newlines) + &std::mem::take(&mut self.held);
        match self.place {
            _ if rest.is_empty() => Vec::new(),
            Place::Start | Place::Words => vec![Part::Words(rest)],
            Place::ThoughtName | Place::Thought => thought(rest.trim_end()).into_iter().collect(),
            Place::Call(open, _) => self.calls(&rest, || open.to_owned() + &rest),
        }
    }

    /// Parses `held` from `read` up to the next mark, and moves `read` there. Returns false if no complete mark is available yet.
    fn step(&mut self, read: &mut usize, parts: &mut Vec<Part>) -> bool {
        if self.after_mark {
            *read = self.held.len() - self.held[*read..].trim_start_matches('\n').len();
            self.after_mark = *read == self.held.len();
            self.searched = *read;
        }
        let syntax = self.syntax;
        match self.place {
            Place::Start => {
                self.searched = self.held.len() - self.held[self.searched..].trim_start().len();
                let text = &self.held[self.searched..];
                if syntax.bare_call.starts_with(text) && text.len() < syntax.bare_call.len() {
                    return false;
                }
                self.place = match !syntax.bare_call.is_empty() && text.starts_with(syntax.bare_call) {
                    true => Place::Call("", ""),
                    false => Place::Words,
                };
                self.searched = *read;
            }
            Place::Words => {
                let calls = syntax.calls.iter().map(|(open, _)| *open);
                let opening: Vec<&str> =
                    calls.chain([syntax.thought.0]).chain(syntax.headers.iter().copied()).collect();
                let mark = self.find(&opening);
                let text = self.take(read, mark, syntax.spaced);
                parts.extend((!text.is_empty()).then_some(Part::Words(text)));
                let Some(mark) = mark else { return false };
                if syntax.headers.contains(&mark) {
                    self.place = Place::Start;
                    return true;
                }
                let call = syntax.calls.iter().find(|(open, _)| *open == mark);
                self.place = call.map_or(Place::ThoughtName, |(open, close)| Place::Call(open, close));
            }
            Place::ThoughtName => {
                let (name, rest) = (syntax.thought_name, &self.held[*read..]);
                if name.starts_with(rest) && rest.len() < name.len() {
                    return false;
                }
                *read += if rest.starts_with(name) { name.len() } else { 0 };
                (self.searched, self.place) = (*read, Place::Thought);
            }
            Place::Thought => {
                let mark = self.find(&[syntax.thought.1]);
                parts.extend(thought(&self.take(read, mark, true)));
                if mark.is_none() {
                    return false;
                }
                self.close(Place::Start);
            }
            Place::Call(open, close) => {
                let mark = if close.is_empty() { None } else { self.find(&[close]) };
                if mark.is_none() {
                    return false;
                }
                let text = self.take(read, mark, false);
                parts.extend(self.calls(&text, || [open, &text, close].concat()));
                self.close(Place::Words);
            }
        }
        true
    }

    /// Moves `searched` to the first of `marks`, which it returns, or past all text that cannot be the start of one.
    fn find(&mut self, marks: &[&'static str]) -> Option<&'static str> {
        while let Some(next) = self.held[self.searched..].chars().next() {
            let rest = &self.held[self.searched..];
            let found = marks.iter().filter(|mark| rest.starts_with(**mark)).min();
            if found.is_some() {
                return found.copied();
            }
            if marks.iter().any(|mark| mark.starts_with(rest)) {
                return None;
            }
            self.searched += next.len_utf8();
        }
        None
    }

    /// Takes the text from `read` to `searched`, and the `mark` behind it. If it is `spaced`, newlines at its end are held back, and
    /// dropped before a mark.
    fn take(&mut self, read: &mut usize, mark: Option<&str>, spaced: bool) -> String {
        let text = &self.held[*read..self.searched];
        let trimmed = if spaced { text.trim_end_matches('\n') } else { text };
        let newlines = text.len() - trimmed.len();
        let taken = match trimmed.is_empty() {
            true => String::new(),
            false => "\n".repeat(std::mem::take(&mut self.newlines)) + trimmed,
        };
        self.newlines = if mark.is_some() { 0 } else { self.newlines + newlines };
        self.searched += mark.map_or(0, str::len);
        *read = self.searched;
        taken
    }

    fn close(&mut self, next: Place) {
        self.place = next;
        self.after_mark = self.syntax.spaced;
    }

    /// Parses `text` as calls. If it is none, it becomes the text that `otherwise` returns.
    fn calls(&self, text: &str, otherwise: impl Fn() -> String) -> Vec<Part> {
        let calls: Vec<Part> =
            (self.syntax.parse_calls)(text, &self.tools).into_iter().map(Part::Call).collect();
        if calls.is_empty() { vec![Part::Words(otherwise())] } else { calls }
    }
}

fn thought(text: &str) -> Option<Part> {
    (!text.is_empty()).then(|| Part::Thought(text.to_owned()))
}
