//! Samples as people have them: tables, plain text, JSON in every layout, other names of keys and roles; and what is refused or
//! warned about before training.

use std::sync::LazyLock;

use rullama_train::data::batch::IGNORE;
use rullama_train::data::dataset::{
    Container, Dataset, Field, Format, Invalid, Options, Overlong, files, parse,
};

use rullama_train::data::tokenizer::Tokenizer;

use super::{OPTIONS, PAIR, one, tokenizer};

fn read_with(options: &Options, name: &str, bytes: &[u8]) -> Result<Dataset, String> {
    static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(tokenizer);
    parse(bytes, name, &TOKENIZER, options).map_err(|error| error.to_string())
}

#[track_caller]
fn read(name: &str, text: &str) -> Dataset {
    read_with(&OPTIONS, name, text.as_bytes()).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn refused(name: &str, bytes: &[u8], expected: &str) {
    refused_with(&OPTIONS, name, bytes, expected);
}

#[track_caller]
fn refused_with(options: &Options, name: &str, bytes: &[u8], expected: &str) {
    assert_eq!(read_with(options, name, bytes).map(|d| d.samples.len()), Err(expected.to_owned()));
}

fn notices(dataset: &Dataset) -> Vec<String> {
    dataset.notices.iter().map(ToString::to_string).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("in memory");
    encoder.finish().expect("in memory")
}

#[test]
fn tables_hold_the_same_samples_as_lines() {
    let expected = one(PAIR);
    for (name, text) in [
        ("a.csv", "prompt,completion\nHi,Hello!\n"),
        ("a.csv", "\u{feff}prompt;completion\r\nHi;Hello!\r\n\r\n"),
        ("a.csv", "\"prompt\",\"completion\"\n\"Hi\",\"Hello!\""),
        ("a.CSV", " prompt , completion \nHi,Hello!\n"),
        ("a.tsv", "prompt\tcompletion\nHi\tHello!\n"),
        ("a.tsv", "completion,prompt\nHello!,Hi\n"),
    ] {
        let found = read(name, text);
        assert_eq!(found.found.container, Container::Table, "{text}");
        assert_eq!(found.samples[0].ids, expected.ids, "{text}");
        assert_eq!(found.samples[0].origin, format!("{name} row 1"));
    }
    let packed = read_with(&OPTIONS, "a.csv.gz", &gzip(b"prompt,completion\nHi,Hello!\n")).expect("sound");
    assert_eq!(packed.samples[0].ids, expected.ids);
    // Quoted cells have line breaks, quotes and separators.
    let quoted = read("a.csv", "text\n\"a, b\nc \"\"d\"\"\"\n");
    assert!(tokenizer().decode(&quoted.samples[0].ids).contains("a, b\nc \"d\""));
    // pandas writes its index without a name; a cell may be JSON.
    let messages =
        r#"[{""role"": ""user"", ""content"": ""Hi""}, {""role"": ""assistant"", ""content"": ""Hello!""}]"#;
    let found = read("a.csv", &format!(",messages\n0,\"{messages}\"\n"));
    assert_eq!(found.samples[0].ids, expected.ids);
    assert_eq!(notices(&found), ["a.csv: ignored keys: column 1 (1 row)"]);
    // Many columns, whose number does not matter to the time per column.
    let many: String = (0..100_000).map(|n| format!(",x{n}")).collect();
    let found = read("a.csv", &format!("prompt,completion{many}\nHi,Hello!{many}\n"));
    let notice = notices(&found).concat();
    assert!(notice.starts_with("a.csv: ignored keys: x0 (1 row), x1 (1 row), "), "{notice}");
    assert!(notice.ends_with(", x19 (1 row), and 99980 more"), "{notice}");
    refused(
        "a.csv",
        format!("prompt,completion{many},x7\nHi\n").as_bytes(),
        "a.csv: cannot be read as a table: its header has the column \"x7\" twice",
    );

    refused("a.csv", b"prompt,completion\n", "a.csv: the table contains no row");
    refused(
        "a.csv",
        b"prompt,completion\na,b,c\n",
        "a.csv: cannot be read as a table: row 1 has 3 cells, but its header has 2; put a cell that has the separator or a line \
         break in it into \"quotes\"",
    );
    refused(
        "a.csv",
        b"prompt,prompt\na,b\n",
        "a.csv: cannot be read as a table: its header has the column \"prompt\" twice",
    );
    refused("a.csv", b"prompt,completion\na,\xFF\n", "a.csv: byte 21 is not UTF-8; save the file as UTF-8");
    refused(
        "a.csv",
        b"messages\n\"[{'role': 'user'}]\"\n",
        "a.csv row 1: expected \"messages\" to be a list of messages, found a string",
    );
    let error = read_with(&OPTIONS, "a.json", b"prompt,completion\nHi,Hello!\n").expect_err("no JSON");
    assert_eq!(
        error,
        "a.json line 1: broken JSON at column 1: expected value; expected a JSON object (tables and plain text need names that \
         end in .csv, .tsv, .txt or .md)"
    );
}

#[test]
fn a_text_file_is_one_text_cut_to_the_limit() {
    let tokenizer = tokenizer();
    let short = read("a.md", "\u{feff}\n# River\n\nA stone.\n\n");
    let expected = one(r##"{"text": "# River\n\nA stone."}"##);
    assert_eq!((&short.samples[0].ids, &short.samples[0].labels), (&expected.ids, &expected.labels));
    assert_eq!((short.found.container, short.samples[0].origin.as_str()), (Container::Text, "a.md part 1"));
    assert_eq!(short.notices, []);
    // Text that spells a control token stays text.
    let spelled = read("a.txt", "a <turn|> b");
    assert!(!spelled.samples[0].ids.contains(&tokenizer.turn_end()));

    let long: String = (0..400).map(|i| format!("Line {i} of the river.\n")).collect();
    let options = Options { max_seq_len: 100, ..OPTIONS };
    let found = read_with(&options, "a.txt", long.as_bytes()).expect("sound");
    let (mut text, n) = (String::new(), found.samples.len());
    for (index, sample) in found.samples.iter().enumerate() {
        assert!(sample.ids.len() <= 100 && Some(sample.ids[0]) == tokenizer.bos());
        assert_eq!(sample.loss_tokens(), sample.ids.len() - 1);
        let part = tokenizer.decode(&sample.ids[1..]);
        assert!(index + 1 == n || part.ends_with('\n'), "cut at the end of a line: {part:?}");
        text += &part;
    }
    assert_eq!(text, format!("{}<eos>", long.trim_end()));
    let tokens: usize = found.samples.iter().map(|sample| sample.ids.len()).sum();
    assert_eq!(
        notices(&found),
        [format!(
            "a.txt: the text ({tokens} tokens) was cut into {n} parts of at most max_seq_len = 100 tokens, at line ends where possible"
        )]
    );
    // Blocks that are tokenized apart give the tokens of the whole text.
    let large = long.repeat(20);
    let whole = Options { max_seq_len: usize::MAX, ..OPTIONS };
    let parts = read_with(&whole, "a.txt", large.as_bytes()).expect("sound");
    let text = serde_json::json!({ "text": large.trim_end() }).to_string();
    assert_eq!(
        parts.samples[0].ids,
        read_with(&whole, "a.jsonl", text.as_bytes()).expect("sound").samples[0].ids
    );

    refused("a.txt", b" \n", "a.txt: the file contains no text");
    // JSON Lines under the name of a text are read as JSON Lines.
    assert_eq!(read("a.txt", &format!("{PAIR}\n{PAIR}\n")).found.container, Container::Lines);
}

#[test]
fn json_is_read_in_every_layout() {
    let expected = one(PAIR).ids;
    let pretty = "{\n  \"prompt\": \"Hi\",\n  \"completion\": \"Hello!\"\n}\n";
    for (text, container, count) in [
        (pretty.to_owned(), Container::Objects, 1),
        (format!("{pretty}\n{pretty}"), Container::Objects, 2),
        (format!("{PAIR} {PAIR}{PAIR}"), Container::Objects, 3),
        (format!("{{\"data\": [{PAIR}]}}"), Container::Array, 1),
        (format!("{{\n\"data\": [\n{PAIR},\n{PAIR}\n]\n}}\n"), Container::Array, 2),
        (format!("{PAIR}\n\n \r\n{PAIR}\n"), Container::Lines, 2),
        (PAIR.to_owned(), Container::Lines, 1),
    ] {
        let found = read("a.json", &text);
        assert_eq!((found.found.container, found.samples.len()), (container, count), "{text}");
        assert!(found.samples.iter().all(|sample| sample.ids == expected), "{text}");
    }
    assert_eq!(read("a.jsonl", &format!("{PAIR}\n\n{PAIR}")).samples[1].origin, "a.jsonl line 3");
    let wrapped = read("a.json", &format!("{{\"version\": 2, \"data\": [{PAIR}]}}"));
    assert_eq!(notices(&wrapped), ["a.json: ignored keys: version (1 item)"]);
    refused(
        "a.json",
        format!("{pretty}{{\"prompt\": \"a\",\n \"completion\" \"b\"}}").as_bytes(),
        "a.json: broken JSON at line 6, column 15: expected `:`; expected objects",
    );
    refused("a.json", b"{\"data\": []}", "a.json: the JSON array contains no item");
}

#[test]
fn keys_and_roles_have_other_names() {
    let expected = one(PAIR).ids;
    for (keys, named) in [
        (r#"{"question": "Hi", "answer": "Hello!"}"#, "\"question\" and \"answer\""),
        (r#"{"input": "Hi", "output": "Hello!"}"#, "\"input\" and \"output\""),
    ] {
        let found = read("a.jsonl", keys);
        assert_eq!(found.samples[0].ids, expected);
        assert_eq!(
            notices(&found),
            [format!("a.jsonl: {named} are read as prompt and completion (1 sample)")]
        );
    }
    // With a context, the pair is only half of the sample.
    refused(
        "a.jsonl",
        br#"{"question": "Hi", "context": "c", "answer": "Hello!"}"#,
        "a.jsonl line 1: expected \"messages\", \"prompt\" + \"completion\", \"instruction\" + \"output\", \"conversations\", \
         \"contents\", \"text\" or \"input_ids\", found keys [question, context, answer]; set data.fields to say which is which, \
         such as { prompt = \"question\", completion = \"answer\" }",
    );
    let fields: Vec<Field> = vec![("prompt".into(), "q".into()), ("completion".into(), "a".into())];
    let options = Options { fields: &fields, ..OPTIONS };
    let found = read_with(&options, "a.csv", b"q,a,text\nHi,Hello!,x\n").expect("sound");
    assert_eq!((&found.samples[0].ids, found.found.shapes[0].0), (&expected, Format::PromptCompletion));
    assert_eq!(notices(&found), ["a.csv: ignored keys: text (not in data.fields) (1 row)"]);
    refused_with(
        &options,
        "a.csv",
        b"q,b\nHi,Hello!\n",
        "a.csv row 1: data.fields finds \"completion\" under \"a\", but the record has the keys [q, b]",
    );

    for (human, model) in [("human", "bot"), ("user", "model")] {
        let text = format!(
            "{{\"messages\": [{{\"role\": \"{human}\", \"content\": \"Hi\"}}, {{\"role\": \"{model}\", \"content\": \"Hello!\"}}]}}"
        );
        assert_eq!(one(&text).ids, expected);
    }
    let gemini = r#"{"systemInstruction": {"parts": [{"text": "Be brief."}]}, "contents": [{"role": "user", "parts": [{"text": "Hi"}]},
        {"role": "model", "parts": [{"text": "Hel"}, {"text": "lo!"}]}]}"#;
    let system = r#"{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"}]}"#;
    assert_eq!(read("a.json", gemini).samples[0].ids, read("a.json", system).samples[0].ids);
    refused(
        "a.json",
        br#"{"contents": [{"role": "user", "parts": [{"inlineData": {}}]}]}"#,
        "a.json line 1: message 1: its \"content\" has a part of type \"inlineData\"; expected \"text\", \"reasoning\" or \"tool_call\"",
    );
}

#[test]
fn a_system_message_is_added_to_conversations_without_one() {
    let options = Options { system: Some("Be brief."), ..OPTIONS };
    let own = r#"{"prompt": "Hi", "completion": "Hello!", "system": "Be brief."}"#;
    let expected = one(own);
    let found = read_with(&options, "a.jsonl", PAIR.as_bytes()).expect("sound");
    assert_eq!((&found.samples[0].ids, &found.samples[0].labels), (&expected.ids, &expected.labels));
    assert_eq!(found.notices, []);
    let mixed = format!("{own}\n{{\"text\": \"a\"}}\n{PAIR}");
    let found = read_with(&options, "a.jsonl", mixed.as_bytes()).expect("sound");
    assert_eq!(
        notices(&found),
        [
            "a.jsonl: data.system was not added to 1 sample with a system message of its own and 1 sample that is no conversation"
        ]
    );
}

#[test]
fn preferences_and_files_of_other_kinds_are_refused() {
    let words = |objective: &str| {
        format!(
            "preference data; to train on it, set train.objective = \"{objective}\" (see docs/preference.md); to imitate the good \
             answers, keep only them, as \"prompt\" and \"completion\""
        )
    };
    refused(
        "a.jsonl",
        br#"{"prompt": "Hi", "chosen": "a", "rejected": "b"}"#,
        &format!("a.jsonl line 1: the record has \"chosen\" and \"rejected\": {}", words("dpo")),
    );
    refused(
        "a.jsonl",
        br#"{"prompt": "Hi", "completion": "a", "label": false}"#,
        &format!(
            "a.jsonl line 1: the record has \"completion\" with a \"label\" of true or false: {}",
            words("kto")
        ),
    );
    let kinds: [(&[u8], &str); 6] = [
        (b"PK\x03\x04....", "a ZIP archive, which is not read; unpack it"),
        (b"PK\x03\x04....xl/workbook.xml", "an Excel file, which is not read; save the sheet as CSV"),
        (b"PK\x03\x04....word/document.xml", "a Word document, which is not read; save its text as .txt"),
        (
            b"\xd0\xcf\x11\xe0\xa1",
            "an old Word or Excel file, which is not read; save its text as .txt, or the sheet as CSV",
        ),
        (b"\x89PNG\r\n", "a picture, which is not read; samples are text: type what is in it"),
        (b"\xff\xd8\xff\xe0", "a picture, which is not read; samples are text: type what is in it"),
    ];
    for (bytes, said) in kinds {
        refused("a.csv", bytes, &format!("a.csv: the file is {said}"));
    }
    let utf16: Vec<u8> = "\u{feff}{\"text\": \"a\"}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    for bytes in [&utf16[..], &utf16[2..]] {
        refused(
            "a.jsonl",
            bytes,
            "a.jsonl: the file is UTF-16, as PowerShell's > and Notepad's \"Unicode\" write it; save it as UTF-8 (PowerShell: \
             Out-File -Encoding utf8)",
        );
    }
}

#[test]
fn folders_hold_texts_or_records_and_other_files_are_skipped() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    let write = |name: &str, text: &str| {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, text).expect("written");
    };
    let names = |name: &str| {
        let (files, notice) = files::expand(&root.join(name)).expect("sound");
        let name =
            |path: &std::path::PathBuf| path.file_name().expect("a name").to_string_lossy().into_owned();
        (files.iter().map(name).collect::<Vec<_>>(), notice.map(|notice| notice.what))
    };
    use rullama_train::data::dataset::What::Skipped;
    ["notes/a.txt", "notes/b.md", "notes/README.md"].iter().for_each(|name| write(name, "A stone."));
    assert_eq!(
        names("notes"),
        (vec!["a.txt".into(), "b.md".into()], Some(Skipped(vec!["README.md".into()])))
    );
    ["data/a.csv", "data/b.jsonl", "data/notes.txt", "data/package.json"]
        .iter()
        .for_each(|name| write(name, PAIR));
    let skipped = Skipped(vec!["notes.txt".into(), "package.json".into()]);
    assert_eq!(names("data"), (vec!["a.csv".into(), "b.jsonl".into()], Some(skipped)));
    [
        "saved/dataset_info.json",
        "saved/state.json",
        "saved/data-00000-of-00001.arrow",
        "dict/dataset_dict.json",
    ]
    .iter()
    .for_each(|name| write(name, "{}"));
    for (name, split) in [("saved", ""), ("dict", "['train']")] {
        let shown = root.join(name).display().to_string();
        assert_eq!(
            files::expand(&root.join(name)).expect_err("refused").to_string(),
            format!(
                "{shown}: the folder was written by save_to_disk of Hugging Face datasets, as Arrow files, which are not read; \
                 convert it: python -c \"from datasets import load_from_disk; \
                 load_from_disk('{shown}'){split}.to_parquet('{shown}.parquet')\""
            )
        );
    }
}

#[test]
fn empty_answers_are_refused_or_counted() {
    let empty = r#"{"prompt": "Hi", "completion": " "}"#;
    let advice = "a model trained on that learns to say nothing. Check which key or column holds the answers (data.fields can name it)";
    refused(
        "a.jsonl",
        empty.as_bytes(),
        &format!("a.jsonl: the answer of its only sample is empty; {advice}"),
    );
    refused(
        "a.csv",
        b"prompt,completion\nHi,\nHello,\n",
        &format!("a.csv: the answers of all 2 samples are empty; {advice}"),
    );
    let end = tokenizer().turn_end();
    let marks = format!("{{\"input_ids\": [2, 5, {end}], \"labels\": [{IGNORE}, {IGNORE}, {end}]}}");
    refused(
        "a.jsonl",
        marks.as_bytes(),
        &format!("a.jsonl: the answer of its only sample is empty; {advice}"),
    );
    let found = read("a.jsonl", &format!("{PAIR}\n{empty}\n{PAIR}\n{marks}"));
    assert_eq!(
        notices(&found),
        [
            "a.jsonl: 2 of 4 samples have an empty answer, which teaches the model to say nothing; the first is line 2"
        ]
    );
    // An empty answer that is not trained is no problem.
    let history = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "weight": 0},
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#;
    assert_eq!(read("a.json", history).notices, []);
}

#[test]
fn samples_that_are_too_long_are_counted() {
    let long = format!("{{\"text\": \"{}\"}}", "river ".repeat(40));
    let longer = format!("{{\"text\": \"{}\"}}", "river ".repeat(80));
    let text = format!("{PAIR}\n{long}\n{longer}\n");
    let lengths: Vec<usize> = [&long, &longer].map(|text| one(text).ids.len()).to_vec();
    let (a, b) = (lengths[0], lengths[1]);
    let start = format!(
        "a.jsonl: 2 of 3 samples are longer than max_seq_len = 32: line 2 has {a} tokens, the longest has {b}; "
    );
    let end = ", or set data.overlong to \"drop\" or \"truncate\"";
    for (context, advice) in [
        (usize::MAX, "raise data.max_seq_len".to_owned()),
        (1024, "raise data.max_seq_len (this base takes up to 1024 tokens)".into()),
        (
            40,
            "raise data.max_seq_len (this base takes up to 40 tokens, which is less than the longest sample)"
                .into(),
        ),
        (32, "this base takes no more than 32 tokens: split the samples".into()),
    ] {
        let options = Options { max_seq_len: 32, context, ..OPTIONS };
        refused_with(&options, "a.jsonl", text.as_bytes(), &format!("{start}{advice}{end}"));
    }
    let options = Options { max_seq_len: 32, context: 32, overlong: Overlong::Drop, ..OPTIONS };
    refused_with(
        &options,
        "a.jsonl",
        long.as_bytes(),
        "a.jsonl: all 1 samples are longer than max_seq_len = 32 and were dropped; this base takes no more than 32 tokens: split \
         the samples, or set data.overlong to \"truncate\"",
    );
}

/// Small files that decompress to much, at limits of 1 MiB, half of what large ones may take.
#[test]
fn files_that_expand_beyond_the_limit_are_refused() {
    let options = Options { max_file_size: 2 << 20, invalid: Invalid::Drop, ..OPTIONS };
    let too_much = |what: &str| {
        format!(
            "a: {what} would take more than 0.0009765625 GiB; if you trust the file, raise data.max_file_size, otherwise split it"
        )
    };
    let zeros = vec![b' '; 2 << 20];
    let newlines = vec![b'\n'; 2 << 20];
    for bytes in [gzip(&zeros), gzip(&newlines), zstd::stream::encode_all(&zeros[..], 3).expect("in memory")]
    {
        assert!(bytes.len() < 40_000);
        refused_with(&options, "a", &bytes, &too_much("its decompressed text"));
    }
    // Text within the limit, tokens beyond it.
    let lines = gzip("{\"input_ids\": [2, 5]}\n".repeat(20_000).as_bytes());
    refused_with(&options, "a", &lines, &too_much("the tokens of its samples"));
    let parquet = include_bytes!("../fixtures/dataset/messages.parquet");
    let small = Options { max_file_size: 200, ..OPTIONS };
    let error = read_with(&small, "a", parquet).expect_err("too large");
    assert!(error.starts_with("a: its decompressed columns would take more than "), "{error}");
    // Empty lines and items take no memory of their own.
    assert!(read_with(&options, "a", &[gzip(&newlines[..1 << 19]), gzip(PAIR.as_bytes())].concat()).is_ok());
    let large = format!("{{\"text\": \"{}\"}}", "a ".repeat(9 << 20));
    refused_with(
        &OPTIONS,
        "a",
        large.as_bytes(),
        "a line 1: the record has 18 MiB, expected at most 4 MiB; split it into several",
    );
}

#[test]
fn damaged_parquet_files_are_errors_and_never_panics() {
    let bytes = include_bytes!("../fixtures/dataset/messages.parquet");
    for at in 0..bytes.len() {
        for flip in [1u8, 0x80, 0xff] {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= flip;
            if let Err(error) = read_with(&OPTIONS, "a.parquet", &damaged) {
                assert!(error.starts_with("a.parquet"), "{error}");
            }
        }
    }
}
