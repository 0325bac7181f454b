//! Runs that are killed dozens of times at random moments and end with the same bytes as an uninterrupted run.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::Place;
use super::resume::{assert_same, lines, start_until};

/// One sample per step, and nothing else.
const PLAIN: [&str; 5] =
    ["train.max_steps=24", "data.packing=false", "eval.steps=10", "output.save_steps=1", "lora.dropout=0"];
/// Gradient accumulation, dropout, packed rows, several epochs, replies, and keeping the best adapter.
const EVERYTHING: [&str; 9] = [
    "train.epochs=3",
    "train.batch_size=2",
    "train.gradient_accumulation_steps=2",
    "lora.dropout=0.2",
    "data.max_seq_len=96",
    "eval.steps=5",
    "eval.samples=[\"Hello!\"]",
    "eval.max_new_tokens=2",
    "output.save_steps=1",
];

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
}

/// Sends SIGKILL at `kills` random moments of a run, from its first instruction on. It is resumed after each kill. When it
/// finishes, a new run starts.
fn kill(place: &Place, (name, settings): (&str, &[&'static str]), kills: usize) {
    place.write("recipe.toml", super::RECIPE.replace("max_steps = 2\n", ""));
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
