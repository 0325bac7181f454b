//! Rewards of replies: `generate --reward`, and the pairs that it writes.

use serde_json::Value as Json;

use super::{Place, texts};

const PROMPTS: &str = r#"{"prompt": "What is 7 plus 8?", "answer": "7 + 8 = 15\n#### 15", "set": "sums"}
{"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}], "answer": null}
{"prompt": "Spell the word river.", "answer": 3}
{"prompt": "Tell me a story."}
"#;

/// Replies that differ.
const HOT: [&str; 6] =
    ["generate", "tiny", "--samples=prompts.jsonl", "--temperature=2.5", "--max-tokens=16", "--seed=3"];

pub fn refusals(place: Place) {
    place.write("prompts.jsonl", PROMPTS);
    place.write("pairs.jsonl", "old");
    place.write("none.toml", "[lora]\nrank = 4\n");
    place.write("wrong.toml", "[[rewards]]\nname = 'number'\npattern = 'x'\n");
    let generate = |arguments: &[&str], expected: &str| {
        place.refused(&[&["generate", "tiny", "--samples=prompts.jsonl"], arguments].concat(), expected);
    };
    generate(
        &["--reward=numbr"],
        "--reward numbr: rewards.name = \"numbr\": expected one of `regex`, `exact_match`, `number`, …",
    );
    generate(
        &["--reward=regex"],
        "--reward regex: `rewards.pattern` is missing, expected a regular expression",
    );
    generate(
        &["--reward=name = 'regex', pattern = '('"],
        "--reward name = 'regex', pattern = '(': rewards.pattern: \"(\" is not a regular expression: error: unclosed group",
    );
    generate(
        &["--reward=name = 'number', patern = 'x'"],
        "--reward name = 'number', patern = 'x': unknown key `patern` in [[rewards]]; did you mean `pattern`?",
    );
    generate(
        &["--rewards=wrong.toml"],
        "wrong.toml:3:11: rewards.pattern: the reward \"number\" has no such key; it takes column, tolerance, after, weight",
    );
    generate(&["--rewards=none.toml"], "--rewards: none.toml has no [[rewards]]; add some, or use --reward");
    generate(
        &["--rewards=no.toml"],
        "cannot read the recipe …no.toml: No such file or directory (os error 2)",
    );
    generate(
        &["--n=2", "--pairs=new.jsonl"],
        "--pairs needs something that judges the replies: add --reward or --rewards",
    );
    generate(
        &["--reward=number", "--pairs=new.jsonl"],
        "--pairs needs several replies to each prompt: add --n 8",
    );
    generate(
        &["--reward=number", "--n=2", "--pairs=pairs.jsonl"],
        "pairs.jsonl exists; choose another name with --pairs, or overwrite it with --force",
    );
    // Windows has other words.
    let reason = if cfg!(windows) { "…" } else { "No such file or directory (os error 2)" };
    generate(
        &["--reward=name = 'command', command = ['no-such-program']"],
        &format!(
            "rewards.command of the reward command: cannot start \"no-such-program\": {reason}; check its name and path"
        ),
    );
    generate(
        &["--reward=name = 'json', schema = 'no.json'"],
        "rewards.schema of the reward json: cannot read no.json: No such file or directory (os error 2)…",
    );
    place.refused(&["generate", "tiny", "--samples=no.jsonl"], "--samples: no.jsonl does not exist");
}

pub fn judged(place: Place) {
    place.write("prompts.jsonl", PROMPTS);
    let run = |arguments: &[&str]| {
        let output = place.command(&[&HOT, arguments].concat()).output().expect("it starts");
        let (stdout, stderr) = texts(&output);
        assert!(output.status.success(), "{arguments:?}\n{stdout}\n{stderr}");
        (stdout, stderr)
    };
    let target = "--reward=name = 'length', target_len = 8, weight = 0.5";
    let (text, said) = run(&["--n=2", "--json", "--reward=number", "--reward=number", target]);
    let replies: Vec<Json> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(replies.len(), 8);
    assert!(said.contains("reward: ") && said.contains("(8 replies)"), "{said}");
    for (i, reply) in replies.iter().enumerate() {
        let rewards = &reply["rewards"];
        let ended = usize::from(reply["finish_reason"] == "stop");
        let tokens = reply["completion_tokens"].as_u64().expect("a count") as usize + ended;
        let length = (1.0 - tokens.abs_diff(8) as f64 / 8.0).max(0.0);
        assert_eq!(rewards["length"].as_f64(), Some(length), "{reply}");
        // The columns of the second and the fourth prompt have no number.
        let number = rewards["number"].as_f64();
        assert_eq!(number.is_some(), [0, 1, 4, 5].contains(&i), "{reply}");
        assert_eq!(rewards["number_2"], rewards["number"]);
        assert_eq!(reply["reward"].as_f64(), Some(2.0 * number.unwrap_or(0.0) + 0.5 * length), "{reply}");
    }
    // A prompt alone has no columns, but can be judged without; one reply can be, too.
    let alone = ["generate", "tiny", "--prompt=Hello!", "--temperature=0"];
    place.refused_on_device(
        &[&alone[..], &["--reward=number"]].concat(),
        "the reward number reads the column \"answer\", which a prompt alone does not have; give prompts with columns by --samples",
    );
    let output =
        place.command(&[&alone[..], &["--reward=name = 'regex', pattern = 'help'"]].concat()).output();
    let (text, said) = texts(&output.expect("it starts"));
    assert_eq!(text, "--- 1 of 1, reward 1.000\nHello! How can I help you?\n");
    assert_eq!(said, "reward: 1.000 on average, 1.000 for the best reply to each prompt (1 reply)\n");
    place.refused_on_device(
        &[&HOT[..], &["--reward=name = 'number', column = 'anwser'"]].concat(),
        "the reward number: no row has the column \"anwser\"; the first row has prompt, answer, set; name one of the columns",
    );
}

#[cfg(unix)]
pub fn program(place: Place) {
    place.write("prompts.jsonl", PROMPTS);
    // The longer, the better; nothing for prompts without an answer.
    let script = "#!/bin/sh\nwhile IFS= read -r line; do case \"$line\" in *'\"answer\":'*) echo \"${#line}\";; *) echo null;; esac; done\n";
    place.write("judge.sh", script);
    place.write(
        "rewards.json",
        r#"{"rewards": [{"name": "command", "command": ["sh", "judge.sh"], "weight": 2}]}"#,
    );
    let judged = [&HOT[..], &["--n=3", "--json", "--rewards=rewards.json"]].concat();
    let output = place.command(&judged).output().expect("it starts");
    let (text, said) = texts(&output);
    assert!(output.status.success(), "{said}");
    let replies: Vec<Json> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(replies.len(), 12);
    for (i, reply) in replies.iter().enumerate() {
        let length = reply["rewards"]["command"].as_f64();
        assert_eq!(length.is_some(), i < 9, "{reply}");
        assert_eq!(reply["reward"].as_f64(), length.map(|length| 2.0 * length));
        assert!(length.is_none_or(|length| length > 100.0), "{reply}");
    }
    let fails = |script: &str, expected: &str| {
        place.write("judge.sh", script);
        let output =
            place.command(&[&HOT[..], &["--n=2", "--rewards=rewards.json", "--pairs=pairs.jsonl"]].concat());
        let arguments = ["--rewards=rewards.json"];
        place.refused_by(output, &arguments, expected);
    };
    fails(
        "read -r line; echo 1; echo no more >&2; exit 4\n",
        "the reward command: sh judge.sh ended after 1 of 2 lines (exit status: 4); the end of its stderr: no more",
    );
    fails(
        "while read -r line; do echo nan; done\n",
        "the reward command: sh judge.sh wrote \"nan\" for completion 1; …",
    );
}

pub fn best_of_n(place: Place) {
    place.write("prompts.jsonl", PROMPTS);
    let all = [&HOT[..], &["--n=6", "--reward=name = 'length', target_len = 12"]].concat();
    let said = place.run(&[&all[..], &["--pairs=pairs.jsonl"]].concat());
    let expected = "reward: … on average, … for the best reply to each prompt (24 replies)\npairs: … of 4 prompts in pairs.jsonl…";
    assert!(super::matches(said.trim_end(), expected), "{said}");
    let pairs = String::from_utf8(place.read("pairs.jsonl")).expect("UTF-8");
    let lines: Vec<Json> = pairs.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(lines.len() >= 3, "{said}{pairs}");
    for line in &lines {
        let keys: Vec<&String> = line.as_object().expect("an object").keys().collect();
        assert_eq!(keys, ["prompt", "chosen", "rejected"]);
        assert_ne!(line["chosen"], line["rejected"]);
    }
    place.refused(
        &[&all[..], &["--pairs=pairs.jsonl"]].concat(),
        "pairs.jsonl exists; choose another name with --pairs, or overwrite it with --force",
    );
    // A second run writes equal bytes; with --system, samples without a system message get one.
    place.write("pairs.jsonl", "old");
    place.run(&[&all[..], &["--pairs=pairs.jsonl", "--force"]].concat());
    assert_eq!(String::from_utf8(place.read("pairs.jsonl")).expect("UTF-8"), pairs);
    let output = place.command(&[&all[..], &["--system=Be kind.", "--pairs=kind.jsonl"]].concat()).output();
    let note = "note: prompts.jsonl: --system was not added to 1 sample with a system message of its own\n";
    assert_eq!(texts(&output.expect("it starts")).1, note);
    let kind = String::from_utf8(place.read("kind.jsonl")).expect("UTF-8");
    let has_own = |line: &&str| line.contains("Be brief.");
    assert!(kind.lines().filter(has_own).all(|line| !line.contains("Be kind.")), "{kind}");
    assert!(
        kind.lines().filter(|line| !has_own(line)).all(|line| line.contains(r#""system":"Be kind.""#)),
        "{kind}"
    );
    // Replies that are all equally good are no pairs.
    let equal =
        [&HOT[..], &["--n=2", "--reward=name = 'regex', pattern = ''", "--pairs=none.jsonl"]].concat();
    let output = place
        .command(&[&HOT[..], &["--n=2", "--reward=think_format", "--pairs=none.jsonl"]].concat())
        .output();
    let (stdout, stderr) = texts(&output.expect("it starts"));
    assert!(stdout.starts_with("reward: 0.000 on average, 0.000 for the best"), "{stdout}");
    let error = "error: no pairs of 4 prompts; left out: 4 whose replies all have the same reward; raise --temperature, --n or --max-tokens, \
                 or change the rewards\n";
    assert_eq!(stderr, error);
    assert!(!place.dir.join("none.jsonl").exists());
    place.refused(
        &equal,
        "--reward name = 'regex', pattern = '': rewards.pattern = \"\": expected a non-empty string",
    );
    learns(&place, lines.len());
}

/// Trains on the pairs; the margin grows.
fn learns(place: &Place, pairs: usize) {
    let recipe = "[model]\nbase = 'tiny'\n[data]\ntrain = ['pairs.jsonl', 'kind.jsonl']\nval_size = 0\n[train]\nobjective = 'dpo'\nmax_steps = 12\n\
                  learning_rate = 1e-2\nbatch_size = 4\n[eval]\ngeneral = false\n[output]\ndir = 'run'\n";
    place.write("recipe.toml", recipe);
    let output = place.command(&["recipe.toml"]).output().expect("it starts");
    let (stdout, stderr) = texts(&output);
    assert!(output.status.success() && pairs > 0, "{stdout}\n{stderr}");
    let margins = place.metrics("run", "rewards/margins");
    let last = margins.last().expect("a margin");
    assert!(*last > 0.1, "{margins:?}\n{stdout}");
}
