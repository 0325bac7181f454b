//! Ministral 3, Devstral and the newer files of Mistral Small: Llama's layers with YaRN, and queries that grow with their position.

use serde_json::Value as Json;

use super::metadata::Keys;
use super::uniform::{self, Traits};
use super::{AdapterNames, Family, SamplingDefaults, Shape, chat_layout, llama, tool_calls};
use crate::base::config::{Config, QueryGrowth, Yarn};
use crate::base::gguf::value::Value;
use crate::base::{Error, Gguf};
use crate::data::digits;
use crate::data::template::{BuiltIn, Conversation, InOllama, Piece, Pieces, ReplySyntax, Role, ToolCall};
use crate::data::tokenizer::{END_NAMES, Kind, Special, TokenizerSpec};

const TRAITS: Traits = Traits { name: "mistral3", ..llama::TRAITS };

/// Ministral 3 3B, 8B and 14B, Devstral, Mistral Small.
pub static FAMILY: Family = Family {
    name: TRAITS.name,
    title: "Mistral 3",
    example: "ministral-3:8b",
    config,
    tokenizer: &TOKENIZER,
    template: |_| &CHAT,
    sampling: SamplingDefaults { temperature: 0.15, top_k: 0, top_p: 1.0 },
    authors_token: "",
    names: &NAMES,
    shapes: &SHAPES,
    small_shape: Shape { family: TRAITS.name, name: "mistral3-tiny", ..llama::SMALL },
    metadata,
    tensors: |shape| uniform::tensors(shape, &TRAITS),
};

/// Names of modules in adapter files. mlx-lm's `models/mistral3.py` has the text model inside another one.
static NAMES: AdapterNames = AdapterNames { mlx_layers: "language_model.model.layers", ..uniform::NAMES };

/// The shape of the model in `gguf`; an error where the keys make no sense. Source: llama.cpp `src/models/mistral3.cpp`, and Ollama's names
/// of two keys.
fn config(gguf: &Gguf) -> Result<Config, Error> {
    let mut config = uniform::config(gguf, &TRAITS)?;
    let keys = Keys { gguf, architecture: TRAITS.name };
    let one_of = |names: [&'static str; 2]| {
        let found = names.into_iter().find(|name| gguf.value(&keys.key(name)).is_some());
        found.map_or(Ok(None), |name| keys.positive_or(name, 0.0))
    };
    let slope = one_of(["rope.scaling.yarn_log_multiplier", "rope.scaling.mscale_all_dim"])?;
    let beta = one_of(["attention.temperature_scale", "rope.scaling_beta"])?;
    let original = match keys.integer("rope.scaling.original_context_length")? {
        Some(_) => keys.size("rope.scaling.original_context_length", u32::MAX)?,
        None => config.context_length,
    };
    for layer in &mut config.layers {
        if let (Some(yarn), Some(slope)) = (&mut layer.yarn, slope) {
            yarn.scale = Yarn::usual_scale(yarn.factor) / Yarn::scale_by(yarn.factor, slope.into());
        }
        layer.query_growth = beta.map(|beta| QueryGrowth { beta: beta.into(), original_context: original });
    }
    Ok(config)
}

/// Source: transformers' configurations of Mistral's checkpoints.
const SHAPES: [Shape; 1] = [Shape {
    family: TRAITS.name,
    name: "ministral-3-8b",
    layers: 34,
    width: 4096,
    ffn_width: 14_336,
    heads: 32,
    kv_heads: [8, 8],
    tied: false,
    vocab: 131_072,
    context_length: 262_144,
    ..uniform::DENSE
}];

/// Metadata of a file of this shape.
fn metadata(shape: &Shape) -> Vec<(String, Value)> {
    let mut metadata = uniform::metadata(shape, 1e6);
    let mut add = |key: &str, value: Value| metadata.push((format!("{}.{key}", TRAITS.name), value));
    add("rope.scaling.type", Value::String("yarn".into()));
    add("rope.scaling.factor", Value::F32(16.0));
    add("rope.scaling.original_context_length", Value::U32(16_384));
    add("rope.scaling.yarn_log_multiplier", Value::F32(1.0));
    add("attention.temperature_scale", Value::F32(0.1));
    metadata
}

/// `<s>[SYSTEM_PROMPT]…[/SYSTEM_PROMPT][INST]question[/INST]answer</s>`.
pub static CHAT: BuiltIn = BuiltIn {
    family: TRAITS.name,
    variant: "Mistral",
    version: "mistral turns 1",
    tokens: &["<s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "</s>"],
    in_ollama: InOllama::Template(|| {
        "{{ range .Messages }}{{ if eq .Role \"system\" }}[SYSTEM_PROMPT]{{ .Content }}[/SYSTEM_PROMPT]\
         {{ else if eq .Role \"user\" }}[INST]{{ .Content }}[/INST]{{ else }}{{ .Content }}</s>{{ end }}{{ end }}"
            .to_owned()
    }),
    check: |conversation| chat_layout::check(conversation, false),
    pieces,
    answer_prompt: |_| None,
    hides_thoughts: |_| false,
    history: None,
};

fn pieces(conversation: &Conversation) -> Vec<Piece<'_>> {
    let mut out = Pieces::default();
    out.layout(None, "<s>");
    for (index, message) in conversation.messages.iter().enumerate() {
        let owner = Some(index);
        let (opening, closing) = match message.role {
            Role::System => ("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
            Role::Assistant => ("", "</s>"),
            _ => ("[INST]", "[/INST]"),
        };
        let written = message.role == Role::Assistant;
        if !opening.is_empty() {
            out.layout(owner, opening);
        }
        out.words(owner, &message.content, written);
        out.push(owner, closing, Special::Parse, written);
    }
    out.into_vec()
}

/// The tokenizer `tekken`, by byte-level merges, and Mistral's older one.
pub static TOKENIZER: TokenizerSpec = TokenizerSpec {
    models: &[("gpt2", Kind::ByteLevel, "llama.cpp and Ollama"), ("llama", Kind::Scores, "SentencePiece")],
    pre: "",
    bos: "",
    end_of_text: &["</s>"],
    required: &[],
    turn_end: &["</s>"],
    control: &["[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CALLS]", "[ARGS]"],
    end_names: END_NAMES,
    reply: &REPLIES,
};

/// Marks of reasoning and function calls in replies: `[TOOL_CALLS]NAME[ARGS]{…}`, or a list of calls behind the mark.
static REPLIES: ReplySyntax = ReplySyntax {
    thought: ("[THINK]", "[/THINK]"),
    thought_name: "",
    calls: &[("[TOOL_CALLS]", "")],
    headers: &[],
    bare_call: "",
    spaced: true,
    parse_calls: calls,
};

/// `NAME[ARGS]{…}`, several with the mark between them, or JSON.
fn calls(text: &str, tools: &[Json]) -> Vec<ToolCall> {
    if !text.contains("[ARGS]") {
        return tool_calls::parse(text, tools);
    }
    let call = |text: &str| {
        let (name, arguments) = text.split_once("[ARGS]")?;
        // Some versions write an id in front of the arguments.
        let name = name.split("[CALL_ID]").next().unwrap_or(name).trim();
        let Ok(Json::Object(arguments)) = digits::parse(arguments.trim()) else { return None };
        (!name.is_empty()).then(|| ToolCall { id: String::new(), name: name.to_owned(), arguments })
    };
    let all: Option<Vec<ToolCall>> = text.split("[TOOL_CALLS]").map(call).collect();
    all.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::data::template::Part;
    use crate::families::tool_calls::tests::{called, long, parts, thought, words};

    #[test]
    fn calls_stand_behind_their_mark() {
        let call = called("weather", json!({"city": "Lima"}));
        let json = "{\"city\": \"Lima\"}";
        for (text, expected) in [
            (format!("[TOOL_CALLS]weather[ARGS]{json}"), vec![call.clone()]),
            (
                format!("[TOOL_CALLS]weather[ARGS]{json}[TOOL_CALLS]weather[ARGS]{json}"),
                vec![call.clone(); 2],
            ),
            (format!("[TOOL_CALLS]weather[CALL_ID]a1[ARGS]{json}"), vec![call.clone()]),
            (format!("[TOOL_CALLS][{{\"name\": \"weather\", \"arguments\": {json}}}]"), vec![call.clone()]),
            (format!("I look.[TOOL_CALLS]weather[ARGS]{json}"), vec![words("I look."), call.clone()]),
            ("[THINK]Hm.[/THINK]Yes.".to_owned(), vec![thought("Hm."), words("Yes.")]),
            (
                "[TOOL_CALLS]pay[ARGS]{\"id\": 12345678901234567890123}".into(),
                vec![called("pay", long("12345678901234567890123"))],
            ),
            ("[TOOL_CALLS]weather[ARGS]Lima".into(), vec![words("[TOOL_CALLS]weather[ARGS]Lima")]),
        ] {
            for size in [1, 2, 3, 7, 1000] {
                let found: Vec<Part> = parts(&REPLIES, false, &text, size);
                assert_eq!(found, expected, "{text:?} in pieces of {size}");
            }
        }
    }
}
