//! Learning from a second model: the teacher's pass, its file, and runs that are killed meanwhile.

use std::path::Path;

use super::Place;
use super::matches;
use super::resume::{assert_same, lines, start_until};

const RECIPE: &str = r#"[model]
base = "student.gguf"

[lora]
rank = 4

[data]
train = "data.jsonl"
val_size = 2
max_seq_len = 32

[train]
objective = "distill"
max_steps = 3
batch_size = 4
learning_rate = 1e-2

[distill]
teacher = "tiny"
top_k = 8
sft_weight = 0.25
divergence = "jsd"

[eval]
general = false

[output]
dir = "run"
save_steps = 1
"#;

/// A recipe, its samples, and the student.
pub fn prepare(place: &Place) {
    write(place, RECIPE);
    place.run(&["quantize", "tiny", "--type", "q2_k", "--out", "student.gguf"]);
}

fn write(place: &Place, recipe: &str) {
    let sample = |i: usize| {
        let words = ["river", "stone", "cloud", "bread"][i % 4];
        format!("{{\"prompt\": \"Say {i}.\", \"completion\": \"{words}, {i}. Ahoy!\"}}\n")
    };
    place.write("data.jsonl", (0..12).map(sample).collect::<String>());
    place.write("recipe.toml", recipe);
}

/// The teacher's pass, its file, the measurements, and `check` and `eval`. Killed in the pass, before the first step, and after it.
pub fn distill(place: Place) {
    prepare(&place);
    let shown = place.run(&["check", "recipe.toml"]);
    assert!(shown.contains("first choices of tiny at the loss tokens:"), "{shown}");
    assert!(shown.contains(" %  \""), "{shown}");
    assert!(!place.dir.join("run").exists(), "check writes nothing");

    let told = place.run(&["recipe.toml"]);
    assert!(told.contains("tiny reads 12 samples, "), "{told}");
    assert!(told.contains("before the base is loaded: the 8 likeliest tokens at each of "), "{told}");
    assert!(told.contains("divergence "), "{told}");
    for key in ["distillation_loss", "nll_loss", "teacher_agreement", "eval_distillation_loss"] {
        assert!(!place.metrics("run", key).is_empty(), "{key}");
    }
    let (loss, divergence) = (place.metrics("run", "loss"), place.metrics("run", "distillation_loss"));
    let entropy = place.metrics("run", "nll_loss");
    for ((loss, divergence), entropy) in loss.iter().zip(divergence).zip(entropy) {
        assert!((loss - divergence - 0.25 * entropy).abs() < 1e-9, "{loss} {divergence} {entropy}");
    }
    let evaluated = place.run(&["eval", "recipe.toml", "--adapter", "run"]);
    assert!(evaluated.contains("distance   divergence "), "{evaluated}");
    assert!(evaluated.contains("teacher    tiny: perplexity "), "{evaluated}");
    std::fs::rename(place.dir.join("run"), place.dir.join("whole")).expect("renamed");

    let (header, part) =
        (place.read("whole/teacher.bin").len() as u64, place.dir.join("run/teacher.bin.part"));
    let half = move |_: &Path| part.metadata().is_ok_and(|file| file.len() > header / 2);
    kill(&place, "the middle of the teacher's pass", half);
    kill(&place, "the end of the teacher's pass", |dir| dir.join("teacher.bin").exists());
    kill(&place, "the first step", |dir| lines(dir, "\"event\":\"step\"") >= 1);
    place.run(&["recipe.toml", "--quiet"]);
    assert_same(&place, "killed three times");
    assert_eq!(place.read("run/teacher.bin"), place.read("whole/teacher.bin"));

    // A new run of the same samples has no need of the teacher.
    let again = place.run(&["recipe.toml", "--fresh"]);
    assert!(again.contains("teacher.bin has what it says"), "{again}");
    damaged(&place);
}

fn kill(place: &Place, when: &str, reached: impl Fn(&Path) -> bool) {
    let mut child = start_until(place, &["recipe.toml", "--quiet"], when, reached);
    child.kill().expect("killed");
    child.wait().expect("it is gone");
}

/// Files that are damaged, none of a teacher, or of something else.
fn damaged(place: &Place) {
    let sound = place.read("run/teacher.bin");
    let mut changed = sound.clone();
    changed[sound.len() / 2] ^= 1;
    let fresh = ["recipe.toml", "--fresh", "--quiet"];
    for (bytes, expected) in [
        (
            &changed[..],
            "run/teacher.bin is damaged behind byte …: … of … rows are sound; remove it, and the teacher runs again",
        ),
        (&sound[..sound.len() - 1], "run/teacher.bin is damaged behind byte …"),
        (
            b"My diary",
            "run/teacher.bin is not a file of a teacher's log-probabilities, or is damaged at its start; remove it, or name another…",
        ),
    ] {
        place.write("run/teacher.bin", bytes);
        place.refused_on_device(&fresh, expected);
    }
    place.write("elsewhere.bin", &sound);
    let other = ["--set", "distill.file=\"elsewhere.bin\"", "--set", "distill.top_k=4"];
    let arguments = [&fresh[..], &other].concat();
    place.refused_on_device(
        &arguments,
        "elsewhere.bin is of another teacher, other samples, or other settings of [distill]; remove it, or name another file as distill.file",
    );
    std::fs::remove_file(place.dir.join("run/teacher.bin")).expect("removed");
    let full = |call: usize| {
        let mut command = place.command(&fresh);
        let output = command.env("RULLAMA_DISK_FAULT", format!("full:{call}")).output().expect("it starts");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let expected = "error: cannot write run/teacher.bin.part: no storage space; free some space, or choose another disk\n";
    assert!((3..12).any(|call| matches(&full(call), expected)), "a full disk in the teacher's pass");
}

/// The recipe of a base that learns from itself.
fn of_itself() -> String {
    let keys = "teacher = \"self\"\nteacher_prompt_template = \"{context} {prompt}\"\n";
    RECIPE
        .replace("student.gguf", "tiny")
        .replace("teacher = \"tiny\"\n", keys)
        .replace("sft_weight = 0.25\n", "")
}

/// The base teaches itself what a context says: killed in the teacher's pass and resumed, with `check` and `eval`.
pub fn itself(place: Place) {
    write(&place, &of_itself());
    let sample = |i: usize| {
        let context = if i == 3 { "" } else { "Sailors say ahoy to all that they meet." };
        format!("{{\"prompt\": \"Say {i}.\", \"completion\": \"{i}. Ahoy!\", \"context\": \"{context}\"}}\n")
    };
    place.write("data.jsonl", (0..12).map(sample).collect::<String>());
    let shown = place.run(&["check", "recipe.toml"]);
    assert!(
        shown.contains("data.jsonl: 11 of 12 samples have a \"context\"; it is empty in 1 sample: "),
        "{shown}"
    );
    let (student, teacher) = shown.split_once("the teacher reads, with the context:").expect("both prompts");
    assert!(
        !student.contains("Sailors say") && teacher.contains("Sailors say ahoy to all that they meet. Say"),
        "{shown}"
    );

    let told = place.run(&["recipe.toml"]);
    assert!(told.contains("tiny reads 12 samples, "), "{told}");
    let divergence = place.metrics("run", "distillation_loss");
    assert!(divergence.iter().any(|x| *x > 1e-3), "the context changes what the base says: {divergence:?}");
    let evaluated = place.run(&["eval", "recipe.toml", "--adapter", "run"]);
    assert!(evaluated.contains("distance   divergence "), "{evaluated}");
    std::fs::rename(place.dir.join("run"), place.dir.join("whole")).expect("renamed");
    let header = place.read("whole/teacher.bin").len() as u64;
    let part = place.dir.join("run/teacher.bin.part");
    kill(&place, "the middle of the pass", move |_| {
        part.metadata().is_ok_and(|file| file.len() > header / 2)
    });
    place.run(&["recipe.toml", "--quiet"]);
    assert_same(&place, "killed in the pass");
    assert_eq!(place.read("run/teacher.bin"), place.read("whole/teacher.bin"));

    // Other contexts are other samples.
    let changed = String::from_utf8(place.read("data.jsonl")).expect("text").replace("Sailors", "Pirates");
    place.write("data.jsonl", changed);
    place.refused_on_device(&["recipe.toml"], "…the training samples (data.train) had digest …");
    place.write(
        "data.jsonl",
        (0..12).map(|i| sample(i).replace("Sailors say ahoy to all that they meet.", "")).collect::<String>(),
    );
    place.refused_on_device(
        &["recipe.toml", "--fresh"],
        "distill.teacher is \"self\", but no sample of data.train has a \"context\": the base would learn what it says already; add it \
         beside the messages (docs/data.md), name another teacher, or set distill.sft_weight",
    );
}

/// `repair`: the teacher writes text, the base learns from it, `eval` compares, and a task goes on from the adapter.
pub fn repair(place: Place) {
    place.run(&["quantize", "tiny", "--type", "q2_k", "--out", "student.gguf"]);
    let repair = ["repair", "student.gguf", "--teacher", "tiny", "--recipe", "fix.toml"];
    let written = [&repair[..], &["--write", "10", "--tokens", "8"]].concat();
    let told = place.run(&[&written[..], &["--only-write", "--json"]].concat());
    let told: serde_json::Value = serde_json::from_str(&told).expect("one object");
    assert_eq!((told["data"].as_str(), told["samples"].as_u64()), (Some("fix.jsonl"), Some(10)), "{told}");
    let text = place.read("fix.jsonl");
    let rows = String::from_utf8(text.clone()).expect("JSON");
    assert_eq!(rows.lines().map(|row| row.matches(',').count() + 1).collect::<Vec<_>>(), [8; 10], "{rows}");
    let expected = "fix.toml already exists: `rullama-train fix.toml` runs or resumes it; choose another name with --recipe, …";
    place.refused(&written, expected);
    let told = place.run(&[&written[..], &["--force"]].concat());
    assert_eq!(place.read("fix.jsonl"), text, "the same seed writes the same texts");
    assert!(told.contains("tiny writes 10 texts of 8 tokens"), "{told}");
    assert!(
        told.contains("rullama-train eval fix.toml --adapter runs/fix shows base, adapter and "),
        "{told}"
    );
    assert!(!place.metrics("runs/fix", "eval_distillation_loss").is_empty());

    let stories = include_str!("../../datasets/stories.jsonl").lines().take(10);
    place.write("stories.jsonl", stories.map(|line| format!("{line}\n")).collect::<String>());
    place.run(&[&repair[..], &["--text", "stories.jsonl", "--only-write", "--force"]].concat());
    place.run(&["fix.toml", "--fresh", "--set", "train.max_steps=10", "--set", "eval.general=false"]);
    let divergence = place.metrics("runs/fix", "eval_distillation_loss");
    assert!(divergence[divergence.len() - 1] < 0.8 * divergence[0], "{divergence:?}");
    let evaluated = place.run(&["eval", "fix.toml", "--adapter", "runs/fix"]);
    let parts = [
        "perplexity ",
        "distance   divergence ",
        ", the teacher's first choice ",
        "teacher    tiny: perplexity ",
    ];
    parts.iter().for_each(|part| assert!(evaluated.contains(part), "{part}: {evaluated}"));
    goes_on(&place);
}

/// A task begins at the repaired model, and goes on from it.
fn goes_on(place: &Place) {
    let task = RECIPE.split("[distill]").next().expect("a part").replace("\"distill\"", "\"sft\"");
    let task = task.replace("rank = 4", "rank = 16\ninit_from = \"runs/fix\"");
    write(place, &(task + "[eval]\ngeneral = false\n[output]\ndir = \"task\"\n"));
    place.run(&["recipe.toml"]);
    let evaluated = place.run(&["eval", "recipe.toml", "--adapter", "runs/fix", "--json"]);
    let evaluated: serde_json::Value = serde_json::from_str(&evaluated).expect("one object");
    let repaired = evaluated["results"][1]["eval_loss"].as_f64().expect("a loss");
    let loss = place.metrics("task", "eval_loss");
    assert!((loss[0] - repaired).abs() < 1e-6, "the task begins at the repaired model: {loss:?}, {repaired}");
    assert!(loss[loss.len() - 1] < loss[0], "{loss:?}");
}

/// Commands that repair nothing.
pub fn repair_refusals(place: Place) {
    place.refused(
        &["repair", "tiny", "--teacher", "tiny"],
        "--teacher tiny is the base itself, which has nothing to repair; name the same model with more bits, such as its Q8_0",
    );
    let qwen = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/qwen3/model.gguf");
    place.refused(
        &["repair", "tiny", "--teacher", qwen],
        "distill.teacher: token … of …qwen3/model.gguf is …",
    );
    place.refused(
        &["repair", "tiny", "--teacher", qwen, "--text", "no.txt"],
        "no.txt: no such file or folder",
    );
    place.refused(
        &["repair", "tiny", "--teacher", qwen, "--recipe", "x.json"],
        "x.json: the recipe is written as TOML; choose a name …",
    );
}

/// Recipes with a teacher that cannot be one.
pub fn refusals(place: Place) {
    write(&place, &RECIPE.replace("student.gguf", "tiny"));
    let qwen = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/qwen3/model.gguf");
    let teacher = format!("distill.teacher={qwen:?}");
    place.refused(
        &["recipe.toml", "--set", &teacher],
        "distill.teacher: token … of …qwen3/model.gguf is …, but that of tiny is …; a teacher needs the base's vocabulary: choose another model \
         of the base's family",
    );
    for (set, expected) in [
        (
            "train.objective=\"sft\"",
            "…the objective \"sft\" has no teacher; remove [distill], or set train.objective = \"distill\"…",
        ),
        (
            "distill.weight=0.0",
            "…without it nothing is learnt from the teacher; raise it, or set train.objective = \"sft\"…",
        ),
        ("distill.divergence=\"forward_kl\"", "…"),
        (
            "distill.teacher_prompt_template=\"{prompt}\"",
            "…expected {prompt} and {context} in it, each once…",
        ),
        ("distill.temperature=0", "…distill.temperature…a number > 0…"),
        ("distill.teacher=\"nowhere.gguf\"", "…nowhere.gguf…"),
    ] {
        let set = if expected == "…" {
            ["distill.divergence=\"forward_kl\"", "distill.beta=0.5"]
        } else {
            [set, set]
        };
        let expected = if expected == "…" {
            "…only the divergence \"jsd\" has it; remove one of the two…"
        } else {
            expected
        };
        place.refused(&["recipe.toml", "--set", set[0], "--set", set[1]], expected);
    }
    write(&place, &RECIPE.replace("teacher = \"tiny\"\n", ""));
    place.refused(
        &["recipe.toml"],
        "…distill.teacher…the model to learn from, named as model.base names a base, or \"self\"…",
    );
}
