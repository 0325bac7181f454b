//! Gemma 4's chat layout, as Ollama's `gemma4` renderer writes it (model/renderers/gemma4.go, 2026-08), which follows
//! Google's template of 2026-07-09.
//!
//! `<bos>`, then for each message `<|turn>ROLE\nCONTENT<turn|>\n`, content trimmed, the assistant called `model`. Tools
//! are declared in the system turn; results stand inside the model's turn, which goes on behind them. Pieces are
//! encoded one by one, so the loss mask is exact by construction; as pieces meet only at control tokens or after the
//! newline behind a role, the ids equal those of the whole text encoded at once.

use std::borrow::Cow;

use super::{Conversation, Layout, Message, Rendered, Role, TemplateError, TrainOn, tools};
use crate::data::tokenizer::{Special, Tokenizer};

/// A piece of the rendered text.
pub(super) struct Piece<'a> {
    pub text: Cow<'a, str>,
    special: Special,
    /// The message that it belongs to; none for the head of the text.
    owner: Option<usize>,
    /// Whether the model writes it: its words, calls, thoughts, and what ends its turn.
    written: bool,
}

/// The layout's own rules.
pub(super) fn check(conversation: &Conversation) -> Result<(), TemplateError> {
    if let Some(key) = conversation.kwargs.keys().find(|key| *key != "enable_thinking") {
        return Err(TemplateError::Unused(key.clone()));
    }
    let messages = &conversation.messages;
    for (index, pair) in messages.windows(2).enumerate() {
        let (number, [before, message]) = (index + 2, pair) else { unreachable!("windows of two") };
        match message.role {
            Role::System => return Err(TemplateError::SystemNotFirst { number }),
            Role::Tool if before.tool_calls.is_empty() && before.role != Role::Tool => {
                return Err(TemplateError::ToolWithoutCall { number });
            }
            Role::User | Role::Assistant if before.role == message.role => {
                return Err(TemplateError::Repeated { number, role: message.role });
            }
            _ => {}
        }
    }
    match messages.first() {
        Some(first) if first.role == Role::Tool => Err(TemplateError::ToolWithoutCall { number: 1 }),
        _ => Ok(()),
    }
}

/// The text of a conversation. With [`Layout::Large`] only an answer at the end opens with the empty thought channel:
/// what Ollama has before it at the time of that answer; earlier turns stand as it renders history.
pub(super) fn pieces(layout: Layout, conversation: &Conversation) -> Vec<Piece<'_>> {
    let (messages, thinks) = (&conversation.messages, conversation.thinks());
    let mut out =
        Pieces(vec![Piece { text: "<bos>".into(), special: Special::Parse, owner: None, written: false }]);
    let system = messages.first().filter(|m| m.role == Role::System);
    if system.is_some() || !conversation.tools.is_empty() || thinks {
        let owner = system.map(|_| 0);
        out.layout(owner, "<|turn>system\n");
        if thinks {
            out.layout(owner, "<|think|>\n");
        }
        out.words(owner, system.map_or("", |m| m.content.trim()), false);
        conversation.tools.iter().for_each(|tool| out.layout(owner, tools::declaration(tool)));
        out.layout(owner, "<turn|>\n");
    }
    let last_user = messages.iter().rposition(|m| m.role == Role::User);
    for (index, message) in messages.iter().enumerate().skip(usize::from(system.is_some())) {
        match message.role {
            Role::Tool => {} // inside the turn of the call
            Role::Assistant => {
                let follows = index > 0 && messages[index - 1].role == Role::Tool;
                let shows_thought = !message.thinking.is_empty() && last_user.is_none_or(|user| index > user);
                assistant(&mut out, layout, conversation, index, follows, shows_thought);
            }
            role => {
                out.layout(Some(index), format!("<|turn>{role}\n"));
                out.words(Some(index), message.content.trim(), false);
                out.layout(Some(index), "<turn|>\n");
            }
        }
    }
    out.0
}

/// One message of the model and the results of its calls. `follows`: the turn is open already, behind results.
fn assistant<'a>(
    out: &mut Pieces<'a>,
    layout: Layout,
    conversation: &'a Conversation,
    index: usize,
    follows: bool,
    shows_thought: bool,
) {
    let (messages, owner) = (&conversation.messages, Some(index));
    let message = &messages[index];
    if !follows {
        let empty_thought = index + 1 == messages.len() && !conversation.thinks() && !shows_thought;
        out.layout(owner, format!("<|turn>model\n{}", if empty_thought { thought(layout) } else { "" }));
    }
    if shows_thought {
        // Behind results the prompt itself opens the channel.
        out.push(owner, "<|channel>thought\n", Special::Parse, !(follows && conversation.thinks()));
        out.push(owner, format!("{}\n<channel|>", message.thinking), Special::Parse, true);
    }
    for call in &message.tool_calls {
        out.push(owner, tools::call(call), Special::Parse, true);
    }
    let results: Vec<(usize, &Message)> =
        messages.iter().enumerate().skip(index + 1).take_while(|(_, m)| m.role == Role::Tool).collect();
    for (number, &(index, result)) in results.iter().enumerate() {
        // The first of these tokens ends the model's part: it asks for the results.
        out.push(
            if number == 0 { owner } else { Some(index) },
            "<|tool_response>",
            Special::Parse,
            number == 0,
        );
        out.layout(Some(index), tools::result(result, &message.tool_calls, number));
    }
    let words = message.content.trim();
    out.words(owner, words, true);
    let next = messages.get(index + results.len() + 1);
    let goes_on = next.map_or(!results.is_empty() && words.is_empty(), |m| m.role == Role::Assistant);
    if !message.tool_calls.is_empty() && results.is_empty() {
        out.push(owner, "<|tool_response>", Special::Parse, true);
    } else if !goes_on {
        out.push(owner, "<turn|>", Special::Parse, true);
        out.layout(owner, "\n");
    }
}

/// Whether the layout leaves thoughts out: those before the last question.
pub(super) fn hides_thoughts(conversation: &Conversation) -> bool {
    let messages = &conversation.messages;
    let last_user = messages.iter().rposition(|m| m.role == Role::User).unwrap_or(0);
    messages[..last_user].iter().any(|m| !m.thinking.is_empty())
}

/// What Ollama writes behind a conversation that is to be answered.
pub(super) fn answer_prompt(layout: Layout, conversation: &Conversation) -> Option<Piece<'static>> {
    let thinks = conversation.thinks();
    let text = match (conversation.messages.last()?.role, thinks) {
        (Role::Tool, true) => "<|channel>thought\n".to_owned(),
        (Role::Tool, false) => return None,
        (_, true) => "<|turn>model\n".to_owned(),
        (_, false) => format!("<|turn>model\n{}", thought(layout)),
    };
    Some(Piece { text: text.into(), special: Special::Parse, owner: None, written: false })
}

/// Ids and labels: what the model writes in the messages that are trained, or the whole of them.
pub(super) fn encode(
    tokenizer: &Tokenizer,
    pieces: &[Piece],
    conversation: &Conversation,
    trained: &[bool],
    train_on: TrainOn,
) -> Rendered {
    let mut rendered = Rendered::default();
    for piece in pieces {
        let loss = match piece.owner {
            None => train_on == TrainOn::All,
            Some(index) => {
                let words_alone =
                    conversation.messages[index].role == Role::Assistant && train_on != TrainOn::All;
                trained[index] && (piece.written || !words_alone)
            }
        };
        rendered.push(&tokenizer.encode(&piece.text, piece.special), loss);
    }
    rendered
}

fn thought(layout: Layout) -> &'static str {
    match layout {
        Layout::Small => "",
        Layout::Large => "<|channel>thought\n<channel|>",
    }
}

struct Pieces<'a>(Vec<Piece<'a>>);

impl<'a> Pieces<'a> {
    fn push(&mut self, owner: Option<usize>, text: impl Into<Cow<'a, str>>, special: Special, written: bool) {
        self.0.push(Piece { text: text.into(), special, owner, written });
    }

    fn layout(&mut self, owner: Option<usize>, text: impl Into<Cow<'a, str>>) {
        self.push(owner, text, Special::Parse, false);
    }

    // Go's strings.TrimSpace, which Ollama uses, and `trim` drop the same characters.
    fn words(&mut self, owner: Option<usize>, text: &'a str, written: bool) {
        self.push(owner, text, Special::Plain, written);
    }
}
