//! Pairs and rated answers: both sides, their loss tokens, and what is refused.

use rullama_train::data::compare::{Side, Supervision};
use rullama_train::data::dataset::Invalid;

use super::*;

fn parsed(text: &str, options: &Options) -> Result<Dataset, DatasetError> {
    parse(text.as_bytes(), "p.jsonl", &tokenizer(), options)
}

fn pairs() -> Options<'static> {
    Options { supervision: Supervision::Pairs, ..OPTIONS }
}

fn ratings() -> Options<'static> {
    Options { supervision: Supervision::Ratings, ..OPTIONS }
}

fn sides(text: &str, options: &Options) -> Vec<(Side, Vec<String>)> {
    let tokenizer = tokenizer();
    let samples = parsed(text, options).unwrap_or_else(|error| panic!("{text}: {error}")).samples;
    let answer = |s: &Sample| trained(&tokenizer, &s.ids, &s.labels);
    samples.iter().map(|sample| (sample.side, answer(sample))).collect()
}

#[track_caller]
fn refused(text: &str, options: &Options, message: &str) {
    let error = parsed(text, options).expect_err(text).to_string();
    assert!(error.contains(message), "{text}\nfound    {error}\nexpected {message}");
}

const SHORT: &str = r#"{"prompt": "Hi", "chosen": "Hello!", "rejected": "What?"}"#;

#[test]
fn every_form_of_a_pair_gives_the_same_two_samples() {
    let user = r#"{"role": "user", "content": "Hi"}"#;
    let says = |text: &str| format!(r#"{{"role": "assistant", "content": "{text}"}}"#);
    let (good, bad) = (says("Hello!"), says("What?"));
    let forms = [
        format!(r#"{{"prompt": [{user}], "chosen": [{good}], "rejected": [{bad}]}}"#),
        format!(r#"{{"prompt": [{user}], "chosen": "Hello!", "rejected": "What?"}}"#),
        format!(r#"{{"prompt": "Hi", "chosen": [{good}], "rejected": [{bad}]}}"#),
        format!(r#"{{"chosen": [{user}, {good}], "rejected": [{user}, {bad}]}}"#),
        format!(r#"{{"prompt": "Hi", "chosen": [{user}, {good}], "rejected": [{user}, {bad}], "score": 2}}"#),
    ];
    let expected = parsed(SHORT, &pairs()).expect("a pair").samples;
    assert_eq!(expected.iter().map(|s| s.side).collect::<Vec<_>>(), [Side::Chosen, Side::Rejected]);
    for form in forms {
        let found = parsed(&form, &pairs()).unwrap_or_else(|error| panic!("{form}: {error}")).samples;
        let of = |samples: &[Sample]| {
            samples.iter().map(|s| (s.ids.clone(), s.labels.clone(), s.side)).collect::<Vec<_>>()
        };
        assert_eq!(of(&found), of(&expected), "{form}");
    }
    let found = sides(SHORT, &pairs());
    let start = |(side, texts): &(Side, Vec<String>)| (*side, texts[0].split('<').next().map(str::to_owned));
    assert_eq!(start(&found[0]), (Side::Chosen, Some("Hello!".into())));
    assert_eq!(start(&found[1]), (Side::Rejected, Some("What?".into())));
}

#[test]
fn documents_share_their_first_tokens() {
    let text = r#"{"chosen": "The sky is blue.", "rejected": "The sky is green."}"#;
    let found = sides(text, &pairs());
    assert!(found[0].1[0].contains("blue") && !found[0].1[0].contains("sky"), "{found:?}");
    assert!(found[1].1[0].contains("green") && !found[1].1[0].contains("sky"), "{found:?}");
}

#[test]
fn ratings_are_read_in_every_container_and_from_pairs() {
    let lines = "{\"prompt\": \"Hi\", \"completion\": \"Hello!\", \"label\": true}\n\
                 {\"prompt\": \"Hi\", \"completion\": \"What?\", \"label\": 0}\n";
    let expected = parsed(lines, &ratings()).expect("ratings").samples;
    assert_eq!(expected.iter().map(|s| s.side).collect::<Vec<_>>(), [Side::Desirable, Side::Undesirable]);
    let table = "prompt,completion,label\nHi,Hello!,true\nHi,What?,0\n";
    let table = parse(table.as_bytes(), "p.csv", &tokenizer(), &ratings()).expect("a table").samples;
    let pair = parsed(SHORT, &ratings()).expect("a pair").samples;
    for found in [table, pair] {
        let of = |s: &Sample| (s.ids.clone(), s.labels.clone(), s.side);
        assert_eq!(found.iter().map(of).collect::<Vec<_>>(), expected.iter().map(of).collect::<Vec<_>>());
    }
}

#[test]
fn pairs_that_say_nothing_are_refused() {
    let with = |chosen: &str, rejected: &str| {
        format!(r#"{{"prompt": "Hi", "chosen": {chosen}, "rejected": {rejected}}}"#)
    };
    refused(&with("\"A.\"", "\"A.\""), &pairs(), "p.jsonl line 1: \"chosen\" and \"rejected\" are equal");
    refused(&with("\"A.\"", "\" \""), &pairs(), "\"rejected\" has no answer: it is empty");
    let thought = r#"[{"role": "assistant", "content": "A.", "reasoning_content": "Hm."}]"#;
    let plain = r#"[{"role": "assistant", "content": "B."}]"#;
    assert!(
        parsed(&with(thought, plain), &pairs()).is_ok() || {
            let error = parsed(&with(thought, plain), &pairs()).expect_err("the prompts differ").to_string();
            error.contains("the prompt tokens of \"chosen\" are not those of \"rejected\"")
        }
    );
    let other = r#"{"chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
                    "rejected": [{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]}"#;
    refused(&other.replace('\n', ""), &pairs(), "the first messages of \"chosen\" and \"rejected\" differ");
    refused(PAIR, &pairs(), "but train.objective needs \"chosen\" and \"rejected\"");
    refused(PAIR, &ratings(), "needs \"prompt\", \"completion\" and \"label\" (or");
    let rating = r#"{"prompt": "Hi", "completion": "A.", "label": "good"}"#;
    refused(
        rating,
        &ratings(),
        "\"label\" is \"good\", expected true for a good answer or false for a bad one",
    );
    refused(SHORT, &OPTIONS, "set train.objective = \"dpo\" (see docs/preference.md)");
    let rated = r#"{"prompt": "Hi", "completion": "A.", "label": true}"#;
    refused(rated, &OPTIONS, "set train.objective = \"kto\"");
}

#[test]
fn a_pair_is_cut_or_dropped_as_one() {
    let long = format!(r#"{{"prompt": "Hi", "chosen": "A.", "rejected": "{}"}}"#, "word ".repeat(60));
    let text = format!("{SHORT}\n{long}\n");
    let limited = |overlong| Options { max_seq_len: 40, overlong, ..pairs() };
    refused(&text, &limited(Overlong::Error), "longer than max_seq_len = 40");
    assert_eq!(parsed(&text, &limited(Overlong::Drop)).expect("one pair").samples.len(), 2);
    let cut = parsed(&text, &limited(Overlong::Truncate)).expect("two pairs").samples;
    assert_eq!((cut.len(), cut[3].ids.len()), (4, 40));
    let equal = format!("{SHORT}\n{}\n", r#"{"prompt": "Hi", "chosen": "A.", "rejected": "A."}"#);
    let dropped = parsed(&equal, &Options { invalid: Invalid::Drop, ..pairs() }).expect("one pair");
    assert_eq!(dropped.samples.len(), 2);
    assert!(dropped.notices[0].to_string().contains("are equal"), "{:?}", dropped.notices);
}

#[test]
fn a_split_keeps_pairs_together() {
    let samples: String = (0..9)
        .map(|n| format!("{{\"prompt\": \"{n}\", \"chosen\": \"A.\", \"rejected\": \"B.\"}}\n"))
        .collect();
    let samples = parsed(&samples, &pairs()).expect("nine pairs").samples;
    let split = split(samples, 3.0, 1).expect("a split");
    assert_eq!((split.train.len(), split.validation.len()), (12, 6));
    for pair in split.train.chunks(2).chain(split.validation.chunks(2)) {
        assert_eq!((pair[0].side, pair[1].side), (Side::Chosen, Side::Rejected));
        assert_eq!(pair[0].origin, pair[1].origin);
    }
}
