//! Qwen 3.5's chat layout, as Ollama's `qwen3.5` renderer writes it (model/renderers/qwen35.go), which follows Qwen's template.
//!
//! `<|im_start|>ROLE\nCONTENT<|im_end|>\n` for each message, with trimmed content. The system turn declares the functions, and their
//! results stand in a turn of the user. The prompt for an answer opens a thought, or has an empty one. Pieces are encoded one by one:
//! each ends where no token can reach into the next one.

use super::{NAME, NAME_MOE, tools};
use crate::data::template::{BuiltIn, Conversation, InOllama, Message, Piece, Pieces, Role, TemplateError};
use crate::data::tokenizer::Special;

/// The layout, with an empty thought in front of a last answer without reasoning.
pub static CHAT: BuiltIn = BuiltIn {
    family: NAME,
    variant: "qwen3.5",
    version: "qwen3.5 1",
    tokens: TOKENS,
    in_ollama: IN_OLLAMA,
    check,
    pieces: |conversation| pieces(EMPTY_THOUGHT, conversation),
    answer_prompt: |conversation| answer_prompt(EMPTY_THOUGHT, conversation),
    hides_thoughts,
    history: Some(&HISTORY),
};

/// The layout of the mixtures of experts.
pub static CHAT_MOE: BuiltIn = BuiltIn { family: NAME_MOE, in_ollama: IN_OLLAMA, ..CHAT };

/// The layout of answers that other messages follow.
static HISTORY: BuiltIn = BuiltIn {
    family: NAME,
    variant: "qwen3.5 history",
    version: "qwen3.5 history 1",
    tokens: TOKENS,
    in_ollama: IN_OLLAMA,
    check,
    pieces: |conversation| pieces("", conversation),
    answer_prompt: |conversation| answer_prompt("", conversation),
    hides_thoughts,
    history: None,
};

const TOKENS: &[&str] = &["<|im_start|>", "<|im_end|>"];
const IN_OLLAMA: InOllama = InOllama::Code("qwen3.5");
const EMPTY_THOUGHT: &str = "<think>\n\n</think>\n\n";
/// Marks around a function's result.
const RESULT: (&str, &str) = ("<tool_response>", "</tool_response>");

/// The layout's own rules.
fn check(conversation: &Conversation) -> Result<(), TemplateError> {
    if let Some(key) = conversation.kwargs.keys().find(|key| *key != "enable_thinking") {
        return Err(TemplateError::Unused(key.clone()));
    }
    let mut before = None;
    for (index, message) in conversation.messages.iter().enumerate() {
        let number = index + 1;
        let answers_call = before.is_some_and(|m: &Message| m.role == Role::Tool || !m.tool_calls.is_empty());
        match message.role {
            Role::System if index > 0 => return Err(TemplateError::SystemNotFirst { number }),
            Role::Tool if !answers_call => return Err(TemplateError::ToolWithoutCall { number }),
            _ => before = Some(message),
        }
    }
    Ok(())
}

fn pieces<'a>(empty_thought: &'static str, conversation: &'a Conversation) -> Vec<Piece<'a>> {
    let (messages, thinks) = (&conversation.messages, thinks(conversation));
    let mut out = Pieces::default();
    let system = messages.first().filter(|m| m.role == Role::System);
    opening(&mut out, conversation, system);
    let (question, last) = (last_question(messages), messages.len().saturating_sub(1));
    for (index, message) in messages.iter().enumerate().skip(usize::from(system.is_some())) {
        let owner = Some(index);
        match message.role {
            Role::Tool => out.layout(owner, result(messages, index)),
            Role::Assistant => {
                out.layout(owner, "<|im_start|>assistant\n");
                let (thought, words) = parts(message);
                if thinks && question.is_none_or(|question| index > question) {
                    // The prompt has the opening mark.
                    let text = format!("{thought}\n</think>\n\n");
                    out.thought(owner, "<think>\n", false);
                    out.thought(owner, text, !thought.is_empty());
                } else if index == last {
                    out.thought(owner, empty_thought, false);
                }
                answer(&mut out, owner, words, message);
            }
            role => {
                out.layout(owner, format!("<|im_start|>{role}\n"));
                out.words(owner, message.content.trim(), false);
                out.layout(owner, "<|im_end|>\n");
            }
        }
    }
    out.into_vec()
}

/// The system turn: declared functions, and the system message.
fn opening<'a>(out: &mut Pieces<'a>, conversation: &'a Conversation, system: Option<&'a Message>) {
    let owner = system.map(|_| 0);
    let words = system.map(|message| message.content.trim());
    if !conversation.tools.is_empty() {
        let declared = conversation.tools.iter().map(|tool| format!("\n{}", tools::declaration(tool)));
        let declared: String = declared.collect();
        let (open, close) = tools::DECLARED;
        let space = if words.is_some_and(|words| !words.is_empty()) { "\n\n" } else { "" };
        out.layout(owner, format!("<|im_start|>system\n{open}{declared}{close}{space}"));
    } else if system.is_some() {
        out.layout(owner, "<|im_start|>system\n");
    } else {
        return;
    }
    out.words(owner, words.unwrap_or_default(), false);
    out.layout(owner, "<|im_end|>\n");
}

/// The words and calls of an answer, and the end of its turn.
fn answer<'a>(out: &mut Pieces<'a>, owner: Option<usize>, words: &'a str, message: &Message) {
    if message.tool_calls.is_empty() {
        out.words(owner, words, true);
    } else {
        let calls: Vec<String> = message.tool_calls.iter().map(tools::call).collect();
        let space = if words.is_empty() { "" } else { "\n\n" };
        // One piece, as a token may have the last sign and the newlines behind it.
        out.push(owner, format!("{words}{space}{}", calls.join("\n")), Special::Parse, true);
    }
    out.push(owner, "<|im_end|>", Special::Parse, true);
    out.layout(owner, "\n");
}

/// A function's result, with the turn of the user around neighboring results.
fn result(messages: &[Message], index: usize) -> String {
    let is_result = |index: Option<usize>| {
        index.and_then(|index| messages.get(index)).is_some_and(|message| message.role == Role::Tool)
    };
    let message = &messages[index];
    let text = message.result.as_ref().map_or_else(|| message.content.clone(), ToString::to_string);
    let start = if is_result(index.checked_sub(1)) { "" } else { "<|im_start|>user\n" };
    let end = if is_result(Some(index + 1)) { "\n" } else { "<|im_end|>\n" };
    format!("{start}{}\n{}\n{}{end}", RESULT.0, text.trim(), RESULT.1)
}

/// Reasoning and text of an answer. The reasoning may stand in the text.
fn parts(message: &Message) -> (&str, &str) {
    let words = message.content.trim();
    match words.split_once("</think>") {
        Some((thought, rest)) if message.thinking.is_empty() => {
            let thought = thought.rsplit_once("<think>").map_or(thought, |(_, thought)| thought);
            (thought.trim(), rest.trim_start_matches('\n'))
        }
        _ => (message.thinking.trim(), words),
    }
}

/// [`Conversation::thinks`], with reasoning in the text of answers.
fn thinks(conversation: &Conversation) -> bool {
    let answers = conversation.messages.iter().rev().take_while(|m| m.role != Role::User);
    let reasons = || answers.filter(|m| m.role == Role::Assistant).any(|m| !parts(m).0.is_empty());
    conversation.thinks() || !conversation.kwargs.contains_key("enable_thinking") && reasons()
}

/// The last message of the user that is no result.
fn last_question(messages: &[Message]) -> Option<usize> {
    messages.iter().rposition(|message| {
        let words = message.content.trim();
        message.role == Role::User && !(words.starts_with(RESULT.0) && words.ends_with(RESULT.1))
    })
}

/// Whether the layout skips thoughts: those before the last question, and all of a conversation that does not think.
fn hides_thoughts(conversation: &Conversation) -> bool {
    let messages = &conversation.messages;
    let shown = match thinks(conversation) {
        true => last_question(messages).unwrap_or(0),
        false => messages.len(),
    };
    messages[..shown].iter().any(|m| m.role == Role::Assistant && !parts(m).0.is_empty())
}

/// The prompt for an answer.
fn answer_prompt(empty_thought: &'static str, conversation: &Conversation) -> Option<Piece<'static>> {
    let thought = if thinks(conversation) { "<think>\n" } else { empty_thought };
    let text = format!("<|im_start|>assistant\n{thought}").into();
    Some(Piece { text, special: Special::Parse, owner: None, written: false, thought: false })
}
