//! `eval.metrics`: metrics of generated answers.

use serde_json::Value as Json;

use super::Place;

const ANSWERS: &str = r#"{"prompt": "What is the capital of Peru?", "completion": "The capital of Peru is Lima."}
{"prompt": "What is 7 plus 8?", "completion": "15"}
"#;

/// The base's answer to one of two questions equals the reference, the other is "7 plus 8 is 15."
pub fn everywhere(place: Place) {
    place.write("valid.jsonl", ANSWERS);
    let arguments = [
        "recipe.toml",
        "--set=data.val_size=0",
        "--set=data.valid=valid.jsonl",
        "--set=eval.metrics=['exact_match', 'regex', 'rouge_l']",
        "--set=eval.regex='^\\d+ plus'",
        "--set=eval.best_metric=exact_match",
        "--set=eval.max_new_tokens=12",
        // The answers stay those of the base.
        "--set=train.learning_rate=1e-9",
        "--set=train.max_steps=1",
        "--set=train.warmup_steps=0",
    ];
    let text = place.run(&arguments);
    let values = "exact match 50.0 %, regex 50.0 %, ROUGE-L 0.667";
    for part in [
        format!("step 0/1   {values} over 2 answers\n"),
        "answers    exact match 50.0 % → 50.0 %, regex 50.0 % → 50.0 %, ROUGE-L 0.667 → 0.667 over 2 generated answers\n".into(),
    ] {
        assert!(text.contains(&part), "{part}\n{text}");
    }
    let metrics = String::from_utf8(place.read("run/metrics.jsonl")).expect("UTF-8");
    let first: Json = serde_json::from_str(metrics.lines().next().expect("a line")).expect("JSON");
    assert_eq!(
        (&first["metrics"]["exact_match"], &first["metric_samples"]),
        (&0.5.into(), &2.into()),
        "{first}"
    );
    let report = String::from_utf8(place.read("run/report.html")).expect("UTF-8");
    assert!(
        report.contains("exact match</dt><dd><b>50.0 %</b><span>from 50.0 %, over 2 answers"),
        "{report}"
    );
    let names = place.names("run");
    let events = names.iter().find(|name| name.starts_with("events.out")).expect("TensorBoard's file");
    let events = place.read(&format!("run/{events}"));
    assert!(events.windows(16).any(|bytes| bytes == b"eval/exact_match"));

    let text = place.run(&[&["eval"], &arguments[..], &["--adapter=run"]].concat());
    let line = "answers    exact match 50.0 % → 50.0 %, regex 50.0 % → 50.0 %, ROUGE-L 0.667 → 0.667 over 2 generated answers\n";
    assert!(text.ends_with(line), "{text}");
    let text = place.run(&[&["eval"], &arguments[..], &["--json"]].concat());
    let json: Json = serde_json::from_str(&text).expect("JSON");
    assert_eq!(json["results"][0]["metrics"]["regex"], 0.5, "{json}");
}

pub fn refusals(place: Place) {
    let refused = |more: &[&'static str], expected: &str| {
        place.refused(&[&["check", "recipe.toml"], more].concat(), expected);
    };
    refused(
        &["--set=eval.metrics=['rouge_l']", "--set=data.val_size=0"],
        "eval.metrics needs validation samples: set data.valid or data.val_size, or remove it",
    );
    refused(
        &["--set=eval.metrics=['json']"],
        "eval.metrics has \"json\", but the answer of data.jsonl line … is not JSON: \"…Ahoy!\"; remove \"json\", or correct the \
         samples",
    );
    refused(
        &["--set=eval.metrics=['exact_match']", "--set=data.train_on=all"],
        "eval.metrics needs samples with questions and answers, but data.jsonl line … is all loss tokens; remove eval.metrics, \
         or set data.train_on = \"assistant\" where the samples are conversations",
    );
    refused(
        &["--set=eval.metrics=['exact_match']", "--set=eval.max_new_tokens=1020"],
        "the longest question of eval.metrics needs … tokens with its answer, but tiny has a context of 1024; lower \
         eval.max_new_tokens, or data.max_seq_len",
    );
}
