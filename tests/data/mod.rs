//! Datasets and the built-in chat template: loss tokens, errors word by word, and samples that are dropped.

use std::path::Path;

mod any;
mod bounded;
mod cache;
mod containers;
mod context;
mod families;
mod foreign;
mod go;
mod preference;
mod read;
mod refused;
mod shapes;
mod template;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rullama_train::base::Gguf;
use rullama_train::data::batch::{IGNORE, Sample};
use rullama_train::data::dataset::{Dataset, DatasetError, Options, Overlong, files, parse, split};
use rullama_train::data::template::{
    BuiltIn, Conversation, Message, Rendered, Role, Template, TemplateError, TrainOn, render_prompt,
};
use rullama_train::data::tokenizer::{Special, Tokenizer};
use rullama_train::families::gemma4;

static SMALL: Template = Template::BuiltIn(&gemma4::template::SMALL);
const OPTIONS: Options = Options { max_seq_len: 1024, ..Options::new(&SMALL) };
const PAIR: &str = r#"{"prompt": "Hi", "completion": "Hello!"}"#;

fn tokenizer() -> Tokenizer {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf");
    Tokenizer::from_gguf(&Gguf::open(Path::new(path)).expect("the tiny model")).expect("its tokenizer")
}

fn message(role: &str, content: &str) -> Message {
    Message::new(Role::from_name(role).expect("a role"), content)
}

fn render_sample(
    tokenizer: &Tokenizer,
    layout: &'static BuiltIn,
    messages: &[Message],
    trained_from: usize,
) -> Result<Rendered, TemplateError> {
    let conversation = Conversation { trained_from, ..Conversation::new(messages.to_vec()) };
    Template::BuiltIn(layout).render(tokenizer, &conversation, TrainOn::Assistant)
}

/// The loss tokens as text, one string per run of labelled tokens.
fn trained(tokenizer: &Tokenizer, ids: &[u32], labels: &[i32]) -> Vec<String> {
    assert_eq!(ids.len(), labels.len());
    for (t, (&id, &label)) in ids.iter().zip(labels).enumerate() {
        assert!(label == IGNORE || label == id as i32, "label {label} under token {id} at {t}");
    }
    let runs = labels.chunk_by(|a, b| (*a == IGNORE) == (*b == IGNORE)).filter(|run| run[0] != IGNORE);
    runs.map(|run| tokenizer.decode(&run.iter().map(|&l| l as u32).collect::<Vec<_>>())).collect()
}

fn read(text: &str) -> Result<Dataset, DatasetError> {
    parse(text.as_bytes(), "datasets/x.jsonl", &tokenizer(), &OPTIONS)
}

fn one(text: &str) -> Sample {
    let mut samples = read(text).unwrap_or_else(|error| panic!("{text}: {error}")).samples;
    assert_eq!(samples.len(), 1, "{text}");
    samples.remove(0)
}

#[track_caller]
fn refused(text: &str, expected: &str) {
    refused_with(OPTIONS, text, expected);
}

#[track_caller]
fn refused_with(options: Options, text: &str, expected: &str) {
    match parse(text.as_bytes(), "x.jsonl", &tokenizer(), &options) {
        Ok(dataset) => panic!("{text}\n  was accepted: {dataset:?}\n  expected {expected}"),
        Err(error) => assert_eq!(error.to_string(), expected, "{text}"),
    }
}

#[test]
fn a_conversation_has_hugging_face_ids_and_trains_the_answers() {
    let messages = [
        message("system", " Be brief. "),
        message("user", "Hello  there\n"),
        message("assistant", "\nHi!\n\nBye."),
    ];
    let tokenizer = tokenizer();
    let Rendered { ids, labels, .. } =
        render_sample(&tokenizer, &gemma4::template::SMALL, &messages, 0).expect("sound");
    // The row of fixtures/tokenizer/tiny-gemma4.json with this text.
    let expected = [
        2, 5, 407, 266, 685, 394, 1785, 330, 331, 278, 6, 266, 5, 403, 266, 649, 352, 1149, 6, 266, 5, 408,
        266, 650, 268, 266, 266, 1754, 278, 6, 266,
    ];
    assert_eq!(ids, expected);
    // All but "Hi!\n\nBye.<turn|>", the 7 tokens before the last.
    let mut expected_labels = [IGNORE; 31];
    expected_labels[23..30].copy_from_slice(&[650, 268, 266, 266, 1754, 278, 6]);
    assert_eq!(labels, expected_labels);
}

#[test]
fn every_answer_is_trained_and_nothing_else() {
    let tokenizer = tokenizer();
    let turns = ["user", "assistant", "user", "assistant"];
    let messages: Vec<Message> =
        turns.iter().zip(["a", "b c", "d", "e"]).map(|(r, c)| message(r, c)).collect();
    let text = |layout, from| {
        let Rendered { ids, labels, .. } = render_sample(&tokenizer, layout, &messages, from).expect("sound");
        (tokenizer.decode(&ids), trained(&tokenizer, &ids, &labels))
    };
    let small = "<bos><|turn>user\na<turn|>\n<|turn>model\nb c<turn|>\n<|turn>user\nd<turn|>\n<|turn>model\ne<turn|>\n";
    assert_eq!(
        text(&gemma4::template::SMALL, 0),
        (small.to_owned(), vec!["b c<turn|>".into(), "e<turn|>".into()])
    );
    assert_eq!(text(&gemma4::template::SMALL, 2), (small.to_owned(), vec!["e<turn|>".into()]));
    // Large models answer after an empty thought channel; earlier turns have none.
    let large = small.replace("model\ne", "model\n<|channel>thought\n<channel|>e");
    assert_eq!(text(&gemma4::template::LARGE, 0), (large, vec!["b c<turn|>".into(), "e<turn|>".into()]));
}

#[test]
fn the_prompt_is_the_text_before_the_answer() {
    let tokenizer = tokenizer();
    let mut messages = vec![message("developer", "Be brief."), message("user", " Hi ")];
    for (layout, head) in
        [(&gemma4::template::SMALL, ""), (&gemma4::template::LARGE, "<|channel>thought\n<channel|>")]
    {
        let prompt = render_prompt(&tokenizer, layout, &messages).expect("sound");
        let expected =
            format!("<bos><|turn>system\nBe brief.<turn|>\n<|turn>user\nHi<turn|>\n<|turn>model\n{head}");
        assert_eq!(tokenizer.decode(&prompt), expected);
        messages.push(message("assistant", "Hello!"));
        let Rendered { ids, labels, .. } = render_sample(&tokenizer, layout, &messages, 0).expect("sound");
        assert_eq!(ids[..prompt.len()], prompt, "a sample starts with the prompt of its answer");
        assert_eq!(labels.iter().position(|&l| l != IGNORE), Some(prompt.len()));
        messages.pop();
    }
    let last = TemplateError::Last { found: Role::System, expected: Role::User };
    assert_eq!(render_prompt(&tokenizer, &gemma4::template::SMALL, &messages[..1]), Err(last));
    assert_eq!(render_prompt(&tokenizer, &gemma4::template::SMALL, &[]), Err(TemplateError::Empty));
}

#[test]
fn pieces_have_the_ids_of_the_whole_text() {
    let parts = [
        "", " ", "\n", "\n\n", "\t", "\r\n", "\u{85}", "\u{a0}", "\u{2028}", "\u{1c}", "\u{feff}", "model",
        "user\n", "Hello", "a", "7", ".", "ß", "漢", "🦙", "\0", "<", "|>", "<0x0A>", "▁",
    ];
    let tokenizer = tokenizer();
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let mut pick = |n: usize| rng.next_u64() as usize % n;
    for round in 0..3000 {
        let mut content = || -> String { (0..pick(7)).map(|_| parts[pick(parts.len())]).collect() };
        let messages = [message("user", &content()), message("assistant", &content())];
        let layout = if round % 2 == 0 { &gemma4::template::SMALL } else { &gemma4::template::LARGE };
        let found = render_sample(&tokenizer, layout, &messages, 0).expect("sound").ids;
        let text = Template::BuiltIn(layout)
            .text(&tokenizer, &Conversation::new(messages.to_vec()), false)
            .expect("sound");
        assert_eq!(found, tokenizer.encode(&text, Special::Parse), "{text:?}");
    }
}

#[test]
fn prompt_and_completion_are_a_conversation() {
    let expected = one(
        r#"{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}"#,
    );
    assert_eq!(expected.origin, "datasets/x.jsonl line 1");
    assert_eq!(one(PAIR), expected);
    let lists = r#"{"prompt": [{"role": "user", "content": "Hi"}],
        "completion": [{"role": "assistant", "content": "Hello!"}]}"#;
    assert_eq!(one(&lists.replace('\n', "")), expected);
    // An answer inside the prompt has no loss.
    let lists = r#"{"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"}], "completion": [{"role": "assistant", "content": "d"}]}"#;
    let Sample { ids, labels, .. } = one(&lists.replace('\n', ""));
    assert_eq!(trained(&tokenizer(), &ids, &labels), ["d<turn|>"]);
}

#[test]
fn input_ids_are_used_unchanged() {
    let sample = one(r#"{"input_ids": [2, 5, 2047], "labels": [-100, 0, 2047]}"#);
    assert_eq!((sample.ids, sample.labels), (vec![2, 5, 2047], vec![IGNORE, 0, 2047]));
    let sample = one(r#"{"input_ids": [2, 5, 9], "attention_mask": [1, 1, 1]}"#);
    assert_eq!(sample.labels, [2, 5, 9]);
    assert_eq!(sample.loss_tokens(), 2, "all but the first");
}

#[test]
fn shapes_mix_and_lines_may_end_in_any_way() {
    let ids = r#"{"input_ids": [2, 5]}"#;
    let messages =
        r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#;
    let plain = read(&format!("{PAIR}\n{ids}\n{messages}")).expect("sound");
    assert_eq!(plain.samples.len(), 3);
    assert_eq!(plain.samples[2].origin, "datasets/x.jsonl line 3");
    assert_eq!(plain.notices, []);
    assert_eq!(read(&format!("\u{feff}{PAIR}\r\n{ids}\r\n{messages}\r\n\r\n")), Ok(plain));
    // `text` beside a complete shape is only an extra key.
    let both = one(&messages.replace("{\"messages", "{\"prompt\": \"a\", \"messages"));
    assert_eq!(both, one(messages));
}

#[test]
fn extra_keys_are_counted() {
    let extra = |keys: &str| PAIR.replace("{\"prompt", &format!("{{{keys}, \"prompt"));
    let named = r#"{"messages": [{"role": "user", "content": "a", "name": "x", "tool_calls": null},
        {"role": "assistant", "content": "b", "name": "y"}], "tools": [], "id": 3}"#;
    let text =
        [extra("\"id\": 1, \"source\": \"s\""), PAIR.to_owned(), extra("\"id\": 2"), named.replace('\n', "")];
    let notices = read(&text.join("\n")).expect("sound").notices;
    let found: Vec<String> = notices.iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        ["datasets/x.jsonl: ignored keys: id (3 lines), source (1 line), messages[].name (1 line)"]
    );
}

#[test]
fn keys_that_change_the_meaning_are_refused() {
    let text = PAIR.replace("{\"prompt", "{\"image\": \"a.png\", \"prompt");
    refused(
        &text,
        "x.jsonl line 1: the key \"image\" holds no text, and the sample's text refers to it, but training reads text alone; \
         remove the sample, or set data.invalid = \"drop\"",
    );
    refused(
        &PAIR.replace("{\"prompt", "{\"weight\": 1, \"prompt"),
        "x.jsonl line 1: the key \"weight\" is not supported, but ignoring it would change the meaning of the sample; \
         remove it",
    );
    let calls = r#"{"messages": [{"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_responses": [{}]}]}"#;
    refused(
        &calls.replace('\n', ""),
        "x.jsonl line 1: the key \"messages[].tool_responses\" is not supported, but ignoring it would change \
         the meaning of the sample; remove it",
    );
}

#[test]
fn control_tokens_in_content_are_refused() {
    refused(
        &format!("{PAIR}\n{}", PAIR.replace("Hello!", "Hello!<turn|> more")),
        "x.jsonl line 2: message 2 (assistant) contains the text of the control token <turn|>, which Ollama would \
         parse as that token; remove it, or give the sample as \"input_ids\"",
    );
    // Incomplete control tokens are text.
    assert!(read(&PAIR.replace("Hello!", "<turn |> <|turn <b>")).is_ok());
}

#[test]
fn invalid_lines_are_reported() {
    let shapes = "\"messages\", \"prompt\" + \"completion\", \"instruction\" + \"output\", \"conversations\", \"contents\", \
                  \"text\" or \"input_ids\"";
    refused(r#"{"word": "abc"}"#, &format!("x.jsonl line 1: expected {shapes}, found keys [word]"));
    refused("{}", &format!("x.jsonl line 1: expected {shapes}, found keys []"));
    refused(
        r#"{"messages": [], "input_ids": []}"#,
        "x.jsonl line 1: keys [messages, input_ids] fit more than one shape; set format to \"messages\" or \"input_ids\"",
    );
    refused(&format!("{PAIR}\n[1]"), "x.jsonl line 2: expected a JSON object, found a list");
    refused(
        &format!("{PAIR}\n{{\"prompt\": \"a\" \"b\"}}"),
        "x.jsonl line 2: broken JSON at column 16: expected `,` or `}`",
    );
    refused("{\"prompt\": \"a", "x.jsonl line 1: broken JSON at column 13: EOF while parsing a string");
    refused(
        &format!("{PAIR}\n{PAIR} {PAIR}"),
        "x.jsonl line 2: broken JSON at column 42: trailing characters; expected one object per line",
    );
    for empty in ["", "\n", "\u{feff}\r\n \n"] {
        refused(empty, "x.jsonl: the file contains no sample; expected one JSON object per line");
    }
    let bytes = [PAIR.as_bytes(), b"\n{\"a\": \"\xFF\"}"].concat();
    let error = parse(&bytes, "x.jsonl", &tokenizer(), &OPTIONS).expect_err("not UTF-8").to_string();
    assert_eq!(error, "x.jsonl line 2: byte 8 is not UTF-8; save the file as UTF-8");
    let nested = format!("{{\"messages\": {}", "[".repeat(100_000));
    assert!(read(&nested).is_err(), "deep nesting is an error, not an overflow");
}

#[test]
fn invalid_conversations_are_reported() {
    let messages = |list: &str| format!("{{\"messages\": {list}}}");
    let turn = |role: &str| format!("{{\"role\": \"{role}\", \"content\": \"a\"}}");
    let roles = |roles: &[&str]| {
        messages(&format!("[{}]", roles.iter().map(|role| turn(role)).collect::<Vec<_>>().join(",")))
    };
    refused(
        &messages("\"a\""),
        "x.jsonl line 1: expected \"messages\" to be a list of messages, found a string",
    );
    refused(
        &messages("[]"),
        "x.jsonl line 1: the conversation has no message; expected at least one from the user and one from the \
         assistant",
    );
    refused(
        &messages("[\"a\"]"),
        "x.jsonl line 1: expected message 1 to be an object with \"role\" and \"content\", found a string",
    );
    refused(
        &messages("[{\"from\": \"human\", \"value\": \"a\"}]"),
        "x.jsonl line 1: the last message is from the user, expected one from the assistant",
    );
    refused(
        &messages(&format!("[{}, {{\"role\": \"assistant\", \"content\": null}}]", turn("user"))),
        "x.jsonl line 1: expected message 2: \"content\" to be a string, found null",
    );
    refused(
        &roles(&["user", "pirate"]),
        "x.jsonl line 1: message 2: unknown role \"pirate\"; expected \"system\", \"developer\", \"user\", \"assistant\" or \
         \"tool\" (or \"human\", \"model\", \"bot\")",
    );
    refused(
        &roles(&["user", "assistant", "user"]),
        "x.jsonl line 1: the last message is from the user, expected one from the assistant",
    );
    refused(
        &roles(&["system", "user", "user", "assistant"]),
        "x.jsonl line 1: messages 2 and 3 are both from the user; expected turns that alternate; join the two",
    );
    refused(
        &roles(&["user", "system", "assistant"]),
        "x.jsonl line 1: message 2 is from the system; expected a system message only as the first one",
    );
    refused(
        r#"{"prompt": "a", "completion": ["b"]}"#,
        "x.jsonl line 1: expected message 2 to be an object with \"role\" and \"content\", found a string",
    );
    refused(
        r#"{"prompt": 3, "completion": "b"}"#,
        "x.jsonl line 1: expected \"prompt\" to be a string or a list of messages, found a number",
    );
}

#[test]
fn invalid_ids_are_reported() {
    refused(
        r#"{"input_ids": []}"#,
        "x.jsonl line 1: \"input_ids\" is empty; expected at least two token ids",
    );
    for id in ["2048", "-1", "1.0", "\"a\"", "1e30"] {
        let text = format!("{{\"input_ids\": [2, {id}]}}");
        let found = if id == "1e30" { "1e+30" } else { id };
        refused(
            &text,
            &format!("x.jsonl line 1: \"input_ids\"[1] is {found}, expected a token id from 0 to 2047"),
        );
    }
    refused(
        r#"{"input_ids": [2, 5], "labels": [-100]}"#,
        "x.jsonl line 1: \"labels\" has 1 values for 2 \"input_ids\"; expected one per id",
    );
    refused(
        r#"{"input_ids": [2, 5], "labels": [-100, -1]}"#,
        "x.jsonl line 1: \"labels\"[1] is -1, expected a token id from 0 to 2047, or -100 for no loss",
    );
    refused(
        r#"{"input_ids": [2, 5], "attention_mask": [0, 1]}"#,
        "x.jsonl line 1: \"attention_mask\" hides tokens; expected only 1: remove the padding",
    );
    // No token precedes the first label, so it is never predicted.
    for text in [r#"{"input_ids": [2, 5], "labels": [2, -100]}"#, r#"{"input_ids": [2]}"#] {
        let length = if text.contains("labels") { 2 } else { 1 };
        refused(
            text,
            &format!(
                "x.jsonl line 1: none of the {length} tokens is a loss token; expected at least one label other than \
                 -100 after the first"
            ),
        );
    }
}

#[test]
fn overlong_samples_are_refused_dropped_or_truncated() {
    let text = "{\"input_ids\": [2, 5, 7, 8]}\n{\"input_ids\": [2, 5]}\n{\"input_ids\": [2, 5, 7, 8, 9]}";
    let options = |overlong| Options { max_seq_len: 3, overlong, ..OPTIONS };
    let read = |overlong| parse(text.as_bytes(), "x.jsonl", &tokenizer(), &options(overlong)).expect("sound");
    refused_with(
        options(Overlong::Error),
        text,
        "x.jsonl: 2 of 3 samples are longer than max_seq_len = 3: line 1 has 4 tokens, the longest has 5; raise \
         data.max_seq_len, or set data.overlong to \"drop\" or \"truncate\"",
    );
    let ids = |dataset: &Dataset| dataset.samples.iter().map(|sample| sample.ids.clone()).collect::<Vec<_>>();
    let dropped = read(Overlong::Drop);
    assert_eq!(ids(&dropped), [[2, 5]]);
    assert_eq!(dropped.samples[0].origin, "x.jsonl line 2");
    assert_eq!(
        dropped.notices[0].to_string(),
        "x.jsonl: dropped 2 of 3 samples, longer than max_seq_len = 3 tokens (the longest has 5)"
    );
    let cut = read(Overlong::Truncate);
    assert_eq!(ids(&cut), [vec![2, 5, 7], vec![2, 5], vec![2, 5, 7]]);
    assert!(cut.samples.iter().all(|sample| sample.labels.len() == sample.ids.len()));
    assert!(
        cut.notices[0].to_string().starts_with("x.jsonl: truncated 2 of 3 samples"),
        "{}",
        cut.notices[0]
    );

    refused_with(
        Options { max_seq_len: 1, overlong: Overlong::Drop, ..OPTIONS },
        text,
        "x.jsonl: all 3 samples are longer than max_seq_len = 1 and were dropped; raise data.max_seq_len, or set \
         data.overlong to \"truncate\"",
    );
    refused_with(
        options(Overlong::Truncate),
        r#"{"input_ids": [2, 5, 7, 8], "labels": [-100, -100, -100, 8]}"#,
        "x.jsonl line 1: the sample has 4 tokens, but no loss token is left after truncation to max_seq_len = 3; raise \
         max_seq_len, or set overlong to \"drop\"",
    );
    assert!(parse(text.as_bytes(), "x.jsonl", &tokenizer(), &Options { max_seq_len: 5, ..OPTIONS }).is_ok());
}

#[test]
fn files_are_read_and_missing_ones_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.jsonl");
    let missing = files::read(&path, &tokenizer(), &OPTIONS, None).expect_err("no such file").to_string();
    assert!(missing.contains("x.jsonl: cannot be read: "), "{missing}");
    std::fs::write(&path, PAIR).expect("written");
    let samples = files::read(&path, &tokenizer(), &OPTIONS, None).expect("sound").samples;
    assert_eq!(samples[0].origin, format!("{} line 1", path.display()));
}

#[test]
fn the_validation_part_is_random_and_repeatable() {
    let samples = |n: u32| -> Vec<Sample> {
        (0..n)
            .map(|id| Sample { ids: vec![id], labels: vec![0], origin: String::new(), ..Sample::default() })
            .collect()
    };
    let ids = |part: &[Sample]| part.iter().map(|sample| sample.ids[0]).collect::<Vec<_>>();
    let cut = |n, val_size, seed| {
        let split = split(samples(n), val_size, seed).expect("sound");
        (ids(&split.train), ids(&split.validation))
    };
    // 0.07 · 100 is 7.000000000000001 in binary; rounding makes it 7.
    for (n, val_size, expected) in
        [(100, 0.05, 5), (100, 0.07, 7), (10, 0.01, 1), (100, 1.0, 1), (100, 99.0, 99)]
    {
        let (train, validation) = cut(n, val_size, 1);
        assert_eq!(validation.len(), expected, "{val_size} of {n}");
        assert!(train.is_sorted() && validation.is_sorted(), "both keep the order of the file");
        let mut all = [train, validation].concat();
        all.sort_unstable();
        assert_eq!(all, (0..n).collect::<Vec<_>>());
    }
    assert_eq!(cut(100, 0.1, 1), cut(100, 0.1, 1));
    assert_ne!(cut(100, 0.1, 1), cut(100, 0.1, 2));
    for (n, val_size) in [
        (10, 0.0),
        (10, -0.1),
        (10, f64::NAN),
        (10, 1.5),
        (10, 10.0),
        (10, f64::INFINITY),
        (1, 0.5),
        (0, 0.5),
    ] {
        let error = split(samples(n), val_size, 1).expect_err("impossible").to_string();
        assert!(error.contains(&format!("val_size = {val_size} cannot be cut from {n} sample")), "{error}");
    }
}

#[test]
fn duplicates_are_counted_and_reported() {
    let sample = |ids: &[u32], label: i32, n: usize| Sample {
        ids: ids.to_vec(),
        labels: vec![label; ids.len()],
        origin: format!("x line {n}"),
        ..Sample::default()
    };
    let train = [
        sample(&[2, 3], 3, 1),
        sample(&[2, 4], 4, 2),
        sample(&[2, 3], 3, 3),
        sample(&[2, 3], 5, 4),
        sample(&[2, 4], 4, 5),
    ];
    let validation = [sample(&[2, 9], 9, 6), sample(&[2, 4], 4, 7)];
    let words = |validation: &[Sample]| -> Vec<String> {
        rullama_train::data::dataset::duplicates(&train, validation).iter().map(ToString::to_string).collect()
    };
    let repeated = "data.train: 2 of 5 samples are exact duplicates; the first, x line 3, equals x line 1";
    assert_eq!(words(&[]), [repeated]);
    let leaked = "validation: 1 of 2 validation samples are also training samples, so the validation loss is too low; \
                  the first, x line 7, equals x line 2";
    assert_eq!(words(&validation), [repeated, leaked]);
    assert!(rullama_train::data::dataset::duplicates(&train[..2], &validation[..1]).is_empty());
}
