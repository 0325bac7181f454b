//! GLM 4: Llama's layers with norms around the blocks. Rotary embedding turns half of each head, whose pairs lie side by side in transformers
//! too; gate and up are one matrix.

use serde_json::{Map, Value as Json};

use super::chat_layout;
use super::uniform::{self, Norms, Traits};
use super::{Family, SamplingDefaults, Shape, llama, tool_calls};
use crate::base::Module;
use crate::base::gguf::value::Value;
use crate::data::digits;
use crate::data::template::{BuiltIn, Conversation, InOllama, Piece, Pieces, ReplySyntax, Role, ToolCall};
use crate::data::tokenizer::{END_NAMES, Kind, Special, TokenizerSpec};

const TRAITS: Traits = Traits {
    name: "glm4",
    interleaved_elsewhere: true,
    turns_parts: true,
    norms: Norms::Around,
    fused: &[Module::FfnGateUp],
    ..llama::TRAITS
};

/// GLM 4 9B and 32B of April 2025, and GLM-Z1.
pub static FAMILY: Family = Family {
    name: TRAITS.name,
    title: "GLM 4",
    example: "hf.co/bartowski/THUDM_GLM-4-9B-0414-GGUF",
    config: |gguf| uniform::config(gguf, &TRAITS),
    tokenizer: &TOKENIZER,
    template: |_| &CHAT,
    sampling: SamplingDefaults { temperature: 0.6, top_k: 40, top_p: 0.95 },
    authors_token: "",
    names: &uniform::NAMES,
    shapes: &SHAPES,
    small_shape: Shape { family: TRAITS.name, name: "glm4-tiny", ..llama::SMALL },
    metadata,
    tensors: |shape| uniform::tensors(shape, &TRAITS),
};

/// Source: transformers' configurations of the checkpoints of Z.ai.
const SHAPES: [Shape; 2] = [
    Shape {
        family: TRAITS.name,
        name: "glm4-9b",
        layers: 40,
        width: 4096,
        ffn_width: 13_696,
        heads: 32,
        kv_heads: [2, 2],
        tied: false,
        vocab: 151_552,
        context_length: 32_768,
        ..uniform::DENSE
    },
    Shape {
        family: TRAITS.name,
        name: "glm4-32b",
        layers: 61,
        width: 6144,
        ffn_width: 23_040,
        heads: 48,
        kv_heads: [8, 8],
        tied: false,
        vocab: 151_552,
        context_length: 32_768,
        ..uniform::DENSE
    },
];

/// Metadata of a file of this shape.
fn metadata(shape: &Shape) -> Vec<(String, Value)> {
    let mut metadata = uniform::metadata(shape, 1e4);
    let turned = shape.head_sizes[1] / 2;
    metadata.push((format!("{}.rope.dimension_count", shape.family), Value::U32(turned as u32)));
    metadata
}

/// `[gMASK]<sop><|user|>\nQUESTION<|assistant|>\nANSWER<|user|>…`: the mark of the next question ends an answer, also the last.
pub static CHAT: BuiltIn = BuiltIn {
    family: TRAITS.name,
    variant: "GLM 4",
    version: "GLM 4 turns 1",
    tokens: &["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"],
    in_ollama: InOllama::Template(|| {
        let turn = "<|{{ .Role }}|>\n{{ .Content }}";
        format!("[gMASK]<sop>{{{{ range .Messages }}}}{turn}{{{{ end }}}}<|assistant|>\n")
    }),
    check: |conversation| chat_layout::check(conversation, false),
    pieces,
    answer_prompt: |_| {
        let text = "<|assistant|>\n".into();
        Some(Piece { text, special: Special::Parse, owner: None, written: false, thought: false })
    },
    hides_thoughts: |_| false,
    history: None,
};

fn pieces(conversation: &Conversation) -> Vec<Piece<'_>> {
    let mut out = Pieces::default();
    out.layout(None, "[gMASK]<sop>");
    let mut is_open = false;
    for (index, message) in conversation.messages.iter().enumerate() {
        let (owner, written) = (Some(index), message.role == Role::Assistant);
        match (message.role, is_open) {
            (Role::User, true) => out.layout(owner, "\n"),
            (role, _) => out.layout(owner, format!("<|{}|>\n", role.name())),
        }
        out.words(owner, &message.content, written);
        is_open = written;
        if written {
            out.push(owner, "<|user|>", Special::Parse, true);
        }
    }
    out.into_vec()
}

/// The tokenizer of GLM 4, by byte-level merges.
pub static TOKENIZER: TokenizerSpec = TokenizerSpec {
    models: &[("gpt2", Kind::ByteLevel, "llama.cpp")],
    pre: "",
    bos: "",
    end_of_text: &["<|endoftext|>"],
    required: &[],
    turn_end: &["<|user|>", "<|observation|>"],
    control: &["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"],
    end_names: END_NAMES,
    reply: &REPLIES,
};

/// Marks of reasoning and function calls in replies: a call is the function's name alone on the first line, and its arguments behind it.
pub(super) static REPLIES: ReplySyntax = ReplySyntax {
    thought: ("<think>", "</think>"),
    thought_name: "\n",
    calls: &[("<tool_call>", "</tool_call>")],
    headers: &[],
    bare_call: "",
    spaced: true,
    parse_calls: calls,
};

/// `NAME\n{…}`, or JSON.
fn calls(text: &str, tools: &[Json]) -> Vec<ToolCall> {
    let call = || {
        let (name, arguments) = text.trim().split_once('\n')?;
        let Ok(Json::Object(arguments)) = digits::parse(arguments.trim()) else { return None };
        named_call(name, arguments)
    };
    call().unwrap_or_else(|| tool_calls::parse(text, tools))
}

/// The call of the function `name`; `None` where that is no name.
pub(super) fn named_call(name: &str, arguments: Map<String, Json>) -> Option<Vec<ToolCall>> {
    let name = name.trim();
    let is_name = !name.is_empty() && !name.contains([' ', '{', '"']);
    is_name.then(|| vec![ToolCall { id: String::new(), name: name.to_owned(), arguments }])
}
