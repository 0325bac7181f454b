//! Every target reads its sound inputs, the corpus, and some changed inputs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::mutate::mutate;
use crate::rng::Rng;
use crate::targets::{Outcome, TARGETS, Target};

/// The folder of the targets.
const FUZZ: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz");
/// Changed inputs per target; `storm` reads as many as one likes.
const CHANGED: u64 = 100;
/// Bytes of all files of the corpus.
const MOST_BYTES: u64 = 1 << 20;

#[test]
fn every_reader_takes_what_is_sound_and_survives_the_rest() {
    let problems: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = TARGETS.iter().map(|target| (target, scope.spawn(|| replay(target)))).collect();
        let joined = threads.into_iter().map(|(target, thread)| match thread.join() {
            Ok(problems) => problems,
            Err(_) => vec![format!("{}: a panic", target.name)],
        });
        joined.flatten().collect()
    });
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

fn replay(target: &Target) -> Vec<String> {
    let mut problems = Vec::new();
    let sound = (target.sound)();
    for input in &sound {
        let outcome = (target.read)(input);
        if outcome != Outcome::Accepted {
            problems.push(format!("{}: a sound input: {outcome:?}", target.name));
        }
    }
    let corpus = corpus(target.name);
    let changed = (0..CHANGED).map(|seed| {
        let mut rng = Rng(seed);
        let input = &sound[rng.below(sound.len())];
        (format!("changed input {seed}"), mutate(&mut rng, target.kind, input))
    });
    for (name, input) in corpus.into_iter().chain(changed) {
        if let Outcome::Wrong(problem) = (target.read)(&input) {
            problems.push(format!("{}: {name}: {problem}", target.name));
        }
    }
    problems
}

fn corpus(name: &str) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(Path::new(FUZZ).join("corpus").join(name)).into_iter().flatten().flatten();
    entries
        .map(|entry| (entry.path().display().to_string(), fs::read(entry.path()).expect("a file")))
        .collect()
}

#[test]
fn every_target_is_one_of_cargo_fuzz_and_the_corpus_is_small() {
    let targets: BTreeSet<String> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    let stems = |folder: &str| -> BTreeSet<String> {
        let entries = fs::read_dir(Path::new(FUZZ).join(folder)).into_iter().flatten().flatten();
        entries
            .map(|entry| entry.path().file_stem().expect("a name").to_string_lossy().into_owned())
            .collect()
    };
    assert_eq!(stems("fuzz_targets"), targets);
    assert!(stems("corpus").is_subset(&targets), "a folder of the corpus is no target's");
    let manifest = fs::read_to_string(Path::new(FUZZ).join("Cargo.toml")).expect("there");
    for name in &targets {
        assert!(
            manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")),
            "{name} is not in fuzz/Cargo.toml"
        );
    }
    let files = targets.iter().flat_map(|name| corpus(name));
    assert!(files.map(|(_, bytes)| bytes.len() as u64).sum::<u64>() <= MOST_BYTES, "the corpus is too large");
}
