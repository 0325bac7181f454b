//! Runs that are killed dozens of times at random moments and end with the same bytes as an uninterrupted run.

use std::fs;
#[cfg(unix)]
use std::process::Child;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::Place;
#[cfg(unix)]
use super::resume::signal;
use super::resume::{assert_same, lines, start_until};

/// One sample per step, and nothing else.
const PLAIN: [&str; 5] =
    ["train.max_steps=24", "data.packing=false", "eval.steps=10", "output.save_steps=1", "lora.dropout=0"];
/// Gradient accumulation, dropout, some layers and ranks, packed rows, several epochs, replies, and keeping the best adapter.
const EVERYTHING: [&str; 11] = [
    "train.epochs=3",
    "train.batch_size=2",
    "train.gradient_accumulation_steps=2",
    "lora.dropout=0.2",
    "lora.layers=[0, \"last 3\"]",
    "lora.rank_pattern={ q_proj = 2, down_proj = 6 }",
    "data.max_seq_len=96",
    "eval.steps=5",
    "eval.samples=[\"Hello!\"]",
    "eval.max_new_tokens=2",
    "output.save_steps=1",
];

/// Completions, rewards, a reference, steps with the same completions, and evaluations.
const REWARDED: [&str; 13] = [
    "train.objective=\"grpo\"",
    "train.max_steps=8",
    "train.batch_size=4",
    "grpo.num_generations=4",
    "grpo.max_completion_length=8",
    "grpo.temperature=2.0",
    "grpo.num_iterations=2",
    "grpo.beta=0.1",
    "data.val_size=4",
    "eval.steps=3",
    "eval.samples=[]",
    "eval.general=false",
    "output.save_steps=1",
];
#[cfg(not(unix))]
const REWARDS: &str = "\n[[rewards]]\nname = \"length\"\ntarget_len = 5\n";
/// The program takes about as long as drawing does, so that kills fall into its time, too.
#[cfg(unix)]
const REWARDS: &str = r#"
[[rewards]]
name = "length"
target_len = 5

[[rewards]]
name = "command"
command = ["sh", "-c", "while IFS= read -r line; do sleep 0.05; echo ${#line}; done"]
weight = 0.01
"#;

/// In the suite: three random moments of a short run.
pub fn three_moments(place: Place) {
    place.write("data.jsonl", samples(20));
    kill(&place, ("everything", &EVERYTHING), 3);
}

/// Run by hand, as it takes minutes: thirty kills of each kind of run.
pub fn thirty_moments(place: Place) {
    place.write("data.jsonl", samples(60));
    kill(&place, ("plain", &PLAIN), 30);
    kill(&place, ("everything", &EVERYTHING), 30);
    kill(&place, ("rewarded", &REWARDED), 30);
}

/// Sends SIGKILL at `kills` random moments of a run, from its first instruction on. It is resumed after each kill. When it
/// finishes, a new run starts.
fn kill(place: &Place, (name, settings): (&str, &[&'static str]), kills: usize) {
    let rewards = if name == "rewarded" { REWARDS } else { "" };
    place.write("recipe.toml", super::RECIPE.replace("max_steps = 2\n", "") + rewards);
    let mut arguments = vec!["recipe.toml", "--quiet"];
    arguments.extend(settings.iter().flat_map(|&setting| ["--set", setting]));
    let (run, steps_of) = (place.dir.join("run"), |dir: &_| lines(dir, "\"event\":\"step\""));

    let began = Instant::now();
    place.run(&arguments);
    let (life, steps) = (began.elapsed(), steps_of(&run));
    fs::rename(&run, place.dir.join("whole")).expect("renamed");
    let began = Instant::now();
    let mut child = start_until(place, &arguments, "the first step", |dir| steps_of(dir) >= 1);
    let until_first = began.elapsed();
    child.kill().expect("killed");
    child.wait().expect("it is gone");
    fs::remove_dir_all(&run).expect("removed");
    // Up to a third of the run each time, so that a few kills fall into each run and every stretch of it is covered.
    let longest = until_first + life.saturating_sub(until_first) / 3;

    // If there are few kills, none is spent on the startup, when there is nothing to resume from.
    let earliest = if kills < 10 { until_first } else { Duration::ZERO };

    let mut rng = ChaCha8Rng::seed_from_u64(kills as u64);
    let (mut killed, mut runs, mut moments) = (0, 1, Vec::new());
    while killed < kills {
        let mut child = place.command(&arguments).stdout(Stdio::null()).spawn().expect("it starts");
        std::thread::sleep(earliest + (longest - earliest).mul_f64(rng.next_u32() as f64 / u32::MAX as f64));
        // A run that has finished cannot be killed.
        let _ = child.kill();
        let status = child.wait().expect("it is gone");
        if status.code().is_none() {
            killed += 1;
            moments.push(steps_of(&run));
            continue;
        }
        assert!(status.success(), "{name}, {killed} kills: {status}");
        assert_same_state(place, steps, &format!("{name}, {killed} kills"));
        fs::remove_dir_all(&run).expect("removed");
        runs += 1;
    }
    place.run(&arguments);
    assert_same_state(place, steps, &format!("{name}, {killed} kills"));
    println!("{name}: killed {killed} times in {runs} runs of {steps} steps, after step {moments:?}");
    for dir in ["run", "whole"] {
        fs::remove_dir_all(place.dir.join(dir)).expect("removed");
    }
}

/// [`assert_same`], and compares the optimizer's state.
#[track_caller]
fn assert_same_state(place: &Place, steps: usize, when: &str) {
    assert_same(place, when);
    let state = |dir: &str| place.read(&format!("{dir}/checkpoint-{steps}/optimizer.safetensors"));
    assert!(state("whole") == state("run"), "{when}: the optimizer's state is another one");
}

/// Questions and answers of many lengths, so that rows hold several samples.
fn samples(n: usize) -> String {
    let sample = |i: usize| {
        let words = ["river", "stone", "cloud", "bread"].repeat(3)[..2 + i % 9].join(" ");
        format!("{{\"prompt\": \"Say {i}: {words}.\", \"completion\": \"{words}, {i}. Ahoy!\"}}\n")
    };
    (0..n).map(sample).collect()
}

/// Interrupted merges and exports leave nothing behind. What a killed one left is removed by the next, which leaves one in progress alone.
#[cfg(unix)]
pub fn merges(place: Place) {
    place.run(&["recipe.toml", "--quiet"]);
    let merge = |out| ["merge", "run", "--base", "tiny", "--out", out];
    let mut slow = started(&place, &merge("slow.gguf"), 1);
    signal(&slow, "STOP");
    let mut killed = started(&place, &merge("killed.gguf"), 2);
    killed.kill().expect("killed");
    killed.wait().expect("it is gone");
    assert_eq!(folders(&place).len(), 2);
    assert_eq!(unfinished(&place).len(), 4, "each has a lock");
    place.run(&merge("merged.gguf"));
    assert_eq!(folders(&place).len(), 1, "the folder of the one that is still at work");
    signal(&slow, "CONT");
    assert!(slow.wait().expect("it ends").success());
    assert_eq!(place.read("slow.gguf"), place.read("merged.gguf"));

    let export = ["export", "run", "--to", "mlx", "--to", "gguf-lora", "--out", "other"];
    for arguments in [&merge("stopped.gguf")[..], &export] {
        let mut stopped = started(&place, arguments, 1);
        signal(&stopped, "INT");
        assert_eq!(stopped.wait().expect("it ends").code(), Some(130), "{arguments:?}");
        assert_eq!(unfinished(&place), Vec::<String>::new(), "{arguments:?}");
    }
    let names = place.names("");
    let is_unwanted =
        |name: &&String| ["stopped", "killed", "other"].iter().any(|start| name.starts_with(start));
    assert_eq!(names.iter().find(is_unwanted), None);
}

/// A merge whose base becomes shorter ends with one error, and leaves nothing behind.
#[cfg(target_os = "linux")]
pub fn cut_base(place: Place) {
    let tiny = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf");
    let base = place.dir.join("model.gguf");
    fs::copy(tiny, &base).expect("copied");
    place.run(&["recipe.toml", "--quiet"]);
    let cut = started(&place, &["merge", "run", "--base", "model.gguf", "--out", "merged.gguf"], 1);
    signal(&cut, "STOP");
    fs::File::options().write(true).open(base).and_then(|file| file.set_len(100_000)).expect("cut");
    signal(&cut, "CONT");
    let output = cut.wait_with_output().expect("it ends");
    let error = "model.gguf became shorter while it was in use; restore it, and run the same command again";
    assert_eq!(super::texts(&output).1, format!("error: {error}\n"));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(unfinished(&place), Vec::<String>::new());
    assert!(!place.dir.join("merged.gguf").exists());
}

/// Starts the program and waits until it uses this number of temporary folders.
#[cfg(unix)]
fn started(place: &Place, arguments: &[&str], folders_in_use: usize) -> Child {
    let mut command = place.command(arguments);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    // A folder that holds a file is locked.
    let is_used =
        |name: &String| fs::read_dir(place.dir.join(name)).is_ok_and(|mut files| files.next().is_some());
    while folders(place).iter().filter(|name| is_used(name)).count() < folders_in_use {
        assert!(child.try_wait().expect("a child").is_none(), "{arguments:?} ended before it was seen");
        std::thread::sleep(Duration::from_millis(1));
    }
    child
}

/// Temporary folders in the working directory.
#[cfg(unix)]
fn folders(place: &Place) -> Vec<String> {
    unfinished(place).into_iter().filter(|name| place.dir.join(name).is_dir()).collect()
}

/// Temporary files and folders in the working directory.
#[cfg(unix)]
fn unfinished(place: &Place) -> Vec<String> {
    let entries = fs::read_dir(&place.dir).expect("it exists").flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(".unfinished")).collect()
}
