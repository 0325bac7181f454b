//! Samples as other programs write them: LLaMA-Factory, ms-swift, axolotl, and tables whose columns were merged.

use rullama_train::data::compare::{Side, Supervision};
use rullama_train::data::dataset::{Dataset, Options, parse};
use rullama_train::data::template::{Jinja, Template};
use rullama_train::data::tokenizer::Tokenizer;
use rullama_train::families::qwen3;

use super::shapes::with_tools;
use super::{OPTIONS, one, refused, tokenizer, trained};
use crate::common_families::byte_level;
use crate::common_template::DAY;

const QWEN3: &str = include_str!("../fixtures/template/families/qwen3.jinja");

fn read(options: &Options, text: &str) -> Result<Dataset, String> {
    parse(text.as_bytes(), "x.jsonl", &with_tools(), options).map_err(|error| error.to_string())
}

fn notices(dataset: &Dataset) -> Vec<String> {
    dataset.notices.iter().map(ToString::to_string).collect()
}

fn pairs() -> Options<'static> {
    Options { supervision: Supervision::Pairs, ..OPTIONS }
}

fn ratings() -> Options<'static> {
    Options { supervision: Supervision::Ratings, ..OPTIONS }
}

/// The text of every sample with its side and its trained parts.
fn texts(options: &Options, record: &str) -> Vec<(Side, String, Vec<String>)> {
    let tokenizer = with_tools();
    let dataset = read(options, record).unwrap_or_else(|error| panic!("{record}: {error}"));
    let one = |s: &rullama_train::data::batch::Sample| {
        (s.side, tokenizer.decode(&s.ids), trained(&tokenizer, &s.ids, &s.labels))
    };
    dataset.samples.iter().map(one).collect()
}

/// Both samples of a pair, as text.
fn pair(record: &str) -> [String; 2] {
    let found = texts(&pairs(), record);
    assert_eq!((found[0].0, found[1].0), (Side::Chosen, Side::Rejected), "{record}");
    [found[0].1.clone(), found[1].1.clone()]
}

#[track_caller]
fn fails(options: &Options, record: &str, message: &str) {
    let error = read(options, record).expect_err(record);
    assert!(error.contains(message), "{record}\nfound    {error}\nexpected {message}");
}

#[test]
fn the_question_beside_a_pair_is_its_prompt_under_any_name() {
    let expected =
        pair(r#"{"system": "Be brief.", "prompt": "Hi", "chosen": "Hello!", "rejected": "What?"}"#);
    assert!(expected[0].contains("Be brief.") && expected[0].contains("user\nHi<turn|>"), "{expected:?}");
    for record in [
        r#"{"system": "Be brief.", "question": "Hi", "chosen": "Hello!", "rejected": "What?"}"#,
        r#"{"system": "Be brief.", "instruction": "Hi", "input": "", "chosen": "Hello!", "rejected": "What?"}"#,
        r#"{"system": "Be brief.", "input": "Hi", "chosen": "Hello!", "rejected": "What?"}"#,
        r#"{"system": "Be brief.", "query": "Hi", "response": "Hello!", "rejected_response": "What?"}"#,
        r#"{"system": "Be brief.", "instruction": "Hi", "chosen_response": "Hello!", "rejected_response": "What?"}"#,
        r#"{"system": "Be brief.", "messages": [{"role": "user", "content": "Hi"}], "chosen": "Hello!", "rejected": "What?"}"#,
        r#"{"system": "Be brief.", "conversations": [{"from": "human", "value": "Hi"}], "chosen": "Hello!", "rejected": "What?"}"#,
        r#"{"contents": [{"role": "user", "parts": [{"text": "Hi"}]}], "systemInstruction": {"parts": [{"text": "Be brief."}]}, "chosen": "Hello!", "rejected": "What?"}"#,
        r#"{"conversations": [{"from": "system", "value": "Be brief."}, {"from": "human", "value": "Hi"}], "chosen": {"from": "gpt", "value": "Hello!"}, "rejected": {"from": "gpt", "value": "What?"}}"#,
        r#"{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], "chosen": {"role": "assistant", "content": "Hello!"}, "rejected": {"role": "assistant", "content": "What?"}}"#,
        r#"{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}], "rejected_response": "What?"}"#,
        r#"{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}], "rejected_messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "What?"}]}"#,
        r#"{"chosen_messages": [{"role": "system", "content": [{"type": "text", "value": "Be brief."}], "loss_weight": 0.0}, {"role": "user", "content": "Hi", "loss_weight": 0.0}, {"role": "assistant", "content": "Hello!", "loss_weight": 1.0}], "rejected_messages": [{"role": "system", "content": "Be brief.", "loss_weight": 0.0}, {"role": "user", "content": "Hi", "loss_weight": 0.0}, {"role": "assistant", "content": "What?", "loss_weight": 1.0}]}"#,
        r#"{"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], "chosen": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}], "rejected": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "What?"}]}"#,
    ] {
        assert_eq!(pair(record), expected, "{record}");
    }
    let input = pair(
        r#"{"instruction": "Name it.", "input": "cow", "history": [["a", "b"]], "chosen": "A cow.", "rejected": "A cat."}"#,
    );
    assert!(
        input[0].contains("user\na<turn|>\n<|turn>model\nb<turn|>\n<|turn>user\nName it.\ncow<turn|>"),
        "{input:?}"
    );
}

#[test]
fn a_prompt_under_a_common_name_is_reported_and_a_doubtful_one_refused() {
    let question = read(&pairs(), r#"{"question": "Hi", "chosen": "Hello!", "rejected": "What?"}"#);
    assert_eq!(
        notices(&question.expect("a pair")),
        ["x.jsonl: \"question\" is read as the prompt of the answers (1 sample)"]
    );
    let bare = |more: &str| format!(r#"{{{more}, "chosen": "Hello there!", "rejected": "Hello what?"}}"#);
    fails(
        &pairs(),
        &bare(r#""user_message": "Hi""#),
        "\"chosen\" and \"rejected\" are bare texts, and \"user_message\" beside them may be their prompt; say so with \
         data.fields = { prompt = \"user_message\" }, or remove it if each text is a whole document",
    );
    fails(&pairs(), &bare(r#""system": "Be brief.""#), "and \"system\" beside them may be their prompt");
    fails(
        &pairs(),
        &bare(r#""question": "Hi", "context": "A sea.""#),
        "each of [question, context] could be the prompt of the answers, or a part of it; say which is with data.fields = \
         { prompt = \"question\" }, or join them into one \"prompt\"",
    );
    fails(
        &pairs(),
        &bare(r#""instruction": "Answer.", "question": "Hi""#),
        "each of [instruction, question]",
    );
    fails(
        &pairs(),
        r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "chosen": "c", "rejected": "d"}"#,
        "the prompt ends with a message of the assistant, and the answer beside it is another one",
    );
    // Documents keep what is no prompt.
    let document =
        read(&pairs(), &bare(r#""prompt_id": "a81", "source": "web", "score": 3"#)).expect("documents");
    assert_eq!(
        notices(&document),
        ["x.jsonl: ignored keys: prompt_id (1 line), source (1 line), score (1 line)"]
    );
}

#[test]
fn a_rating_beside_any_shape_is_refused_as_an_example_and_read_as_a_rating() {
    let expected = texts(&ratings(), r#"{"prompt": "Hi", "completion": "What?", "label": false}"#);
    assert_eq!(expected[0].0, Side::Undesirable);
    for record in [
        r#"{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "What?"}], "label": false}"#,
        r#"{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "What?"}], "label": false}"#,
        r#"{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "What?"}], "kto_tag": false}"#,
        r#"{"contents": [{"role": "user", "parts": [{"text": "Hi"}]}, {"role": "model", "parts": [{"text": "What?"}]}], "label": false}"#,
        r#"{"instruction": "Hi", "input": "", "output": "What?", "kto_tag": false}"#,
        r#"{"question": "Hi", "answer": "What?", "label": "False"}"#,
        r#"{"question": "Hi", "completion": "What?", "label": false}"#,
        r#"{"messages": [{"role": "user", "content": "Hi"}], "completion": "What?", "label": false}"#,
        r#"{"completion": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "What?"}], "label": false}"#,
    ] {
        assert_eq!(texts(&ratings(), record), expected, "{record}");
        fails(
            &OPTIONS,
            record,
            "of true or false: preference data; to train on it, set train.objective = \"kto\"",
        );
    }
    // The last answer is the rated one, whatever flags earlier ones have.
    let two = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 1},
        {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}], "label": true}"#;
    assert_eq!(texts(&ratings(), &two.replace('\n', ""))[0].2, ["d<turn|>"]);
    // Numbers may be classes.
    let class = r#"{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "What?"}], "label": 0}"#;
    let found = notices(&read(&OPTIONS, class).expect("an example"));
    assert!(found[0].starts_with("x.jsonl: \"label\" is ignored (1 sample); if it rates"), "{found:?}");
    fails(
        &ratings(),
        r#"{"text": "Hi", "label": true}"#,
        "needs \"prompt\", \"completion\" and \"label\" (or \"messages\"",
    );
}

#[test]
fn a_format_that_is_asked_for_ignores_the_pair_beside_it() {
    let record = r#"{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}], "chosen": "a", "rejected": "b"}"#;
    fails(&OPTIONS, record, "set train.objective = \"dpo\"");
    let format = rullama_train::data::dataset::Format::Messages;
    let found = read(&Options { format, ..OPTIONS }, record).expect("an example");
    assert_eq!(notices(&found), ["x.jsonl: ignored keys: chosen (1 line), rejected (1 line)"]);
    // Null columns compare nothing.
    one(r#"{"prompt": "Hi", "completion": "Hello!", "chosen": null, "rejected": null, "label": null}"#);
}

#[test]
fn parts_are_joined_as_they_are() {
    let parts = |texts: &[&str], key: &str| {
        let part =
            |text: &&str| format!(r#"{{"type": "text", "{key}": {}}}"#, serde_json::Value::from(*text));
        format!("[{}]", texts.iter().map(part).collect::<Vec<_>>().join(", "))
    };
    let record = |question: &str, answer: &str| {
        format!(
            r#"{{"messages": [{{"role": "user", "content": {question}}}, {{"role": "assistant", "content": {answer}}}]}}"#
        )
    };
    for (texts, key) in [
        (["Hello ", "old friend"], "text"),
        (["    x = 1\n", "    y = 2"], "text"),
        (["one ", "two"], "value"),
    ] {
        let whole = serde_json::Value::from(texts.concat()).to_string();
        let found = one(&record(&parts(&texts, key), &parts(&texts, key)));
        assert_eq!(found, one(&record(&whole, &whole)), "{texts:?}");
    }
    let reasoning = r#"[{"type": "reasoning", "value": "One and one."}, {"type": "text", "value": "Two."}]"#;
    let plain = r#"{"messages": [{"role": "user", "content": "2?"}, {"role": "assistant", "content": "Two.", "reasoning_content": "One and one."}]}"#;
    assert_eq!(one(&record("\"2?\"", reasoning)), one(plain));
    let call = r#"[{"type": "text", "value": "Wait."}, {"type": "tool_call", "value": "{\"name\": \"f\", \"arguments\": {\"x\": \"a\"}}"}]"#;
    let found = texts(&OPTIONS, &record("\"Go\"", call));
    assert!(found[0].1.contains("call:f{x:<|\"|>a<|\"|>}") && found[0].1.contains("Wait."), "{found:?}");
    refused(
        &record("\"2?\"", r#"[{"type": "text", "image": "x"}]"#),
        "x.jsonl line 1: message 2: a part of type \"text\" has no \"text\"; found the keys [type, image]",
    );
    fails(
        &OPTIONS,
        &record("\"2?\"", r#"[{"type": "text", "text": "Two."}, {"type": "thinking", "thinking": "Hm."}]"#),
        "not in this order",
    );
    let unknown = read(
        &OPTIONS,
        &record("\"2?\"", r#"[{"type": "text", "text": "Two.", "cache_control": {"type": "ephemeral"}}]"#),
    );
    assert_eq!(
        notices(&unknown.expect("sound")),
        ["x.jsonl: ignored keys: messages[].content[].cache_control (1 line)"]
    );
    let image = r#"[{"type": "text", "text": "Two.", "image": "x.png"}]"#;
    fails(&OPTIONS, &record("\"2?\"", image), "the key \"messages[].content[].image\" holds no text");
}

#[test]
fn loss_flags_of_other_programs_exclude_messages() {
    let record = |flag: &str| {
        format!(
            r#"{{"messages": [{{"role": "user", "content": "a"}}, {{"role": "assistant", "content": "b", {flag}}}, {{"role": "user", "content": "c"}}, {{"role": "assistant", "content": "d"}}]}}"#
        )
    };
    let tokenizer = tokenizer();
    for flag in [
        "\"weight\": 0",
        "\"train\": false",
        "\"loss\": false",
        "\"loss_weight\": 0.0",
        "\"training\": false",
        "\"loss\": 0, \"train\": false",
    ] {
        let sample = one(&record(flag));
        assert_eq!(trained(&tokenizer, &sample.ids, &sample.labels), ["d<turn|>"], "{flag}");
    }
    fails(&OPTIONS, &record("\"loss\": true, \"train\": false"), "its loss flag is true");
    fails(&OPTIONS, &record("\"loss\": 0.5"), "its loss flag is 0.5; expected \"weight\": 0 or 1");
    fails(
        &OPTIONS,
        &record("\"train_detail\": [{\"begin_offset\": 0}]"),
        "the key \"messages[].train_detail\" is not supported",
    );
    let turn = r#"{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b", "loss": false}, {"from": "human", "value": "c"}, {"from": "gpt", "value": "d"}]}"#;
    let sample = one(turn);
    assert_eq!(trained(&tokenizer, &sample.ids, &sample.labels), ["d<turn|>"]);
    let parts = |first: &str, second: &str| {
        format!(
            r#"{{"messages": [{{"role": "user", "content": "a"}}, {{"role": "assistant", "content": [{{"type": "text", "text": "b ", {first}}}, {{"type": "text", "text": "c", {second}}}]}}, {{"role": "user", "content": "d"}}, {{"role": "assistant", "content": "e"}}]}}"#
        )
    };
    let sample = one(&parts("\"train\": false", "\"weight\": 0"));
    assert_eq!(trained(&tokenizer, &sample.ids, &sample.labels), ["e<turn|>"]);
    fails(
        &OPTIONS,
        &parts("\"train\": false", "\"train\": true"),
        "message 2: only some of its parts have loss",
    );
}

#[test]
fn turns_that_are_one_message_are_joined() {
    let record =
        |turns: &str| format!(r#"{{"conversations": [{{"from": "human", "value": "Go"}}, {turns}]}}"#);
    let call = |x: &str| {
        format!(
            r#"{{"from": "function_call", "value": "{{\"name\": \"f\", \"arguments\": {{\"x\": \"{x}\"}}}}"}}"#
        )
    };
    let (says, result) =
        (r#"{"from": "gpt", "value": "Wait."}"#, r#"{"from": "observation", "value": "done"}"#);
    let done = r#"{"from": "gpt", "value": "Done."}"#;
    let text = |record: &str| texts(&OPTIONS, record)[0].1.clone();
    let message = |content: &str, calls: &str, results: &str| {
        format!(
            r#"{{"messages": [{{"role": "user", "content": "Go"}}, {{"role": "assistant", "content": "{content}", "tool_calls": [{calls}]}}, {results}, {{"role": "assistant", "content": "Done."}}]}}"#
        )
    };
    let called = |x: &str| format!(r#"{{"function": {{"name": "f", "arguments": {{"x": "{x}"}}}}}}"#);
    let tool = r#"{"role": "tool", "content": "done"}"#;
    assert_eq!(
        text(&record(&format!("{says}, {}, {result}, {done}", call("a")))),
        text(&message("Wait.", &called("a"), tool))
    );
    assert_eq!(
        text(&record(&format!("{}, {}, {result}, {result}, {done}", call("a"), call("b")))),
        text(&message("", &format!("{}, {}", called("a"), called("b")), &format!("{tool}, {tool}")))
    );
    fails(
        &OPTIONS,
        &record(&format!("{}, {done}", call("a"))),
        "turn 3: an answer follows a \"function_call\" without its result",
    );
}

#[test]
fn parts_of_functions_may_be_json_in_strings() {
    let record = |tools: &str| {
        format!(
            r#"{{"tools": {tools}, "messages": [{{"role": "user", "content": "a"}}, {{"role": "assistant", "content": "b"}}]}}"#
        )
    };
    let parameters = serde_json::json!({"type": "object", "properties": {"pier": {"type": "integer", "enum": [1, 2]}}, "required": ["pier"]});
    let function =
        serde_json::json!({"name": "moor", "description": "Moor a boat", "parameters": parameters});
    let tool = serde_json::json!({"type": "function", "function": function});
    let expected = texts(&OPTIONS, &record(&format!("[{tool}]")));
    assert!(expected[0].1.contains("pier"), "{expected:?}");
    let text = |value: &serde_json::Value| serde_json::Value::from(value.to_string());
    let (mut strings, mut nested, mut inner, mut schema) =
        (tool.clone(), tool.clone(), tool.clone(), function.clone());
    strings["function"]["parameters"] = text(&parameters);
    nested["function"]["parameters"]["properties"] = text(&parameters["properties"]);
    inner["function"]["parameters"]["properties"]["pier"] = text(&parameters["properties"]["pier"]);
    inner["function"]["parameters"]["required"] = "[\"pier\"]".into();
    let fields = schema.as_object_mut().expect("an object");
    let parameters = fields.shift_remove("parameters").expect("parameters");
    fields.insert("input_schema".into(), parameters);
    let function = serde_json::json!({"type": "function", "function": text(&function)});
    for tools in [
        format!("[{strings}]"),
        format!("[{nested}]"),
        format!("[{inner}]"),
        format!("[{function}]"),
        format!("[{}]", text(&tool)),
        format!("[{schema}]"),
        tool.to_string(),
        text(&serde_json::json!([strings])).to_string(),
    ] {
        assert_eq!(texts(&OPTIONS, &record(&tools)), expected, "{tools}");
    }
    fails(
        &OPTIONS,
        &record(r#"[{"name": "moor", "parameters": "pier: integer"}]"#),
        "expected \"parameters\" of the function \"moor\" to be an object, or one as JSON in a string, found a string",
    );
}

/// The text of a sample with Qwen 3's template.
fn qwen(record: &str) -> String {
    let tokenizer = Tokenizer::new(byte_level("qwen2"), &qwen3::TOKENIZER).expect("sound");
    let template = Template::Jinja(Box::new(Jinja::new(QWEN3, DAY).expect("sound")));
    let options = Options::new(&template);
    let dataset =
        parse(record.as_bytes(), "x.jsonl", &tokenizer, &options).unwrap_or_else(|error| panic!("{error}"));
    tokenizer.decode(&dataset.samples[0].ids)
}

#[test]
fn functions_and_arguments_stay_as_they_are_written() {
    let record = |arguments: &str| {
        format!(
            r#"{{"tools": [{{"type": "function", "function": {{"name": "moor", "parameters": {{"type": "object", "properties": {{"pier": {{"type": "integer", "maximum": 18446744073709551617}}}}}}}}}}], "messages": [{{"role": "user", "content": "Go"}}, {{"role": "assistant", "content": "", "tool_calls": [{{"function": {{"name": "moor", "arguments": {arguments}}}}}]}}]}}"#
        )
    };
    let arguments = r#"{"a": 12345678901234567890123, "b": [-9223372036854775809, 340282366920938463463374607431768211456000], "c": 1.5, "d": 1e+22, "e": 7}"#;
    let text = qwen(&record(arguments));
    assert!(text.contains(&format!("{{\"name\": \"moor\", \"arguments\": {arguments}}}")), "{text}");
    assert!(text.contains("{\"type\": \"integer\", \"maximum\": 18446744073709551617}"), "{text}");
    assert!(!text.contains("description"), "{text}");
    assert_eq!(qwen(&record(&serde_json::Value::from(arguments).to_string())), text);
    // Llama's, Gemini's and Anthropic's names, which became `{}`.
    for name in ["parameters", "args", "input"] {
        assert_eq!(qwen(&record(arguments).replace("\"arguments\"", &format!("\"{name}\""))), text, "{name}");
    }
    let other = record(arguments).replace("\"arguments\"", "\"kwargs\"");
    fails(&OPTIONS, &other, "a function call has no \"arguments\", but an object as \"kwargs\"; expected");
    let built_in = texts(&OPTIONS, &record(r#"{"a": 12345678901234567890123}"#));
    assert!(built_in[0].1.contains("call:moor{a:12345678901234567890123}"), "{built_in:?}");
    fails(
        &OPTIONS,
        r#"{"prompt": 12345678901234567890123, "completion": "b"}"#,
        "expected \"prompt\" to be a string or a list of messages, found a number",
    );
}

#[test]
fn nulls_of_merged_columns_are_absent() {
    let record = |padding: &str, schema: &str| {
        format!(
            r#"{{"tools": [{{"type": "function", "function": {{"name": "f", "parameters": {{"type": "object", "properties": {{"x": {{"type": "string"}}{schema}}}}}}}}}], "messages": [{{"role": "user", "content": "Go"}}, {{"role": "assistant", "content": null, "tool_calls": [{{"function": {{"name": "f", "arguments": {{"x": "a"{padding}}}}}}}]}}]}}"#
        )
    };
    let padded = record(r#", "y": null"#, r#", "y": null"#);
    assert_eq!(qwen(&padded), qwen(&record("", "")));
    assert_eq!(
        notices(&read(&OPTIONS, &padded).expect("sound"))[0],
        "x.jsonl: nulls in declared functions, and in calls under the same names, are left out, as tables write them for absent keys \
         (1 sample)"
    );
    // A null that no declaration has too is a value, as for transformers.
    let kept = record(r#", "y": null"#, "");
    assert!(qwen(&kept).contains(r#""arguments": {"x": "a", "y": null}"#));
    let found = notices(&read(&OPTIONS, &kept).expect("sound"));
    assert!(
        found[0].starts_with("x.jsonl: calls or results of 1 sample have nulls, which are trained as values"),
        "{found:?}"
    );
}

#[test]
fn a_system_message_beside_messages_is_the_first_one() {
    let expected = one(
        r#"{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#,
    );
    let messages = r#"[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]"#;
    for record in [
        format!(r#"{{"system": "Be brief.", "messages": {messages}}}"#),
        format!(r#"{{"system": [{{"type": "text", "text": "Be brief."}}], "messages": {messages}}}"#),
        format!(
            r#"{{"system": "Be brief.", "messages": {}}}"#,
            messages.replacen('[', r#"[{"role": "system", "content": "Be brief."}, "#, 1)
        ),
    ] {
        assert_eq!(one(&record), expected, "{record}");
    }
    let other = format!(
        r#"{{"system": "Ramble.", "messages": {}}}"#,
        messages.replacen('[', r#"[{"role": "system", "content": "Be brief."}, "#, 1)
    );
    let found = read(&OPTIONS, &other).expect("sound");
    assert_eq!(found.samples[0].ids, expected.ids);
    assert_eq!(notices(&found), ["x.jsonl: ignored keys: system (1 line)"]);
}

#[test]
fn words_of_pythons_json_are_null() {
    let record =
        r#"{"prompt": "NaN", "completion": "say \"NaN\", NaN", "score": NaN, "other": [-Infinity, 1]}"#;
    let plain = r#"{"prompt": "NaN", "completion": "say \"NaN\", NaN"}"#;
    for text in [record.to_owned(), format!("[{record}]"), format!("{{\"data\": [{record}]}}")] {
        let found = read(&OPTIONS, &text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(found.samples[0].ids, one(plain).ids, "{text}");
        assert_eq!(
            notices(&found)[0],
            "x.jsonl: NaN and Infinity, which JSON lacks, are read as null (2 values)"
        );
    }
    fails(
        &OPTIONS,
        &format!("{{\"0\": {plain},\n \"1\": {plain}}}"),
        "the file is an object with a record under each key, such as \"0\"; expected a list of the records: python -c",
    );
}
