//! The text under "context": a teacher sees it in the user's message, and the student does not.

use rullama_train::data::batch::Sample;
use rullama_train::data::dataset::{Dataset, Format, Invalid, Options, Overlong, parse};
use rullama_train::data::template::TrainOn;

use super::{OPTIONS, tokenizer};

const SHOWN: Options = Options { teacher_prompt: Some("{prompt}\n\n{context}"), ..OPTIONS };

fn read(record: &str, options: &Options) -> Result<Dataset, String> {
    parse(record.as_bytes(), "x.jsonl", &tokenizer(), options).map_err(|error| error.to_string())
}

fn sample(record: &str, options: &Options) -> Sample {
    read(record, options).expect("sound").samples.remove(0)
}

fn notices(text: &str, options: &Options) -> Vec<String> {
    read(text, options).expect("sound").notices.iter().map(ToString::to_string).collect()
}

/// A record of each shape, with the record whose rendering the teacher reads.
const SHAPES: [[&str; 2]; 7] = [
    [
        r#"{"prompt": "Who?", "completion": "Ann.", "context": "Ann did it."}"#,
        r#"{"prompt": "Who?\n\nAnn did it.", "completion": "Ann."}"#,
    ],
    [
        r#"{"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "Who?"}], "completion": "Ann.", "privileged_context": "{prompt}"}"#,
        r#"{"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "Who?\n\n{prompt}"}], "completion": "Ann."}"#,
    ],
    [
        r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}], "context": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}"#,
        r#"{"messages": [{"role": "user", "content": "a\n\nx\ny"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]}"#,
    ],
    [
        r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "train": false}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}], "context": "x"}"#,
        r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "train": false}, {"role": "user", "content": "c\n\nx"}, {"role": "assistant", "content": "d"}]}"#,
    ],
    [
        r#"{"instruction": "Add.", "input": "1", "output": "2", "context": "x"}"#,
        r#"{"instruction": "Add.\n1\n\nx", "input": "", "output": "2"}"#,
    ],
    [
        r#"{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "context": "x"}"#,
        r#"{"conversations": [{"from": "human", "value": "a\n\nx"}, {"from": "gpt", "value": "b"}]}"#,
    ],
    [
        r#"{"contents": [{"role": "user", "parts": [{"text": "a"}]}, {"role": "model", "parts": [{"text": "b"}]}], "context": "x"}"#,
        r#"{"contents": [{"role": "user", "parts": [{"text": "a\n\nx"}]}, {"role": "model", "parts": [{"text": "b"}]}]}"#,
    ],
];

#[test]
fn a_teacher_reads_the_context_in_every_conversation() {
    for [record, shown] in SHAPES {
        let found = sample(record, &SHOWN);
        assert!(notices(record, &SHOWN).is_empty(), "{record}: {:?}", notices(record, &SHOWN));
        let expected = sample(shown, &OPTIONS);
        let taught = found.for_teacher();
        assert_eq!((&taught.ids, &taught.labels), (&expected.ids, &expected.labels), "{record}");
        assert_ne!(found.ids, taught.ids, "{record}");
        let without = sample(record, &OPTIONS);
        assert_eq!((found.ids, found.labels), (without.ids, without.labels), "the student's row: {record}");
        assert!(without.taught.is_none());
        let ignored = notices(record, &OPTIONS);
        assert!(
            ignored[0].contains("ignored keys: ") && ignored[0].contains("context (1 line)"),
            "{ignored:?}"
        );
    }
    let before = Options { teacher_prompt: Some("Known: {context}\n{prompt}"), ..OPTIONS };
    let expected = sample(r#"{"prompt": "Known: Ann did it.\nWho?", "completion": "Ann."}"#, &OPTIONS);
    assert_eq!(sample(SHAPES[0][0], &before).for_teacher().ids, expected.ids);
}

#[test]
fn samples_without_a_context_are_counted() {
    let with = SHAPES[0][0];
    let [empty, null, missing] = [
        r#"{"prompt": "a", "completion": "b", "context": " "}"#,
        r#"{"prompt": "a", "completion": "c", "context": null}"#,
        r#"{"prompt": "a", "completion": "d"}"#,
    ];
    let told = notices(&[with, empty, null, missing].join("\n"), &SHOWN);
    let expected = "x.jsonl: 1 of 4 samples have a \"context\"; it is empty in 2 samples: in the others the teacher reads what the student reads";
    assert_eq!(told, [expected]);
    let told = notices(&[with, missing].join("\n"), &SHOWN);
    assert_eq!(
        told,
        [
            "x.jsonl: 1 of 2 samples have a \"context\": in the others the teacher reads what the student reads"
        ]
    );
    assert!(notices(missing, &SHOWN).is_empty(), "no key, no notice");
    let told = notices(empty, &SHOWN);
    assert!(told[0].contains("0 of 1 samples have a \"context\"; it is empty in 1 sample:"), "{told:?}");
}

#[test]
fn contexts_without_a_place_are_refused() {
    let all = Options { train_on: TrainOn::All, ..SHOWN };
    let no_user = r#"{"messages": [{"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}], "context": "x"}"#;
    for (record, options, expected) in [
        (
            r#"{"text": "Once.", "context": "x"}"#,
            &SHOWN,
            "x.jsonl line 1: the key \"context\" needs a conversation beside it",
        ),
        (r#"{"input_ids": [2, 5, 9], "context": "x"}"#, &SHOWN, "the key \"context\" needs a conversation"),
        (
            no_user,
            &SHOWN,
            "the key \"context\" has no place: it goes into the last message of the user before",
        ),
        (SHAPES[0][0], &all, "the key \"context\" has no place"),
        (
            r#"{"prompt": "a", "completion": "b", "context": 5}"#,
            &SHOWN,
            "\"context\" to be a string or a list of messages, found a number",
        ),
    ] {
        let told = read(record, options).expect_err(record);
        assert!(told.contains(expected), "{record}: {told}");
    }
    let dropped = Options { invalid: Invalid::Drop, ..SHOWN };
    let told = notices(&[SHAPES[0][0], no_user].join("\n"), &dropped);
    assert!(told[0].contains("dropped 1 of 2 lines that cannot be used"), "{told:?}");
}

#[test]
fn a_row_that_is_cut_keeps_as_many_loss_tokens_for_the_teacher() {
    let long = r#"{"prompt": "Who?", "completion": "Ann and Bob and Cid and Dan and Eve.", "context": "x"}"#;
    let whole = sample(long, &SHOWN);
    let options = Options { max_seq_len: whole.ids.len() - 4, overlong: Overlong::Truncate, ..SHOWN };
    let cut = sample(long, &options);
    let loss =
        |sample: &Sample| -> Vec<i32> { sample.labels.iter().copied().filter(|label| *label >= 0).collect() };
    assert!(cut.loss_tokens() < whole.loss_tokens());
    assert_eq!(loss(&cut), loss(cut.for_teacher()));
    assert_eq!(loss(&cut), loss(&whole)[..cut.loss_tokens()]);
    assert_eq!(loss(&whole), loss(whole.for_teacher()));
}

#[test]
fn a_context_may_have_another_name() {
    let fields = [("context".to_owned(), "document".to_owned())];
    let options = Options { fields: &fields, format: Format::Auto, ..SHOWN };
    let record = r#"{"prompt": "Who?", "completion": "Ann.", "document": "Ann did it."}"#;
    assert_eq!(sample(record, &options), sample(SHAPES[0][0], &SHOWN));
}
