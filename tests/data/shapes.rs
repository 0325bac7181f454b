//! Every shape of sample, with the ids of Hugging Face's tokenizer and the labels of its loss tokens
//! (tests/fixtures/dataset/make.py), and the samples that are refused.

use std::path::Path;

use rullama_train::base::Gguf;
use rullama_train::data::dataset::{Format, Invalid, Options, Overlong, parse};
use rullama_train::data::template::TrainOn;
use rullama_train::data::tokenizer::{Tokenizer, TokenizerData};
use rullama_train::families::gemma4;
use serde_json::Value;

use super::{OPTIONS, one, refused, refused_with, tokenizer};

/// Tokens for tools, which the tiny vocabulary lacks; make.py adds the same ones.
const TOOL_TOKENS: [&str; 7] =
    ["<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", "<|\"|>"];

/// The tiny tokenizer with tokens for tools added.
pub fn with_tools() -> Tokenizer {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf");
    let gguf = Gguf::open(Path::new(path)).expect("the tiny model");
    let mut data = TokenizerData::from_gguf(&gguf).expect("its tokenizer");
    data.tokens.extend(TOOL_TOKENS.map(str::to_owned));
    data.token_types.extend([4; TOOL_TOKENS.len()]);
    Tokenizer::new(data, &gemma4::TOKENIZER).expect("sound")
}

#[test]
fn every_shape_has_hugging_face_ids_and_loss_where_the_assistant_writes() {
    let tokenizer = with_tools();
    let cases: Vec<Value> =
        serde_json::from_str(include_str!("../fixtures/dataset/shapes.json")).expect("the fixture is JSON");
    let mut shapes = Vec::new();
    for case in &cases {
        let name = &case["name"];
        let train_on: TrainOn = serde_json::from_value(case["train_on"].clone()).expect("a name");
        let options = Options { train_on, ..OPTIONS };
        let text = case["record"].to_string();
        let dataset =
            parse(text.as_bytes(), "x.jsonl", &tokenizer, &options).unwrap_or_else(|e| panic!("{name}: {e}"));
        let sample = &dataset.samples[0];
        let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).expect("ids");
        let labels: Vec<i32> = serde_json::from_value(case["labels"].clone()).expect("labels");
        let shown = |ids: &[u32]| tokenizer.decode(ids);
        assert_eq!(sample.ids, ids, "{name}:\n{}\n{}", shown(&sample.ids), shown(&ids));
        assert_eq!(sample.labels, labels, "{name}: {}", shown(&ids));
        shapes.push(dataset.found.shapes[0].0);
    }
    shapes.dedup();
    let expected = [
        Format::Messages,
        Format::PromptCompletion,
        Format::Alpaca,
        Format::Sharegpt,
        Format::Text,
        Format::InputIds,
    ];
    assert_eq!(shapes, expected, "sharegpt with roles is still conversations");
    assert_eq!(cases.len(), 27);
}

#[test]
fn a_format_accepts_only_its_own_shape() {
    let lines = [
        (
            Format::Messages,
            r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#,
        ),
        (Format::PromptCompletion, r#"{"prompt": "a", "completion": "b"}"#),
        (Format::Alpaca, r#"{"instruction": "a", "output": "b"}"#),
        (
            Format::Sharegpt,
            r#"{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}"#,
        ),
        (
            Format::Gemini,
            r#"{"contents": [{"role": "user", "parts": [{"text": "a"}]}, {"role": "model", "parts": [{"text": "b"}]}]}"#,
        ),
        (Format::Text, r#"{"text": "a"}"#),
        (Format::InputIds, r#"{"input_ids": [2, 5]}"#),
    ];
    assert_eq!(lines.map(|(format, _)| format), Format::SHAPES);
    let tokenizer = tokenizer();
    for (format, _) in lines {
        for (shape, text) in lines {
            let found = parse(text.as_bytes(), "x.jsonl", &tokenizer, &Options { format, ..OPTIONS });
            assert_eq!(found.is_ok(), format == shape, "{format:?} on {text}: {found:?}");
        }
    }
    refused_with(
        Options { format: Format::PromptCompletion, ..OPTIONS },
        lines[6].1,
        "x.jsonl line 1: expected \"prompt\" + \"completion\", found keys [input_ids]",
    );
}

#[test]
fn control_tokens_in_texts_are_parsed_and_reported() {
    let tokenizer = tokenizer();
    let text = r#"{"text": "<bos><|turn>user\nHi<turn|>\n"}"#.to_owned() + "\n" + r#"{"text": "Hi."}"#;
    let dataset = parse(text.as_bytes(), "x.jsonl", &tokenizer, &OPTIONS).expect("sound");
    let notices: Vec<String> = dataset.notices.iter().map(ToString::to_string).collect();
    assert_eq!(notices, ["x.jsonl: control tokens in texts (1 of them) are parsed as control tokens"]);
    refused(r#"{"text": ""}"#, "x.jsonl line 1: \"text\" is empty; expected a document");
    refused(r#"{"text": 3}"#, "x.jsonl line 1: expected \"text\" to be a string, found a number");
}

#[test]
fn reasoning_that_templates_drop_is_reported() {
    let text = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning": "t"},
        {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]}"#;
    let text = text.replace('\n', "");
    let sample = one(&text);
    assert_eq!(
        tokenizer().decode(&sample.ids),
        "<bos><|turn>user\na<turn|>\n<|turn>model\nb<turn|>\n<|turn>user\nc<turn|>\n<|turn>model\nd<turn|>\n"
    );
    let dataset = parse(text.as_bytes(), "x.jsonl", &tokenizer(), &OPTIONS).expect("sound");
    assert!(
        dataset.notices[0].to_string().starts_with("x.jsonl: the chat template drops or changes"),
        "{dataset:?}"
    );
}

#[test]
fn unusable_records_are_dropped_and_counted_on_request() {
    let sound = r#"{"prompt": "Hi", "completion": "Hello!"}"#;
    let text =
        format!("{sound}\n{{\"a\": 1}}\n{{\"prompt\": \"x\"\n{sound}\n{{\"input_ids\": [2, 3, 4, 5]}}");
    let drop = Options { invalid: Invalid::Drop, ..OPTIONS };
    let read = |options: &Options| parse(text.as_bytes(), "x.jsonl", &tokenizer(), options);
    let dataset = read(&drop).expect("sound");
    assert_eq!(dataset.samples.len(), 3);
    assert_eq!(dataset.samples[1].origin, "x.jsonl line 4");
    assert_eq!(
        dataset.notices[0].to_string(),
        "x.jsonl: dropped 2 of 5 lines that cannot be used; the first, line 2: expected \"messages\", \"prompt\" + \
         \"completion\", \"instruction\" + \"output\", \"conversations\", \"contents\", \"text\" or \"input_ids\", found keys [a]"
    );
    // Overlong samples have their own setting.
    let error = read(&Options { max_seq_len: 3, ..drop }).expect_err("too long").to_string();
    assert!(error.starts_with("x.jsonl: 3 of 3 samples are longer than "), "{error}");
    let long = Options { max_seq_len: 3, overlong: Overlong::Drop, ..drop };
    let error = read(&long).expect_err("nothing left").to_string();
    assert!(
        error.starts_with("x.jsonl: no line can be used; the first problem, in line 2: expected"),
        "{error}"
    );
}

#[test]
fn invalid_shapes_are_reported() {
    let messages = |list: &str| format!("{{\"messages\": {list}}}");
    refused(
        r#"{"instruction": "a", "output": null}"#,
        "x.jsonl line 1: expected \"output\" to be a string, found null",
    );
    refused(
        r#"{"instruction": "a", "output": "b", "history": [["c"]]}"#,
        "x.jsonl line 1: expected \"history\" to be a list of [question, answer], found a list",
    );
    refused(
        r#"{"conversations": [{"from": "human"}]}"#,
        "x.jsonl line 1: turn 1: expected keys \"from\" and \"value\", found [from]",
    );
    refused(
        r#"{"conversations": [{"from": "cow", "value": "moo"}]}"#,
        "x.jsonl line 1: turn 1: unknown \"from\": \"cow\"; expected \"system\", \"human\", \"gpt\", \"function_call\" or \
         \"observation\"",
    );
    refused(
        r#"{"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": "f(x)"}]}"#,
        "x.jsonl line 1: message 2: a function call must be JSON; expected {\"name\": \"…\", \"arguments\": {…}}",
    );
    refused(
        &messages(
            r#"[{"role": "user", "content": "a", "weight": 0.5}, {"role": "assistant", "content": "b"}]"#,
        ),
        "x.jsonl line 1: message 1: its loss flag is 0.5; expected \"weight\": 0 or 1, or \"train\": true or \
         false, and no other flag that differs",
    );
    refused(
        &messages(
            r#"[{"role": "user", "content": [{"type": "image"}]}, {"role": "assistant", "content": "b"}]"#,
        ),
        "x.jsonl line 1: message 1: its \"content\" has a part of type \"image\"; expected \"text\", \"reasoning\" or \"tool_call\"",
    );
    refused(
        &messages(
            r#"[{"role": "user", "content": "a", "tool_calls": [{"function": {"name": "f"}}]}, {"role": "assistant", "content": "b"}]"#,
        ),
        "x.jsonl line 1: message 1 is from the user; messages of this role cannot have \"tool_calls\"",
    );
    refused(
        &messages(
            r#"[{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}, {"role": "assistant", "content": "c"}]"#,
        ),
        "x.jsonl line 1: message 2 is from a tool; expected it after an assistant message with \"tool_calls\", or after \
         another tool's message",
    );
    refused(
        &messages(
            r#"[{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "x=1"}}]}]"#,
        ),
        "x.jsonl line 1: message 2: a function call must have an object as \"arguments\"; expected {\"name\": \"…\", \
         \"arguments\": {…}}",
    );
    let tools = |tools: &str| format!(r#"{{"prompt": "a", "completion": "b", "tools": {tools}}}"#);
    refused(
        &tools(r#""f""#),
        "x.jsonl line 1: expected \"tools\" to be a list of functions, or such a list as JSON in a string, found a string",
    );
    refused(
        &tools(r#"[{"type": "function"}]"#),
        "x.jsonl line 1: expected each of \"tools\" to be {\"type\": \"function\", \"function\": {\"name\": …}}, found an object",
    );
    refused(
        &tools(r#"[{"name": "f", "description": "a <turn|> b"}]"#),
        "x.jsonl line 1: \"tools\" contains the text of the control token <turn|>, which Ollama would parse as that token; \
         remove it, or give the sample as \"input_ids\"",
    );
}
