//! gpt-oss's chat layout, harmony, for files without a template: conversations of text.

use crate::data::template::{BuiltIn, Conversation, InOllama, Piece, Pieces, Role};
use crate::data::tokenizer::Special;
use crate::families::chat_layout::{self, Turns};

/// Turns of text in the channel `final`, and reasoning in the channel `analysis` of the last answer. The system turn lacks the
/// date that OpenAI's template writes.
pub static HARMONY: BuiltIn = BuiltIn {
    family: super::NAME,
    variant: "harmony",
    version: "harmony 1",
    tokens: &["<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|return|>"],
    in_ollama: InOllama::Template(go),
    check: |conversation| chat_layout::check(conversation, true),
    pieces,
    answer_prompt: |_| Some(answer_prompt()),
    hides_thoughts: Turns::hides_thoughts,
    history: None,
};

/// OpenAI's system message at the usual effort of reasoning.
const SYSTEM: &str = concat!(
    "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n\n",
    "Reasoning: medium\n\n# Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|>"
);
const ASSISTANT: &str = "<|start|>assistant";
const ANALYSIS: &str = "<|channel|>analysis<|message|>";
const FINAL: &str = "<|channel|>final<|message|>";

fn pieces(conversation: &Conversation) -> Vec<Piece<'_>> {
    let last = conversation.messages.len().saturating_sub(1);
    let mut out = Pieces::default();
    out.layout(None, SYSTEM);
    for (index, message) in conversation.messages.iter().enumerate() {
        let owner = Some(index);
        let (opening, closing) = match message.role {
            Role::System => ("<|start|>developer<|message|># Instructions\n\n", "\n\n<|end|>"),
            Role::Assistant => (ASSISTANT, "<|end|>"),
            _ => ("<|start|>user<|message|>", "<|end|>"),
        };
        out.layout(owner, opening);
        if message.role != Role::Assistant {
            out.words(owner, &message.content, false);
            out.layout(owner, closing);
            continue;
        }
        if index == last && !message.thinking.is_empty() {
            out.thought(owner, format!("{ANALYSIS}{}<|end|>{ASSISTANT}", message.thinking), true);
        }
        out.push(owner, FINAL, Special::Parse, true);
        out.words(owner, &message.content, true);
        // An answer that others follow ends as OpenAI's template ends it. The model never generates that end.
        match index == last {
            true => out.push(owner, "<|return|>", Special::Parse, true),
            false => out.layout(owner, closing),
        }
    }
    out.into_vec()
}

fn answer_prompt() -> Piece<'static> {
    Piece { text: ASSISTANT.into(), special: Special::Parse, owner: None, written: false, thought: false }
}

/// The layout as a Go template, for Ollama.
fn go() -> String {
    let turn = |opening: &str, closing: &str| format!("{opening}{{{{ .Content }}}}{closing}");
    format!(
        "{SYSTEM}{{{{ if .System }}}}<|start|>developer<|message|># Instructions\n\n{{{{ .System }}}}\n\n<|end|>{{{{ end }}}}\
         {{{{ range .Messages }}}}{{{{ if eq .Role \"user\" }}}}{}{{{{ else if eq .Role \"assistant\" }}}}{}{{{{ end }}}}{{{{ end }}}}{ASSISTANT}",
        turn("<|start|>user<|message|>", "<|end|>"),
        turn(&format!("{ASSISTANT}{FINAL}"), "<|end|>"),
    )
}
