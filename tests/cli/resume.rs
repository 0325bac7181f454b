//! Runs that are stopped, killed, damaged or changed, and how the next run resumes or refuses.

use std::fs;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use super::{DATA, Place, matches, texts};

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
    if place.names("run").iter().any(|name| name == "rollouts.jsonl") {
        let [whole, run] = ["whole", "run"].map(|dir| place.read(&format!("{dir}/rollouts.jsonl")));
        assert!(whole == run, "{when}: rollouts.jsonl differs");
    }
}

/// Starts a run and waits until `reached`.
pub fn start_until(place: &Place, arguments: &[&str], when: &str, reached: impl Fn(&Path) -> bool) -> Child {
    let mut command = place.command(arguments);
    #[cfg(unix)]
    heed_hangups(&mut command);
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

/// Lets SIGHUP reach the program where the tests run under nohup, which ignores it for all that they start.
#[cfg(unix)]
fn heed_hangups(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    let heed = || {
        // SAFETY: this may be called between fork and exec, and installs no handler.
        unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) };
        Ok(())
    };
    // SAFETY: `heed` allocates nothing and takes no lock.
    unsafe { command.pre_exec(heed) };
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

/// A run that compares answers with a reference, killed at several moments and resumed, writes the same bytes.
pub fn killed_preference(place: Place) {
    let pair = |n: usize| {
        let sum = n + 3;
        format!(
            "{{\"prompt\": \"{n} + 3 = ?\", \"chosen\": \"{sum}.\", \"rejected\": \"{n} plus 3 is {sum}. Ahoy!\"}}\n"
        )
    };
    place.write("data.jsonl", (10..16).map(pair).collect::<String>());
    let recipe = place.read("recipe.toml");
    let recipe = String::from_utf8(recipe).expect("UTF-8").replace("[train]", "[train]\nobjective = \"dpo\"");
    place.write("recipe.toml", recipe);
    whole(&place);
    let reference = |dir: &Path| dir.join("reference.bin").exists();
    let chosen =
        ["the first step", "the first checkpoint", "the third step", "the second evaluation", "the end"];
    let later = moments().into_iter().filter(|(when, _)| chosen.contains(when));
    for (when, reached) in std::iter::once(("the reference", Box::new(reference) as Box<_>)).chain(later) {
        let mut child = start_until(&place, &arguments(&[]), when, reached);
        child.kill().expect("killed");
        child.wait().expect("it is gone");
        place.run(&arguments(&[]));
        assert_same(&place, when);
        assert_eq!(place.read("run/reference.bin"), place.read("whole/reference.bin"), "{when}");
        fs::remove_dir_all(place.dir.join("run")).expect("removed");
    }
    let metrics = String::from_utf8(place.read("whole/metrics.jsonl")).expect("UTF-8");
    for name in ["rewards/margins", "logps/chosen", "eval_rewards/accuracies"] {
        assert!(metrics.contains(&format!("\"{name}\":")), "{name}: {metrics}");
    }
    // A damaged file is computed again, before a run that goes on.
    let mut child =
        start_until(&place, &arguments(&[]), "the third step", |dir| lines(dir, "\"event\":\"step\"") >= 3);
    child.kill().expect("killed");
    child.wait().expect("it is gone");
    place.write("run/reference.bin", "nothing");
    place.run(&arguments(&[]));
    assert_same(&place, "a damaged reference");
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
pub fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    let status = std::process::Command::new("kill").args(["-s", name, &pid]).status().expect("kill is there");
    assert!(status.success());
}

/// Sends signals to a run that has taken a step. Where the machine is slow, the run may be over by then.
#[cfg(unix)]
fn signalled(place: &Place, signals: &[&str]) -> (std::process::Output, String, String) {
    // The command that resumes has no --fresh.
    let child = start_until(place, &arguments(&["--fresh"]), "the first step", |dir| {
        lines(dir, "\"event\":\"step\"") >= 1
    });
    // `timeout` sends two at once, which count as one.
    signals.iter().for_each(|name| signal(&child, name));
    let output = child.wait_with_output().expect("it ends");
    let (stdout, stderr) = texts(&output);
    (output, stdout, stderr)
}

/// SIGINT (Ctrl-C) and SIGTERM finish the step, save, and print how to resume.
#[cfg(unix)]
pub fn interrupted(place: Place) {
    whole(&place);
    for (name, signals) in [("INT", &["INT"][..]), ("TERM", &["TERM", "TERM"]), ("HUP", &["HUP"])] {
        let (output, stdout, stderr) = (0..5)
            .map(|_| signalled(&place, signals))
            .find(|(_, stdout, _)| stdout.contains("stopped "))
            .expect(name);
        assert_eq!(output.status.code(), Some(130), "{stdout}\n{stderr}");
        assert_eq!(
            stderr,
            "\nstopping after this step; press Ctrl-C again to quit at once without saving it\n"
        );
        let step = lines(&place.dir.join("run"), "\"event\":\"step\"");
        let last = format!(
            "stopped    after step {step} of 6; saved in run\nresume     rullama-train recipe.toml --set train.max_steps=6 --set \
             output.save_steps=2 --set eval.steps=3 --set 'eval.samples=[\"Hello!\"]' --set eval.max_new_tokens=2 --set \
             lora.dropout=0.1\n"
        );
        assert!(stdout.ends_with(&last), "{stdout}");
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

/// A second Ctrl-C, more than a second after the first, quits at once. Nothing but the lock of its process tells that a killed
/// run is no longer running.
#[cfg(unix)]
pub fn interrupted_twice(place: Place) {
    // One step that takes many seconds.
    place.write("data.jsonl", DATA.repeat(150));
    let slow =
        ["recipe.toml", "--set", "data.packing=false", "--set", "train.gradient_accumulation_steps=590"];
    let mut child =
        start_until(&place, &slow, "the first step", |dir| lines(dir, "\"event\":\"evaluation\"") >= 1);
    // The step begins.
    std::thread::sleep(Duration::from_millis(300));
    while child.try_wait().expect("a child").is_none() {
        signal(&child, "INT");
        std::thread::sleep(Duration::from_millis(100));
    }
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130), "{:?}", texts(&output));
    assert!(!texts(&output).0.contains("stopped"), "{:?}", texts(&output));
    let status =
        || serde_json::from_slice::<Json>(&place.read("run/run.json")).expect("JSON")["status"].clone();
    assert_eq!(status(), "interrupted");

    place.write("data.jsonl", DATA);
    let mut child = start_until(&place, &arguments(&["--fresh"]), "the first checkpoint", |dir| {
        dir.join("checkpoint-2").exists()
    });
    let text = place.run(&["inspect", "run"]);
    assert!(text.contains("run        run: running, 6 steps\n"), "{text}");
    child.kill().expect("killed");
    child.wait().expect("it is gone");
    assert_eq!(status(), "running");
    let text = place.run(&["inspect", "run"]);
    assert!(text.contains("run        run: interrupted, 6 steps\n"), "{text}");
    assert_eq!(status(), "interrupted");
    place.refused(
        &["chat", "tiny", "--adapter", "run"],
        "run: the run has not written its adapter yet: it stopped after step …. Finish it, or use run/checkpoint-…",
    );
    place.run(&arguments(&[]));
}

/// Leaves a run that was stopped after step 4 of 6.
fn stopped(place: &Place) {
    let mut child =
        start_until(place, &arguments(&[]), "the second checkpoint", |dir| dir.join("checkpoint-4").exists());
    child.kill().expect("killed");
    child.wait().expect("it is gone");
}

/// A checkpoint alone in a folder that no run has used, such as one downloaded from a browser, is resumed.
fn copied(place: &Place) {
    let [from, to] = ["run", "copied"].map(|name| place.dir.join(name).join("checkpoint-4"));
    fs::create_dir_all(&to).expect("created");
    for file in fs::read_dir(from).expect("there").flatten() {
        fs::copy(file.path(), to.join(file.file_name())).expect("copied");
    }
    place.run(&arguments(&["--set", "output.dir=copied"]));
    assert_eq!(place.read("copied/adapter_model.safetensors"), place.read("whole/adapter_model.safetensors"));
}

/// Settings that affect the results may not change in a resumed run; others may.
pub fn changed(place: Place) {
    whole(&place);
    stopped(&place);
    copied(&place);
    let refused_with = |more: &[&'static str], expected: &str, next: &str| {
        let held = "run holds a run that was stopped after step 4 of 6 and differs from this one: ";
        let rest = "choose another output.dir, or start over with --fresh";
        place.refused(&arguments(more), &format!("{held}{expected}. Undo that to resume, {next}{rest}"));
    };
    let refused = |more: &[&'static str], expected: &str| refused_with(more, expected, "");
    let continuable = "continue with --continue-with-changes, ";
    refused_with(
        &["--set", "train.learning_rate=2e-2"],
        "train.learning_rate was 0.01 and is 0.02",
        continuable,
    );
    let fixed = "train.seed was 42 and is 7; lora.dropout was 0.1 and is 0.0";
    let seed = ["--set", "train.seed=7", "--set", "lora.dropout=0"];
    refused(&seed, fixed);
    refused(&[&seed[..], &["--continue-with-changes"]].concat(), fixed);
    refused_with(&["--set", "train.max_steps=7"], "train.max_steps was 6 and is 7", continuable);
    place.refused(
        &arguments(&["--set", "train.max_steps=3", "--continue-with-changes"]),
        "run holds a run that has taken 4 steps, more than the 3 of this one: train.max_steps was 6 and is 3. Raise …",
    );
    place.write("data.jsonl", DATA.replace("Ahoy!", "Arrr!"));
    refused(
        &[],
        "the training samples (data.train) had digest … and now has …; the validation samples (data.valid) had digest … and \
         now has …",
    );
    place.write("data.jsonl", DATA);
    let other =
        fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf"));
    let mut other = other.expect("the tiny model");
    let last = other.len() - 1;
    other[last] ^= 1;
    place.write("other.gguf", &other);
    let base = "run holds a sound run on another base, \"tiny\": the base had digest … and now has …. Set model.base to that base to go on \
                with it, or choose another output.dir";
    place.refused(&arguments(&["--set", "model.base=other.gguf"]), base);

    // A byte between those that the fingerprint reads.
    other[last] ^= 1;
    place.write("same.gguf", &other);
    let gguf = rullama_train::base::Gguf::open(&place.dir.join("same.gguf")).expect("sound");
    let middle = gguf.tensor("token_embd.weight").expect("there").range.clone();
    let middle = ((middle.start + middle.end) / 2) as usize + 40_000;
    other[middle] ^= 1;
    place.write("other.gguf", &other);
    let output = place.command(&arguments(&["--set", "model.base=other.gguf"])).output().expect("it starts");
    let found = texts(&output).1;
    let changed = "error: other.gguf has changed since the run was stopped: the base's contents had digest … and now has …. Restore …\n";
    assert!(matches(&found, changed), "{found}");

    // The sound bytes again, with the time of the others: the digest that was cached for those does not count.
    other[middle] ^= 1;
    let file = || fs::File::options().append(true).open(place.dir.join("other.gguf")).expect("there");
    let time = file().metadata().and_then(|found| found.modified()).expect("a time");
    place.write("other.gguf", &other);
    file().set_modified(time).expect("set");

    // Base and samples moved elsewhere; other exports, evaluations and checkpoints.
    place.write("moved.jsonl", DATA);
    let text = place.run(&arguments(&[
        "--set",
        "model.base=other.gguf",
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

    fs::remove_dir_all(place.dir.join("run")).expect("removed");
    stopped(&place);
    let text = place.run(&arguments(&["--fresh", "--set", "train.seed=7"]));
    assert!(!text.contains("resume"), "{text}");
}

/// A finished run is never changed unless its user says so: by extending or by replacing it.
pub fn finished(place: Place) {
    place.run(&["recipe.toml"]);
    let before = place.contents();
    let text = place.run(&["recipe.toml"]);
    let expected = "finished   run: this run ended after step 2 of 2; nothing was changed\n\
                    use        rullama-train chat tiny --adapter run --compare\n\
                    extend     rullama-train recipe.toml --set train.max_steps=4 --continue-with-changes\n\
                    replace    rullama-train recipe.toml --fresh\n";
    assert_eq!(text, expected);
    assert!(before == place.contents());
    // An alias, and other settings that do not affect the result.
    assert!(place.run(&["train", "recipe.toml", "--set", "eval.steps=1"]).starts_with("finished   run: "));
    assert_eq!(place.run(&["recipe.toml", "--quiet"]), "");
    let event: Json = serde_json::from_str(&place.run(&["recipe.toml", "--json"])).expect("JSON");
    assert_eq!((event["event"].as_str(), event["step"].as_u64()), (Some("already_finished"), Some(2)));
    let held = "run holds a finished run and differs from this one: ";
    let refused = |more: &[&str], expected: &str| {
        place.refused(&[&["recipe.toml"], more].concat(), &format!("{held}{expected}"));
    };
    refused(
        &["--set", "train.learning_rate=1e-3"],
        "train.learning_rate was 0.01 and is 0.001. Continue it with --continue-with-changes, choose another output.dir, or \
         replace it with --fresh",
    );
    refused(
        &["--set", "lora.rank=2", "--continue-with-changes"],
        "lora.rank was 4 and is 2; lora.alpha was 8.0 and is 4.0. Start from its adapter with lora.init_from and another \
         output.dir, choose another output.dir, or replace it with --fresh",
    );
    place.refused(
        &["recipe.toml", "--continue-with-changes"],
        "run holds a finished run, and nothing has changed; raise train.epochs or train.max_steps to continue it",
    );

    // Extended, with a lower rate; the changes are recorded.
    let longer = ["recipe.toml", "--set", "train.max_steps=4", "--set", "train.learning_rate=1e-3"];
    let text = place.run(&[&longer[..], &["--continue-with-changes"]].concat());
    let changes = "train.max_steps was 2 and is 4; train.learning_rate was 0.01 and is 0.001";
    assert!(text.contains(&format!("resume     continuing with changes: {changes}\n")), "{text}");
    assert_eq!(place.metrics("run", "loss").len(), 4);
    let run: Json = serde_json::from_slice(&place.read("run/run.json")).expect("JSON");
    assert_eq!(
        run["changes"],
        serde_json::json!([{ "step": 2, "changes": changes.split("; ").collect::<Vec<_>>() }])
    );
    let resolved = String::from_utf8(place.read("run/recipe.resolved.toml")).expect("UTF-8");
    assert!(
        resolved.ends_with(&format!("# After step 2 the run was continued with changes: {changes}\n")),
        "{resolved}"
    );
    assert_eq!(lines(&place.dir.join("run"), "continued with changes: "), 1);
    assert!(place.run(&longer).starts_with("finished   run: this run ended after step 4 of 4"));

    // Replaced as a whole: no file of the earlier run stays beside those of the new one.
    let text = place.run(&["recipe.toml", "--fresh", "--set", "output.export=['gguf-lora']"]);
    assert!(!text.contains("resume"), "{text}");
    assert!(!place.names("run").contains(&"adapter_model.safetensors".to_string()));

    // Without its checkpoints a run cannot be compared; an adapter from elsewhere is not replaced either.
    fs::remove_dir_all(place.dir.join("run/checkpoint-2")).expect("removed");
    place.refused(
        &["recipe.toml"],
        "run holds a finished run without its checkpoints, so it cannot be continued; choose another output.dir, or replace …",
    );
    place.write("foreign/adapter_model.safetensors", "weights");
    place.refused(
        &["recipe.toml", "--set", "output.dir=foreign"],
        "foreign holds an adapter that no run has written there (adapter_model.safetensors); choose another output.dir, or …",
    );
    place.refused(
        &["recipe.toml", "--set", "output.dir=new", "--continue-with-changes"],
        "new holds no run to continue; leave out --continue-with-changes",
    );
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
    // A step that was changed on disk.
    fs::remove_dir_all(place.dir.join("run")).expect("removed");
    stopped(&place);
    let state = String::from_utf8(place.read("run/checkpoint-4/trainer_state.json")).expect("UTF-8");
    place.write("run/checkpoint-4/trainer_state.json", state.replace("\"updates\": 4", "\"updates\": 40"));
    let text = place.run(&arguments(&[]));
    assert!(
        text.contains("trainer_state.json: it is not what was written: its SHA-256 differs; resuming from"),
        "{text}"
    );
    assert_same(&place, "a changed state");
    fs::remove_dir_all(place.dir.join("run")).expect("removed");
    stopped(&place);
    place.write("run/checkpoint-4/trainer_state.json", r#"{"format": 7, "version": "3.1.4"}"#);
    place.refused(
        &arguments(&[]),
        "run/checkpoint-4 was written by rullama-train 3.1.4 in format 7; this program reads format 2. Update the program, …",
    );
}

/// Only one run may write to a folder.
pub fn locked(place: Place) {
    let mut child =
        start_until(&place, &arguments(&[]), "the first step", |dir| lines(dir, "\"event\":\"step\"") >= 1);
    // It must not end while the other one waits for the lock.
    #[cfg(unix)]
    signal(&child, "STOP");
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
    // This command would fail again.
    assert!(
        matches(
            &stderr,
            "…Resuming as it is would repeat this. Start over with a lower rate, `rullama-train recipe.toml … --set \
             train.learning_rate=4e-3 --fresh`, or continue with it after step 1, `rullama-train … --continue-with-changes`\n"
        ),
        "{stderr}"
    );
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
        format!("best       exporting the adapter of step {best} (best evaluation)\n"),
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
    assert!(matches(&stderr, "…the trained adapter is kept in worse/refused…"), "{stdout}\n{stderr}");
    let worse = place.metrics("worse", "eval_loss");
    assert!(
        worse[0] == worse[1] && worse[0] < worse[2],
        "the first step of the warm-up does nothing: {worse:?}"
    );
    assert_eq!(loss_of("worse/refused"), worse[2].min(worse[3]));

    // Without it, the last one.
    let last_one = arguments(&["--set", "eval.keep_best=false", "--set", "output.dir=last"]);
    let output = place.command(&last_one).output().expect("it starts");
    assert!(matches(&texts(&output).1, "…the trained adapter is kept in last/refused…"), "{output:?}");
    assert_eq!(loss_of("last/refused"), losses[last]);
}
