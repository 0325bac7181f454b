//! The chat layouts and the tokenizers of DeepSeek V2 and GLM 4.7.

use serde_json::{Map, Value as Json};

use super::NAME;
use crate::data::digits;
use crate::data::template::{BuiltIn, Conversation, InOllama, Piece, Pieces, ReplySyntax, Role, ToolCall};
use crate::data::tokenizer::{Special, TokenizerSpec};
use crate::families::{chat_layout, glm4, tool_calls};

const DEEPSEEK_END: &str = "<｜end▁of▁sentence｜>";

/// `User: QUESTION\n\nAssistant: ANSWER<｜end▁of▁sentence｜>` behind the token that begins a sequence.
pub static CHAT_DEEPSEEK: BuiltIn = BuiltIn {
    family: NAME,
    variant: "DeepSeek V2",
    version: "DeepSeek V2 turns 1",
    tokens: &[DEEPSEEK_END],
    in_ollama: InOllama::Template(|| {
        let turns = [
            ("{{ if eq .Role \"user\" }}", "User: {{ .Content }}\n\n"),
            ("{{ else if eq .Role \"assistant\" }}", "Assistant: {{ .Content }}<｜end▁of▁sentence｜>"),
            ("{{ else }}", "{{ .Content }}\n\n"),
        ];
        let turns: String = turns.iter().map(|(role, turn)| format!("{role}{turn}")).collect();
        format!("{{{{ range .Messages }}}}{turns}{{{{ end }}}}{{{{ end }}}}Assistant:")
    }),
    check: |conversation| chat_layout::check(conversation, false),
    pieces: deepseek_pieces,
    answer_prompt: |_| Some(layout("Assistant:")),
    hides_thoughts: |_| false,
    history: None,
};

fn deepseek_pieces(conversation: &Conversation) -> Vec<Piece<'_>> {
    let mut out = Pieces::default();
    for (index, message) in conversation.messages.iter().enumerate() {
        let owner = Some(index);
        match message.role {
            Role::Assistant => {
                out.layout(owner, "Assistant:");
                // The space belongs to the first word of the answer.
                out.push(owner, format!(" {}", message.content), Special::Plain, true);
                out.push(owner, DEEPSEEK_END, Special::Parse, true);
            }
            role => {
                if role == Role::User {
                    out.layout(owner, "User: ");
                }
                out.words(owner, &message.content, false);
                out.layout(owner, "\n\n");
            }
        }
    }
    out.into_vec()
}

/// `[gMASK]<sop><|user|>QUESTION<|assistant|></think>ANSWER<|user|>…`: the mark of the next question ends an answer, also the last.
pub static CHAT_GLM: BuiltIn = BuiltIn {
    family: NAME,
    variant: "GLM 4.7",
    version: "GLM 4.7 turns 1",
    tokens: &["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "</think>"],
    in_ollama: InOllama::Template(|| {
        let turn = "<|{{ .Role }}|>{{ if eq .Role \"assistant\" }}</think>{{ end }}{{ .Content }}";
        format!("[gMASK]<sop>{{{{ range .Messages }}}}{turn}{{{{ end }}}}<|assistant|></think>")
    }),
    check: |conversation| chat_layout::check(conversation, false),
    pieces: glm_pieces,
    answer_prompt: |_| Some(layout("<|assistant|></think>")),
    hides_thoughts: |_| false,
    history: None,
};

fn glm_pieces(conversation: &Conversation) -> Vec<Piece<'_>> {
    let mut out = Pieces::default();
    out.layout(None, "[gMASK]<sop>");
    let mut is_open = false;
    for (index, message) in conversation.messages.iter().enumerate() {
        let (owner, written) = (Some(index), message.role == Role::Assistant);
        if !(is_open && message.role == Role::User) {
            let thought = if written { "</think>" } else { "" };
            out.layout(owner, format!("<|{}|>{thought}", message.role.name()));
        }
        out.words(owner, &message.content, written);
        is_open = written;
        if written {
            out.push(owner, "<|user|>", Special::Parse, true);
        }
    }
    out.into_vec()
}

fn layout(text: &'static str) -> Piece<'static> {
    Piece { text: text.into(), special: Special::Parse, owner: None, written: false, thought: false }
}

/// The tokenizers of these models, by byte-level merges.
pub static TOKENIZER: TokenizerSpec = TokenizerSpec {
    end_of_text: &[DEEPSEEK_END, "<|endoftext|>"],
    turn_end: &["<|user|>", "<|observation|>", DEEPSEEK_END],
    reply: &REPLIES,
    ..glm4::TOKENIZER
};

/// Marks of reasoning and function calls in GLM's replies.
static REPLIES: ReplySyntax = ReplySyntax { parse_calls: calls, ..glm4::REPLIES };

/// `NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>…`, or JSON. A value that is no JSON is a text.
fn calls(text: &str, tools: &[Json]) -> Vec<ToolCall> {
    let call = || {
        let (name, mut rest) = text.trim().split_once("<arg_key>")?;
        let mut arguments = Map::new();
        loop {
            let (key, behind) = rest.split_once("</arg_key>")?;
            let (value, behind) =
                behind.trim_start().strip_prefix("<arg_value>")?.split_once("</arg_value>")?;
            arguments.insert(key.trim().into(), digits::parse(value).unwrap_or_else(|_| value.into()));
            match behind.trim() {
                "" => break,
                more => rest = more.strip_prefix("<arg_key>")?,
            }
        }
        glm4::named_call(name, arguments)
    };
    call().unwrap_or_else(|| tool_calls::parse(text, tools))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::families::tool_calls::tests::{called, parts, words};

    #[test]
    fn replies_are_split_into_parts() {
        let call = called("weather", json!({"city": "Lima", "days": 2}));
        let arguments = "<arg_key>city</arg_key><arg_value>Lima</arg_value>\n<arg_key>days</arg_key><arg_value>2</arg_value>";
        let text = format!("I look.<tool_call>weather\n{arguments}</tool_call>");
        let large = calls("f<arg_key>n</arg_key><arg_value>12345678901234567890123</arg_value>", &[]);
        assert_eq!(digits::digits(&large[0].arguments["n"]), Some("12345678901234567890123"));
        for size in [1, 3, 10_000] {
            assert_eq!(parts(&REPLIES, false, &text, size), [words("I look."), call.clone()]);
        }
    }
}
