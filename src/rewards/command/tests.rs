use std::time::Instant;

use serde_json::{Map, Value, json};

use super::*;

/// Completions with these texts, of a row with an answer.
fn judged<R>(texts: &[&str], score: impl FnOnce(&[Completion<'_>]) -> R) -> R {
    let prompt = json!([{ "role": "user", "content": "1 + 1?" }]);
    let Value::Object(row) = json!({ "answer": 2, "completion": "as in the file" }) else { unreachable!() };
    let row: Map<String, Value> = row;
    let completion = |text| Completion { prompt: &prompt, text, ids: &[1, 2, 3], finished: true, row: &row };
    let all: Vec<Completion<'_>> = texts.iter().map(|text| completion(*text)).collect();
    score(&all)
}

fn shell(script: &str, timeout: f64) -> Command {
    let command = ["sh", "-c", script].map(String::from);
    Command::new("command", &command, timeout).expect("every machine of the tests has sh")
}

/// The message of the second line on where `script` fails on two completions.
#[track_caller]
fn fails(script: &str, timeout: f64, expected: &str) {
    let error = judged(&["a", "b"], |all| shell(script, timeout).score(all)).expect_err(script).to_string();
    let expected = format!("the reward command: sh -c {script} {expected}");
    assert!(error.starts_with(&expected), "{error}\nexpected\n{expected}");
}

#[test]
fn a_line_is_a_finite_number_or_null() {
    let cases = [
        ("1", Some(Some(1.0))),
        (" -0.5 ", Some(Some(-0.5))),
        ("1e-3\r", Some(Some(0.001))),
        (".5", Some(Some(0.5))),
        ("null", Some(None)),
        ("", None),
        ("None", None),
        ("NaN", None),
        ("nan", None),
        ("inf", None),
        ("-Infinity", None),
        ("1e999", None),
        ("1 2", None),
        ("true", None),
        ("[1]", None),
    ];
    for (line, expected) in cases {
        assert_eq!(value(line, 1).ok(), expected, "{line:?}");
    }
}

#[test]
fn a_program_judges_many_times_and_ends_with_its_input() {
    let folder = tempfile::tempdir().expect("a folder");
    let (seen, ended) = (folder.path().join("seen"), folder.path().join("ended"));
    let script = format!(
        "n=0; while IFS= read -r line; do printf '%s\\n' \"$line\" >>{}; n=$((n+1)); if [ $n = 2 ]; then echo null; else echo $n; fi; \
         done; echo >{}",
        seen.display(),
        ended.display()
    );
    let mut reward = shell(&script, 60.0);
    assert_eq!(judged(&["a\n\"", "b"], |all| reward.score(all)).expect("two"), [Some(1.0), None]);
    assert_eq!(judged(&["c"], |all| reward.score(all)).expect("one"), [Some(3.0)]);
    drop(reward);
    assert!(ended.exists(), "it was killed before it could end");
    let seen = std::fs::read_to_string(seen).expect("a file");
    let first: Value = serde_json::from_str(seen.lines().next().expect("a line")).expect("JSON");
    let expected = json!({
        "prompt": [{ "role": "user", "content": "1 + 1?" }], "completion": "a\n\"", "tokens": 3, "finished": true,
        "row": { "answer": 2, "completion": "as in the file" },
    });
    assert_eq!(first, expected);
    assert_eq!(seen.lines().count(), 3);
}

#[test]
fn what_goes_wrong_is_said_with_the_last_words() {
    fails("exit 3", 60.0, "ended after 0 of 2 lines (exit status: 3); it wrote nothing to stderr");
    fails(
        "echo one >&2; echo two >&2; read -r l; echo 1; exit 1",
        60.0,
        "ended after 1 of 2 lines (exit status: 1); the end of its stderr: one | two",
    );
    fails("kill -9 $$", 60.0, "ended after 0 of 2 lines (signal: 9 (SIGKILL))");
    fails(
        "read -r l; echo 1; sleep 100",
        3.0,
        "wrote nothing more after 1 of 2 lines, within 3 s; it hangs, ",
    );
    fails("exec >&-; sleep 100", 60.0, "ended after 0 of 2 lines (it closed its stdout, but runs on)");
    fails(
        "read -r l; echo yes; sleep 100",
        60.0,
        "wrote \"yes\" for completion 1; expected a finite number or null",
    );
    fails("read -r l; echo 1; echo nan; sleep 100", 60.0, "wrote \"nan\" for completion 2; expected");
    fails(
        "read -r l; echo 1; echo 2; echo 3; cat >/dev/null",
        60.0,
        "wrote \"3\", a line too many; expected one line",
    );
    fails(
        "read -r l; printf '\\377\\n'; sleep 100",
        60.0,
        "wrote a line that is not UTF-8 after 0 of 2 lines",
    );
    fails(
        "read -r l; tr '\\0' 1 </dev/zero",
        60.0,
        "wrote a line of more than 4096 bytes after 0 of 2 lines",
    );
    fails("yes 1", 60.0, "wrote \"1\", a line too many");
}

#[test]
fn a_line_between_two_steps_is_noticed() {
    let folder = tempfile::tempdir().expect("a folder");
    let wrote = folder.path().join("wrote");
    let script = "read -r l; echo 1; read -r l; echo 2; sleep 0.3; echo 3; echo >";
    let mut reward = shell(&format!("{script}{}; cat >/dev/null", wrote.display()), 60.0);
    assert_eq!(judged(&["a", "b"], |all| reward.score(all)).expect("two"), [Some(1.0), Some(2.0)]);
    wait_for(&wrote);
    // The thread that reads it may take a moment.
    std::thread::sleep(Duration::from_millis(300));
    let error = judged(&["c"], |all| reward.score(all)).expect_err("a line too many").to_string();
    assert!(error.contains("wrote \"3\", a line too many"), "{error}");
}

#[test]
fn python_does_not_keep_its_answers() {
    let mut reward = shell("read -r line; echo $PYTHONUNBUFFERED; cat >/dev/null", 60.0);
    assert_eq!(judged(&["a"], |all| reward.score(all)).expect("one"), [Some(1.0)]);
}

#[test]
fn a_program_that_failed_is_started_again() {
    let mut reward = shell("read -r l; echo 1; exit 1", 60.0);
    assert!(judged(&["a", "b"], |all| reward.score(all)).is_err());
    assert_eq!(judged(&["a"], |all| reward.score(all)).expect("one"), [Some(1.0)]);
}

/// Both pipes are full: the program writes before it reads on, and writes much to stderr.
#[test]
fn full_pipes_stop_nobody() {
    let long = "x".repeat(100_000);
    let texts = vec![long.as_str(); 40];
    let mut reward = shell("while IFS= read -r l; do echo 1; printf '%s\\n' \"$l\" >&2; done", 60.0);
    assert_eq!(judged(&texts, |all| reward.score(all)).expect("40 values").len(), 40);
    let mut late = shell(
        "head -c 1 >/dev/null; i=0; while [ $i -lt 40 ]; do echo 1; i=$((i+1)); done; cat >/dev/null",
        60.0,
    );
    assert_eq!(judged(&texts, |all| late.score(all)).expect("40 values").len(), 40);
    // It reads nothing, and is not waited for.
    let mut deaf = shell("sleep 1000", 0.2);
    let began = Instant::now();
    assert!(judged(&texts, |all| deaf.score(all)).is_err());
    assert!(began.elapsed() < Duration::from_secs(1000));
}

/// Waits until a file has something in it.
fn wait_for(path: &std::path::Path) {
    while std::fs::metadata(path).map_or(0, |file| file.len()) == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a process exists, as a zombie or alive.
fn exists(id: &str) -> bool {
    let id: i32 = id.trim().parse().expect("a number");
    // SAFETY: signal 0 asks only.
    unsafe { libc::kill(id, 0) == 0 }
}

#[test]
fn nothing_is_left_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    for script in [
        "sleep 1000 & echo $! >child; echo $$ >own; while :; do sleep 0.05; done",
        "echo $$ >own; sleep 1000 & echo $! >child",
    ] {
        let script = format!("cd {}; {script}", folder.path().display());
        let mut reward = shell(&script, 1.0);
        ["own", "child"].into_iter().for_each(|file| wait_for(&folder.path().join(file)));
        let _ = judged(&["a"], |all| reward.score(all));
        drop(reward);
        for file in ["own", "child"] {
            let path = folder.path().join(file);
            let id = std::fs::read_to_string(&path).expect("a file");
            std::fs::remove_file(path).expect("it is there");
            // Whoever adopts a child that was killed may take a moment.
            let gone = (0..1000).any(|_| {
                std::thread::sleep(Duration::from_millis(10));
                !exists(&id)
            });
            assert!(gone, "{file} {id} of {script}");
        }
    }
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let error = Command::new("command", &["no-such-program".into()], 1.0).err().expect("refused").to_string();
    // Windows has other words.
    let reason = if cfg!(windows) { "" } else { "No such file" };
    let start = format!("rewards.command of the reward command: cannot start \"no-such-program\": {reason}");
    assert!(error.starts_with(&start), "{error}");
}
