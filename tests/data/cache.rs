//! The token cache: samples round-trip, different inputs get different keys, and damage is detected.

use std::path::Path;

use rullama_train::base::gguf::Gguf;
use rullama_train::data::dataset::cache::{Cache, Entry};
use rullama_train::data::dataset::{Options, Overlong, files, parse};
use rullama_train::data::template::{Template, TrainOn};
use rullama_train::data::tokenizer::Tokenizer;
use rullama_train::families::gemma4;

use super::{OPTIONS, tokenizer};

const LINES: &str = r#"{"prompt": "Hi", "completion": "Hello!", "id": 1}
{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]}
{"input_ids": [2, 5, 9, 7], "labels": [-100, 2047, 9, 0]}
{"text": "To the end."}
{"prompt": "Who?", "completion": "Ann.", "context": "Ann did it."}
"#;
/// With rows that only a teacher reads.
const TAUGHT: Options = Options { teacher_prompt: Some("{prompt} {context}"), ..OPTIONS };

fn cache(dir: &Path) -> Cache {
    Cache { dir: dir.to_owned(), least_bytes: 0 }
}

#[test]
fn samples_round_trip() {
    let folder = tempfile::tempdir().expect("a folder");
    let (cache, tokenizer) = (cache(&folder.path().join("new/cache")), tokenizer());
    let path = folder.path().join("x.jsonl");
    std::fs::write(&path, LINES).expect("written");
    let fresh = files::read(&path, &tokenizer, &OPTIONS, Some(&cache)).expect("sound");
    assert_eq!(fresh, files::read(&path, &tokenizer, &OPTIONS, None).expect("sound"), "before it is cached");
    let key = Cache::key("x.jsonl", LINES.as_bytes(), &tokenizer, &OPTIONS);
    let Entry::Found(found) = cache.load(&key, &path.display().to_string()) else { panic!("it was stored") };
    assert_eq!(found, fresh);
    assert_eq!(files::read(&path, &tokenizer, &OPTIONS, Some(&cache)).expect("sound"), fresh);
    let taught = files::read(&path, &tokenizer, &TAUGHT, Some(&cache)).expect("sound");
    assert!(taught.samples.iter().any(|sample| sample.taught.is_some()));
    assert_eq!(files::read(&path, &tokenizer, &TAUGHT, Some(&cache)).expect("sound"), taught, "contexts too");
    // Equal bytes under another name: places in messages use the new name.
    let Entry::Found(moved) = cache.load(&key, "y.jsonl") else { panic!("it was stored") };
    assert_eq!(moved, parse(LINES.as_bytes(), "y.jsonl", &tokenizer, &OPTIONS).expect("sound"));
}

#[test]
fn the_key_covers_everything_that_decides_the_tokens() {
    let tokenizer = tokenizer();
    let large = Template::BuiltIn(&gemma4::template::LARGE);
    let own = crate::common_template::own();
    let key = |text: &str, options: &Options| Cache::key("x.jsonl", text.as_bytes(), &tokenizer, options);
    let keys = [
        key(LINES, &OPTIONS),
        key(&LINES[1..], &OPTIONS),
        key(LINES, &Options { template: &large, ..OPTIONS }),
        key(LINES, &Options { template: &own, ..OPTIONS }),
        key(LINES, &Options { train_on: TrainOn::All, ..OPTIONS }),
        key(LINES, &Options { max_seq_len: 1023, ..OPTIONS }),
        key(LINES, &TAUGHT),
        key(LINES, &Options { overlong: Overlong::Drop, ..OPTIONS }),
        Cache::key("x.jsonl", LINES.as_bytes(), &super::shapes::with_tools(), &OPTIONS),
    ];
    let mut different = keys.to_vec();
    different.sort();
    different.dedup();
    assert_eq!(different.len(), keys.len(), "{keys:?}");
    assert_eq!(keys[0], key(LINES, &OPTIONS));
}

#[test]
fn a_damaged_entry_is_reported_and_rebuilt() {
    let folder = tempfile::tempdir().expect("a folder");
    let (cache, tokenizer) = (cache(folder.path()), tokenizer());
    let path = folder.path().join("x.jsonl");
    std::fs::write(&path, LINES).expect("written");
    let read = || files::read(&path, &tokenizer, &OPTIONS, Some(&cache)).expect("sound");
    let fresh = read();
    let key = Cache::key("x.jsonl", LINES.as_bytes(), &tokenizer, &OPTIONS);
    let entry = folder.path().join(format!("{key}.tokens"));
    let sound = std::fs::read(&entry).expect("it was stored");
    let flipped = |at: usize| -> Vec<u8> {
        sound.iter().enumerate().map(|(i, byte)| if i == at { byte ^ 1 } else { *byte }).collect()
    };
    let cut = [&sound[..sound.len() - 1], &sound[..20], &[], b"RLTOKENS"].map(<[u8]>::to_vec);
    for damaged in cut.into_iter().chain((0..sound.len()).step_by(29).map(flipped)) {
        std::fs::write(&entry, damaged).expect("written");
        let again = read();
        assert_eq!(again.samples, fresh.samples);
        let word = again.notices.last().expect("a word").to_string();
        assert!(word.contains("were damaged and have been rebuilt"), "{word}");
        assert_eq!(std::fs::read(&entry).expect("there"), sound, "and it is whole again");
    }
}

#[test]
fn a_cache_that_cannot_be_written_is_only_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.jsonl");
    std::fs::write(&path, LINES).expect("written");
    // A file is in the way of the folder.
    let dataset =
        files::read(&path, &tokenizer(), &OPTIONS, Some(&cache(&path.join("inside")))).expect("sound");
    assert_eq!(dataset.samples.len(), 5);
    let word = dataset.notices.last().expect("a word").to_string();
    assert!(word.contains("its tokens cannot be cached: cannot write "), "{word}");
    assert!(!Cache::new(folder.path().into()).is_worth(LINES.len()), "small files are not worth it");
}

#[test]
fn unused_entries_are_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (cache, tokenizer) = (cache(folder.path()), tokenizer());
    let dataset = parse(LINES.as_bytes(), "x", &tokenizer, &OPTIONS).expect("sound");
    for key in ["old", "used"] {
        cache.store(key, &dataset).expect("stored");
        let file = std::fs::File::options().append(true).open(folder.path().join(format!("{key}.tokens")));
        let age = std::time::Duration::from_secs(40 * 24 * 3600);
        file.and_then(|f| f.set_modified(std::time::SystemTime::now() - age)).expect("aged");
    }
    std::fs::write(folder.path().join("other"), "").expect("written");
    assert!(matches!(cache.load("used", "x"), Entry::Found(_)));
    cache.store("new", &dataset).expect("stored");
    let mut names: Vec<String> = std::fs::read_dir(folder.path())
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert_eq!(names, ["new.tokens", "other", "used.tokens"]);
}

/// Measures the cost of a large file: `cargo test --release --test host -- --ignored --nocapture hundred`, on an idle machine.
/// Uses Gemma's own vocabulary if RULLAMA_TOKENIZER_GGUF names it. Asserts nothing about time.
#[test]
#[ignore = "measures; run it by hand"]
fn a_hundred_thousand_samples_are_read_and_loaded_from_the_cache() {
    use std::fmt::Write;
    let folder = tempfile::tempdir().expect("a folder");
    let cache = cache(&folder.path().join("cache"));
    let tokenizer = match std::env::var("RULLAMA_TOKENIZER_GGUF") {
        Ok(path) => {
            Tokenizer::from_gguf(&Gguf::open(Path::new(&path)).expect("sound")).expect("its tokenizer")
        }
        Err(_) => tokenizer(),
    };
    let path = folder.path().join("big.jsonl");
    let pirate = concat!(env!("CARGO_MANIFEST_DIR"), "/datasets/pirate.jsonl");
    let known = std::fs::read_to_string(pirate).expect("the dataset");
    let mut text = String::new();
    for (i, line) in known.lines().cycle().take(100_000).enumerate() {
        // All samples differ.
        let line = line.replacen("\"content\": \"", &format!("\"content\": \"Question {i}. "), 1);
        writeln!(text, "{line}").expect("a string takes everything");
    }
    std::fs::write(&path, &text).expect("written");
    let megabytes = text.len() as f64 / 1e6;
    let timed = |threads: usize, cache: Option<&Cache>| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        let started = std::time::Instant::now();
        let dataset = pool.install(|| files::read(&path, &tokenizer, &OPTIONS, cache)).expect("sound");
        (started.elapsed().as_secs_f64(), dataset)
    };
    let (one_core, dataset) = timed(1, None);
    let (all_cores, stored) = timed(0, Some(&cache));
    let (again, opened) = timed(1, Some(&cache));
    assert!(dataset == stored && stored == opened && opened.samples.len() == 100_000);
    println!(
        "{megabytes:.1} MB: {:.2} MB/s on one core, {all_cores:.2} s on all of them with the cache written, {again:.2} s from \
         the cache",
        megabytes / one_core
    );
}
