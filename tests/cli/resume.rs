//! Runs that are stopped, killed, damaged or changed, and how the next run resumes or refuses.

use std::fs;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use super::{DATA, Place, texts};

/// Six steps with a checkpoint after every second, and an evaluation in the middle.
const SETTINGS: [&str; 12] = [
    "--set",
    "train.max_steps=6",
    "--set",
    "output.save_steps=2",
    "--set",
    "eval.steps=3",
    "--set",
    "eval.samples=[\"Hello!\"]",
    "--set",
    "eval.max_new_tokens=2",
    "--set",
    "lora.dropout=0.1",
];
/// Files that must have the same bytes however often a run was stopped.
const SAME: [&str; 4] =
    ["adapter_model.safetensors", "adapter_config.json", "metrics.jsonl", "recipe.resolved.toml"];

fn arguments(more: &[&'static str]) -> Vec<&'static str> {
    [&["recipe.toml"][..], &SETTINGS, more].concat()
}

/// The folder of a run that was never stopped, moved to `whole`.
fn whole(place: &Place) {
    place.run(&arguments(&[]));
    fs::rename(place.dir.join("run"), place.dir.join("whole")).expect("renamed");
}

#[track_caller]
pub fn assert_same(place: &Place, when: &str) {
    for file in SAME {
        let [whole, run] = ["whole", "run"].map(|dir| place.read(&format!("{dir}/{file}")));
        let texts = || [&whole, &run].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).join("\n");
        assert!(
            whole == run,
            "{when}: {file} differs\n{}",
            if file.ends_with("l") { texts() } else { file.into() }
        );
    }
    assert_eq!(place.names("run"), place.names("whole"), "{when}");
}

/// Starts a run and waits until `reached`.
pub fn start_until(place: &Place, arguments: &[&str], when: &str, reached: impl Fn(&Path) -> bool) -> Child {
    let mut command = place.command(arguments);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let (mut child, dir, began) = (child, place.dir.join("run"), Instant::now());
    while !reached(&dir) {
        let ended = child.try_wait().expect("a child");
        assert!(ended.is_none(), "the run ended before {when}");
        assert!(began.elapsed() < Duration::from_secs(600), "the run never came to {when}");
        std::thread::sleep(Duration::from_millis(1));
    }
    child
}

pub fn lines(dir: &Path, what: &str) -> usize {
    fs::read_to_string(dir.join("metrics.jsonl")).unwrap_or_default().matches(what).count()
}

fn has_entry(dir: &Path, start: &str) -> bool {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.into_iter().any(|e| e.file_name().to_string_lossy().starts_with(start))
}

/// A moment in a run, recognized by the contents of its folder.
type Moment = (&'static str, Box<dyn Fn(&Path) -> bool>);

fn moments() -> Vec<Moment> {
    let steps = |n: usize| move |dir: &Path| lines(dir, "\"event\":\"step\"") >= n;
    let evaluations = |n: usize| move |dir: &Path| lines(dir, "\"event\":\"evaluation\"") >= n;
    let checkpoint = |n: usize| move |dir: &Path| dir.join(format!("checkpoint-{n}")).exists();
    vec![
        ("the first evaluation", Box::new(evaluations(1))),
        ("the first step", Box::new(steps(1))),
        ("writing a file or folder", Box::new(|dir| has_entry(dir, ".unfinished-"))),
        ("the first checkpoint", Box::new(checkpoint(2))),
        ("the third step", Box::new(steps(3))),
        ("the second evaluation", Box::new(evaluations(2))),
        ("the second checkpoint", Box::new(checkpoint(4))),
        ("the fifth step", Box::new(steps(5))),
        ("the last checkpoint", Box::new(checkpoint(6))),
        ("the end", Box::new(|dir| dir.join("adapter_config.json").exists())),
    ]
}

/// A run that is killed at any moment and resumed writes the same bytes as an uninterrupted one.
pub fn killed(place: Place) {
    whole(&place);
    for (when, reached) in moments() {
        let mut child = start_until(&place, &arguments(&[]), when, reached);
        child.kill().expect("killed");
        child.wait().expect("it is gone");
        let text = place.run(&arguments(&[]));
        let dir = place.dir.join("run");
        println!(
            "killed at {when}: {}",
            text.lines().find(|l| l.starts_with("resume")).unwrap_or("from the start")
        );
        assert_same(&place, when);
        fs::remove_dir_all(dir).expect("removed");
    }
    // Again and again, each time a little later.
    let mut kills = 0;
    loop {
        let goal = lines(&place.dir.join("run"), "\"event\":") + 2;
        let mut command = place.command(&arguments(&["--quiet"]));
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
        let status = loop {
            match child.try_wait().expect("a child") {
                Some(status) => break Some(status),
                None if lines(&place.dir.join("run"), "\"event\":") >= goal => break None,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        if let Some(status) = status {
            assert!(status.success(), "{status}");
            break;
        }
        child.kill().expect("killed");
        child.wait().expect("it is gone");
        kills += 1;
        assert!(kills < 20, "it never ends");
    }
    assert!(kills >= 2, "killed {kills} times");
    assert_same(&place, "killed again and again");
}

#[cfg(unix)]
fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    let status = std::process::Command::new("kill").args(["-s", name, &pid]).status().expect("kill is there");
    assert!(status.success());
}

/// SIGINT (Ctrl-C) and SIGTERM finish the step, save, and print how to resume.
#[cfg(unix)]
pub fn interrupted(place: Place) {
    whole(&place);
    for name in ["INT", "TERM"] {
        let child = start_until(&place, &arguments(&[]), "the third step", |dir| {
            lines(dir, "\"event\":\"step\"") >= 3
        });
        signal(&child, name);
        let output = child.wait_with_output().expect("it ends");
        let (stdout, stderr) = texts(&output);
        assert_eq!(output.status.code(), Some(130), "{stdout}\n{stderr}");
        assert_eq!(
            stderr,
            "\nstopping after this step; press Ctrl-C again to quit at once without saving it\n"
        );
        let last = stdout.lines().last().unwrap_or_default();
        let step = lines(&place.dir.join("run"), "\"event\":\"step\"");
        let how = "run the same command to resume (run)";
        assert_eq!(last, format!("stopped    after step {step} of 6; {how}"), "{stdout}");
        let status: Json = serde_json::from_slice(&place.read("run/run.json")).expect("JSON");
        assert_eq!(
            (status["status"].as_str(), status["step"].as_u64()),
            (Some("stopped"), Some(step as u64))
        );
        let text = place.run(&arguments(&[]));
        assert!(text.contains(&format!("resume     resuming after step {step} of 6\n")), "{text}");
        assert_same(&place, name);
        fs::remove_dir_all(place.dir.join("run")).expect("removed");
    }
}

/// The second Ctrl-C quits at once.
#[cfg(unix)]
pub fn interrupted_twice(place: Place) {
    let mut child =
        start_until(&place, &arguments(&[]), "the third step", |dir| lines(dir, "\"event\":\"step\"") >= 3);
    // Two that come at once count as one.
    while child.try_wait().expect("a child").is_none() {
        signal(&child, "INT");
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130), "{:?}", texts(&output));
    assert!(!texts(&output).0.contains("stopped"), "{:?}", texts(&output));
    place.run(&arguments(&[]));
}

/// Leaves a run that was stopped after step 4 of 6.
fn stopped(place: &Place) {
    let mut child =
        start_until(place, &arguments(&[]), "the second checkpoint", |dir| dir.join("checkpoint-4").exists());
    child.kill().expect("killed");
    child.wait().expect("it is gone");
}

/// Settings that affect the results may not change in a resumed run; others may.
pub fn changed(place: Place) {
    whole(&place);
    stopped(&place);
    let refused = |more: &[&'static str], expected: &str| {
        let held = "run holds a run that was stopped after step 4 of 6 and differs from this one: ";
        let next = ". Undo that to resume, choose another output.dir, or start over with --fresh";
        place.refused(&arguments(more), &format!("{held}{expected}{next}"));
    };
    refused(&["--set", "train.learning_rate=2e-2"], "train.learning_rate was 0.01 and is 0.02");
    refused(
        &["--set", "train.seed=7", "--set", "lora.dropout=0"],
        "lora.dropout was 0.1 and is 0.0; train.seed was 42 and is 7",
    );
    refused(&["--set", "train.max_steps=7"], "train.max_steps was 6 and is 7");
    place.write("data.jsonl", DATA.replace("Ahoy!", "Arrr!"));
    refused(
        &[],
        "the training samples (data.train) had digest … and now has …; the validation samples (data.valid) had digest … and \
         now has …",
    );
    place.write("data.jsonl", DATA);
    let other = fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf"));
    let mut other = other.expect("the tiny model");
    let last = other.len() - 1;
    other[last] ^= 1;
    place.write("other.gguf", &other);
    refused(&["--set", "model.base=other.gguf"], "the base had digest … and now has …");

    // The same base and the same samples elsewhere, other exports, evaluations and checkpoints.
    other[last] ^= 1;
    place.write("same.gguf", &other);
    place.write("moved.jsonl", DATA);
    let text = place.run(&arguments(&[
        "--set",
        "model.base=same.gguf",
        "--set",
        "data.train=moved.jsonl",
        "--set",
        "output.export=[\"peft\", \"gguf-lora\"]",
        "--set",
        "output.base_model_name=tiny",
        "--set",
        "output.save_steps=1",
        "--set",
        "eval.samples=[]",
        "--set",
        "train.gradient_checkpointing=true",
    ]));
    assert!(text.contains("resume     resuming after step 4 of 6\n"), "{text}");
    assert!(place.read("run/adapter_model.safetensors") == place.read("whole/adapter_model.safetensors"));
    assert!(place.names("run").contains(&"adapter.gguf".to_string()));

    // A finished run is replaced, and what is stopped can be.
    let text = place.run(&arguments(&["--set", "train.seed=7"]));
    assert!(!text.contains("resume"), "{text}");
    assert!(place.read("run/adapter_model.safetensors") != place.read("whole/adapter_model.safetensors"));
    fs::remove_dir_all(place.dir.join("run")).expect("removed");
    stopped(&place);
    let text = place.run(&arguments(&["--fresh", "--set", "train.seed=7"]));
    assert!(!text.contains("resume"), "{text}");
}

/// A damaged checkpoint is reported and the previous one is used. Without an intact one the run does not start.
pub fn damaged(place: Place) {
    whole(&place);
    stopped(&place);
    let optimizer = place.read("run/checkpoint-4/optimizer.safetensors");
    place.write("run/checkpoint-4/optimizer.safetensors", &optimizer[..1000]);
    let damage = format!(
        "run/checkpoint-4 is damaged: optimizer.safetensors has 1000 bytes, expected {}",
        optimizer.len()
    );
    let text = place.run(&arguments(&[]));
    let expected = format!("resume     {damage}; resuming from run/checkpoint-2, which is intact\n");
    assert!(text.contains(&expected), "{expected}\n{text}");
    assert_same(&place, "a damaged checkpoint");

    fs::remove_dir_all(place.dir.join("run")).expect("removed");
    stopped(&place);
    place.write("run/checkpoint-4/optimizer.safetensors", &optimizer[..1000]);
    place.write("run/checkpoint-2/trainer_state.json", "{\"format\": 1");
    place.refused(
        &arguments(&[]),
        &format!("{damage}; run/checkpoint-2 is damaged: trainer_state.json: EOF …; no intact checkpoint is left in run. Start over with --fresh"),
    );
    place.write("run/checkpoint-4/trainer_state.json", r#"{"format": 7, "version": "3.1.4"}"#);
    place.refused(
        &arguments(&[]),
        "run/checkpoint-4 was written by rullama-train 3.1.4 in format 7; this program reads format 1. Update the program, …",
    );
}

/// Only one run may write to a folder.
pub fn locked(place: Place) {
    let mut child =
        start_until(&place, &arguments(&[]), "the first step", |dir| lines(dir, "\"event\":\"step\"") >= 1);
    let output = place.command(&arguments(&[])).output().expect("it starts");
    let (stdout, stderr) = texts(&output);
    let expected = format!(
        "error: another run, process {}, is writing into run; wait for it, or choose another output.dir\n",
        child.id()
    );
    assert_eq!((stdout.as_str(), stderr.as_str(), output.status.code()), ("", expected.as_str(), Some(1)));
    child.kill().expect("killed");
    child.wait().expect("it is gone");
    // The lock goes with its process.
    place.run(&arguments(&[]));
}

/// The program where no file may be larger than 600 blocks of 512 bytes: the optimizer's state is the only one that is. The signal
/// that comes with it would end the program.
#[cfg(target_os = "linux")]
fn with_small_files(place: &Place, arguments: &[&str]) -> std::process::Output {
    let mut command = std::process::Command::new("sh");
    let script = "ulimit -f 600 2>/dev/null; trap '' XFSZ; exec \"$@\"";
    let inner = place.command(arguments);
    command
        .current_dir(&place.dir)
        .args(["-c", script, "sh"])
        .arg(inner.get_program())
        .args(inner.get_args());
    for (key, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    command.output().expect("it starts")
}

/// Whether the device works where files are small: Mesa 26 keeps the memory of its software device in files without a name.
#[cfg(target_os = "linux")]
pub fn device_needs_no_large_files() -> bool {
    let output = with_small_files(&Place::new(), &["bench", "tiny", "--sequence=32", "--steps=1"]);
    output.status.success()
}

/// A disk that is full in the middle of a run: one error, and nothing lost that was saved before.
#[cfg(target_os = "linux")]
pub fn full_disk(place: Place) {
    whole(&place);
    let output = with_small_files(&place, &arguments(&[]));
    let (stdout, stderr) = texts(&output);
    let expected = "error: cannot write run/checkpoint-2/optimizer.safetensors: File too large (os error 27); choose a disk or a limit that \
                    allows files of this size\n";
    assert_eq!(stderr, expected, "{stdout}");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        !has_entry(&place.dir.join("run"), "checkpoint-")
            && !has_entry(&place.dir.join("run"), ".unfinished-")
    );
    place.run(&arguments(&[]));
    assert_same(&place, "a full disk");
}

/// A loss that is not finite stops the run with an error that names the step. No adapter is written.
pub fn not_finite(place: Place) {
    let absurd =
        ["recipe.toml", "--set", "train.learning_rate=1e30", "--set", "train.warmup_steps=0", "--set"];
    let failed = |more: &[&str]| -> (String, ExitStatus) {
        let output = place.command(&[&absurd, more].concat()).output().expect("it starts");
        (texts(&output).1, output.status)
    };
    let (stderr, status) = failed(&["train.max_steps=4"]);
    assert!(stderr.starts_with("error: step 2: the loss is "), "{stderr}");
    assert!(stderr.contains("the gradient norm NaN, and "), "{stderr}");
    let saved = "The run is saved after step 1; run the same command to resume\n";
    assert!(stderr.ends_with(saved), "{stderr}");
    assert_eq!(status.code(), Some(1));
    assert!(!place.names("run").contains(&"adapter_model.safetensors".to_string()));
    // The run resumes if such steps may be skipped, until there are too many.
    let (stderr, _) = failed(&["train.max_steps=4", "--set", "train.max_skipped_steps=1"]);
    assert!(stderr.starts_with("error: step 3: the loss is "), "{stderr}");
    assert_eq!(lines(&place.dir.join("run"), "\"skipped\":true"), 1);
    assert_eq!(lines(&place.dir.join("run"), "1 of at most 1 skipped steps"), 1);
}

/// The adapter of the best evaluation is written, also by a run that was stopped after it.
pub fn best(place: Place) {
    // A rate at which this model soon gets worse.
    let settings = [
        "--set",
        "train.learning_rate=0.3",
        "--set",
        "train.lr_scheduler=constant",
        "--set",
        "train.warmup_steps=3",
        "--set",
        "train.max_steps=12",
        "--set",
        "eval.steps=1",
        "--set",
        "output.save_steps=1",
        "--set",
        "eval.early_stopping_patience=3",
        "--set",
        "train.max_grad_norm=0",
    ];
    let arguments = |more: &[&'static str]| [&["recipe.toml"][..], &settings, more].concat();
    let text = place.run(&arguments(&[]));
    let losses = place.metrics("run", "eval_loss");
    let best = (1..losses.len()).min_by(|&a, &b| losses[a].total_cmp(&losses[b])).expect("evaluations");
    assert_eq!(losses.len(), best + 4, "three evaluations after the best one: {losses:?}");
    assert!(losses.len() < 13, "before the last step: {losses:?}");
    for part in [
        format!(
            "early      stopped after step {} of 12: the validation loss did not improve in 3 evaluations\n",
            losses.len() - 1
        ),
        format!("best       the adapter after step {best} is written, not the last one\n"),
    ] {
        assert!(text.contains(&part), "{part}\n{text}");
    }
    let loss_of = |adapter: &str| {
        let text = place.run(&["eval", "recipe.toml", "--adapter", adapter, "--json"]);
        let json: Json = serde_json::from_str(&text).expect("JSON");
        json["results"][1]["eval_loss"].as_f64().expect("a number")
    };
    assert_eq!(loss_of("run"), losses[best]);
    let last = losses.len() - 1;
    assert_eq!(loss_of(&format!("run/checkpoint-{last}")), losses[last], "every checkpoint is an adapter");

    // Stopped after the best evaluation, it is kept all the same.
    fs::rename(place.dir.join("run"), place.dir.join("whole")).expect("renamed");
    let mut command = place.command(&arguments(&[]));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    while !place.dir.join(format!("run/checkpoint-{}", best + 1)).exists() {
        assert!(child.try_wait().expect("a child").is_none(), "it ended too soon");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().expect("killed");
    child.wait().expect("it is gone");
    place.run(&arguments(&[]));
    assert_same(&place, "stopped after the best evaluation");

    // If training only makes the model worse, a notice says so, and the least bad adapter is compared, refused and kept apart.
    let worse = ["--set", "train.learning_rate=3", "--set", "train.max_steps=3", "--set", "eval.steps=1"];
    let place_of = ["--set", "output.dir=worse", "--set", "train.max_grad_norm=0"];
    let output = place.command(&[&["recipe.toml"][..], &worse, &place_of].concat()).output();
    let (stdout, stderr) = super::texts(&output.expect("it starts"));
    assert!(stdout.contains("notice     step 3: the validation loss did not fall: "), "{stdout}\n{stderr}");
    assert!(stderr.contains("the trained adapter is kept in worse/refused"), "{stdout}\n{stderr}");
    let worse = place.metrics("worse", "eval_loss");
    assert!(
        worse[0] == worse[1] && worse[0] < worse[2],
        "the first step of the warm-up does nothing: {worse:?}"
    );
    assert_eq!(loss_of("worse/refused"), worse[2].min(worse[3]));

    // Without it, the last one.
    let last_one = arguments(&["--set", "eval.keep_best=false", "--set", "output.dir=last"]);
    let output = place.command(&last_one).output().expect("it starts");
    assert!(super::texts(&output).1.contains("the trained adapter is kept in last/refused"), "{output:?}");
    assert_eq!(loss_of("last/refused"), losses[last]);
}
