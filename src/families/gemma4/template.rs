//! Gemma 4's chat layout, as Ollama's `gemma4` renderer writes it (model/renderers/gemma4.go, 2026-08), which follows
//! Google's template of 2026-07-09.
//!
//! `<bos>`, then for each message `<|turn>ROLE\nCONTENT<turn|>\n`, with trimmed content; the assistant is called `model`. The
//! system turn declares the tools. Results of function calls stand inside the model's turn, which continues after them. Pieces
//! are encoded one by one, so the loss mask is exact by construction. They meet only at control tokens or after the newline
//! behind a role, so the ids equal those of the whole text encoded at once.

use super::{NAME, tools};
use crate::data::template::{BuiltIn, Conversation, InOllama, Message, Piece, Pieces, Role, TemplateError};
use crate::data::tokenizer::Special;

/// The layout of the models without thinking by default: the prompt for an answer ends in `<|turn>model\n`. (e2b and e4b.)
pub static SMALL: BuiltIn = BuiltIn {
    family: NAME,
    variant: "small",
    version: "gemma4 Small 1",
    tokens: &["<|turn>", "<turn|>"],
    in_ollama: InOllama::Code("gemma4"),
    check,
    pieces: |conversation| pieces("", conversation),
    answer_prompt: |conversation| answer_prompt("", conversation),
    hides_thoughts,
    history: None,
};

/// The layout of 12b, 26b and 31b: an empty thought follows in the prompt, `<|turn>model\n<|channel>thought\n<channel|>`.
pub static LARGE: BuiltIn = BuiltIn {
    family: NAME,
    variant: "large",
    version: "gemma4 Large 1",
    tokens: &["<|turn>", "<turn|>"],
    in_ollama: InOllama::Code("gemma4"),
    check,
    pieces: |conversation| pieces(EMPTY_THOUGHT, conversation),
    answer_prompt: |conversation| answer_prompt(EMPTY_THOUGHT, conversation),
    hides_thoughts,
    history: Some(&SMALL),
};

const EMPTY_THOUGHT: &str = "<|channel>thought\n<channel|>";

/// The layout's own rules.
fn check(conversation: &Conversation) -> Result<(), TemplateError> {
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

/// The text of a conversation. Only an answer at the end opens with `empty_thought`, as in the prompt that Ollama writes for
/// that answer; earlier turns stand as Ollama renders history.
fn pieces<'a>(empty_thought: &'static str, conversation: &'a Conversation) -> Vec<Piece<'a>> {
    let (messages, thinks) = (&conversation.messages, conversation.thinks());
    let mut out = Pieces::default();
    out.layout(None, "<bos>");
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
            Role::Tool => {} // part of the turn of the call
            Role::Assistant => {
                let follows = index > 0 && messages[index - 1].role == Role::Tool;
                let shows_thought = !message.thinking.is_empty() && last_user.is_none_or(|user| index > user);
                assistant(&mut out, empty_thought, conversation, index, follows, shows_thought);
            }
            role => {
                out.layout(Some(index), format!("<|turn>{role}\n"));
                out.words(Some(index), message.content.trim(), false);
                out.layout(Some(index), "<turn|>\n");
            }
        }
    }
    out.into_vec()
}

/// One message of the model and the results of its calls. `follows`: it follows results, so its turn is open already.
fn assistant<'a>(
    out: &mut Pieces<'a>,
    empty_thought: &'static str,
    conversation: &'a Conversation,
    index: usize,
    follows: bool,
    shows_thought: bool,
) {
    let (messages, owner) = (&conversation.messages, Some(index));
    let message = &messages[index];
    if !follows {
        let last = index + 1 == messages.len() && !conversation.thinks() && !shows_thought;
        out.layout(owner, format!("<|turn>model\n{}", if last { empty_thought } else { "" }));
    }
    if shows_thought {
        // After results the prompt itself opens the channel.
        out.thought(owner, "<|channel>thought\n", !(follows && conversation.thinks()));
        out.thought(owner, format!("{}\n<channel|>", message.thinking), true);
    }
    for call in &message.tool_calls {
        out.push(owner, tools::call(call), Special::Parse, true);
    }
    let results: Vec<(usize, &Message)> =
        messages.iter().enumerate().skip(index + 1).take_while(|(_, m)| m.role == Role::Tool).collect();
    for (number, &(index, result)) in results.iter().enumerate() {
        // The first of these tokens ends what the model writes: it asks for the results.
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
    let continues = next.map_or(!results.is_empty() && words.is_empty(), |m| m.role == Role::Assistant);
    if !message.tool_calls.is_empty() && results.is_empty() {
        out.push(owner, "<|tool_response>", Special::Parse, true);
    } else if !continues {
        out.push(owner, "<turn|>", Special::Parse, true);
        out.layout(owner, "\n");
    }
}

/// Whether the layout skips thoughts: those before the last question.
fn hides_thoughts(conversation: &Conversation) -> bool {
    let messages = &conversation.messages;
    let last_user = messages.iter().rposition(|m| m.role == Role::User).unwrap_or(0);
    messages[..last_user].iter().any(|m| !m.thinking.is_empty())
}

/// The prompt for an answer that Ollama appends to a conversation.
fn answer_prompt(empty_thought: &'static str, conversation: &Conversation) -> Option<Piece<'static>> {
    let thinks = conversation.thinks();
    let text = match (conversation.messages.last()?.role, thinks) {
        (Role::Tool, true) => "<|channel>thought\n".to_owned(),
        (Role::Tool, false) => return None,
        (_, true) => "<|turn>model\n".to_owned(),
        (_, false) => format!("<|turn>model\n{}", empty_thought),
    };
    Some(Piece { text: text.into(), special: Special::Parse, owner: None, written: false, thought: false })
}
