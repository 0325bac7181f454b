//! [`ReplyParts`]: splits the assistant's output into text, reasoning and function calls while it is streamed.

use super::ToolCall;
use crate::data::tokenizer::Tokenizer;

/// How the models of a family mark reasoning and function calls in a reply.
#[derive(Debug)]
pub struct ReplySyntax {
    /// Control tokens around reasoning.
    pub thought: (&'static str, &'static str),
    /// Text between the opening token and the reasoning; a reply may lack it.
    pub thought_name: &'static str,
    /// Control tokens around a function call.
    pub call: (&'static str, &'static str),
    /// Parses the text between the tokens of a call; `None` if it is not a valid call.
    pub parse_call: fn(&str) -> Option<ToolCall>,
}

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

#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Words,
    /// After the opening token of reasoning: [`ReplySyntax::thought_name`] may follow.
    ThoughtName,
    Thought,
    Call,
}

/// Parses a reply piece by piece. Holds back text that may be the start of a control token.
#[derive(Clone, Debug)]
pub struct ReplyParts {
    syntax: &'static ReplySyntax,
    place: Place,
    held: String,
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
        let place = if thinks { Place::Thought } else { Place::Words };
        ReplyParts { syntax, place, held: String::new() }
    }

    /// Adds a piece and returns the parts that it completes.
    pub fn push(&mut self, piece: &str) -> Vec<Part> {
        self.held += piece;
        let mut parts = Vec::new();
        while self.step(&mut parts) {}
        parts
    }

    /// Returns the rest at the end of the reply. An incomplete call becomes text.
    pub fn finish(mut self) -> Vec<Part> {
        let held = std::mem::take(&mut self.held);
        match self.place {
            _ if held.is_empty() => Vec::new(),
            Place::Words => vec![Part::Words(held)],
            Place::ThoughtName | Place::Thought => thought(held.trim_end()).into_iter().collect(),
            Place::Call => vec![self.call(&held, || self.syntax.call.0.to_owned() + &held)],
        }
    }

    /// Parses up to the next mark. Returns false if no complete mark is available yet.
    fn step(&mut self, parts: &mut Vec<Part>) -> bool {
        match self.place {
            Place::Words => {
                let (words, mark) = self.until(&[self.syntax.thought.0, self.syntax.call.0]);
                parts.extend((!words.is_empty()).then_some(Part::Words(words)));
                self.place = match mark {
                    Some(mark) if mark == self.syntax.call.0 => Place::Call,
                    Some(_) => Place::ThoughtName,
                    None => return false,
                };
            }
            Place::ThoughtName => {
                let name = self.syntax.thought_name;
                if name.starts_with(&self.held) && self.held.len() < name.len() {
                    return false;
                }
                self.held = self.held.strip_prefix(name).unwrap_or(&self.held).to_owned();
                self.place = Place::Thought;
            }
            Place::Thought => {
                let (mut words, mark) = self.until(&[self.syntax.thought.1]);
                let trimmed = words.trim_end_matches('\n').len();
                match mark {
                    Some(_) => {
                        words.truncate(trimmed);
                        self.place = Place::Words;
                    }
                    // Newlines at the end of reasoning belong to the template.
                    None => self.held.insert_str(0, &words.split_off(trimmed)),
                }
                parts.extend(thought(&words));
                return mark.is_some();
            }
            Place::Call => {
                let Some((text, rest)) = self.held.split_once(self.syntax.call.1) else { return false };
                let whole = || [self.syntax.call.0, text, self.syntax.call.1].concat();
                parts.push(self.call(text, whole));
                self.held = rest.to_owned();
                self.place = Place::Words;
            }
        }
        true
    }

    /// Parses `text` as a call. If it is not one, it becomes the text that `otherwise` returns.
    fn call(&self, text: &str, otherwise: impl Fn() -> String) -> Part {
        (self.syntax.parse_call)(text).map_or_else(|| Part::Words(otherwise()), Part::Call)
    }

    /// Takes the text before the first of `marks`, and that mark. Without a mark, takes all text that cannot be the start of
    /// one.
    fn until(&mut self, marks: &[&'static str]) -> (String, Option<&'static str>) {
        let found = marks.iter().filter_map(|mark| Some((self.held.find(mark)?, *mark))).min();
        if let Some((at, mark)) = found {
            let rest = self.held.split_off(at + mark.len());
            let mut text = std::mem::replace(&mut self.held, rest);
            text.truncate(at);
            return (text, Some(mark));
        }
        let begun = |at: &usize| marks.iter().any(|mark| mark.starts_with(&self.held[*at..]));
        let at = self.held.char_indices().map(|(at, _)| at).find(begun).unwrap_or(self.held.len());
        let held = self.held.split_off(at);
        (std::mem::replace(&mut self.held, held), None)
    }
}

fn thought(text: &str) -> Option<Part> {
    (!text.is_empty()).then(|| Part::Thought(text.to_owned()))
}
