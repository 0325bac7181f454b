//! Datasets in every container, and the cache of their tokens.

use std::fs;
use std::io::Write;
use std::sync::OnceLock;

use rullama_train::data::dataset::cache::{Cache, Entry};
use rullama_train::data::dataset::{Dataset, Options, parse};
use rullama_train::data::template::Template;
use rullama_train::families::gemma4;
use sha2::{Digest, Sha256};

use super::files::folder;
use super::samples::{LINES, objects};
use super::{Outcome, accepted_if, refused, tokenizer};

static TEMPLATE: Template = Template::BuiltIn(&gemma4::template::SMALL);
const MAX_SEQ_LEN: usize = 1024;

fn options() -> Options<'static> {
    let teacher_prompt = Some("{prompt}\n\n{context}");
    Options { max_seq_len: MAX_SEQ_LEN, max_file_size: 16 << 20, teacher_prompt, ..Options::new(&TEMPLATE) }
}

pub fn lines() -> Vec<Vec<u8>> {
    [vec![LINES.into()], objects().into_iter().map(|line| line.as_bytes().to_vec()).collect()].concat()
}

pub fn arrays() -> Vec<Vec<u8>> {
    vec![format!("[{}]", objects().join(",\n")).into()]
}

pub fn gzips() -> Vec<Vec<u8>> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    out.write_all(LINES.as_bytes()).expect("in memory");
    vec![out.finish().expect("in memory")]
}

pub fn zstds() -> Vec<Vec<u8>> {
    let mut out = zstd::Encoder::new(Vec::new(), 3).expect("in memory");
    out.include_checksum(true).expect("supported");
    out.write_all(LINES.as_bytes()).expect("in memory");
    vec![out.finish().expect("in memory")]
}

pub fn parquets() -> Vec<Vec<u8>> {
    vec![
        include_bytes!("../../../tests/fixtures/dataset/messages.parquet").to_vec(),
        include_bytes!("../../../tests/fixtures/dataset/text.parquet").to_vec(),
    ]
}

/// Each sample has a label per token, tokens of the vocabulary, a loss, and no more tokens than allowed.
pub fn read(input: &[u8]) -> Outcome {
    match parse(input, "x", tokenizer(), &options()) {
        Ok(dataset) => samples(&dataset),
        Err(error) => refused(error),
    }
}

fn samples(dataset: &Dataset) -> Outcome {
    let vocab = tokenizer().vocab_size() as u32;
    let wrong = dataset.samples.iter().find(|sample| {
        let known = sample.ids.iter().all(|&id| id < vocab)
            && sample.labels.iter().all(|&label| label < vocab as i32);
        let fits = sample.ids.len() == sample.labels.len() && sample.ids.len() <= MAX_SEQ_LEN;
        !known || !fits || sample.loss_tokens() == 0
    });
    accepted_if(wrong.is_none() && !dataset.samples.is_empty(), || format!("{wrong:?}"))
}

fn sound() -> &'static (Dataset, Vec<u8>) {
    static SOUND: OnceLock<(Dataset, Vec<u8>)> = OnceLock::new();
    SOUND.get_or_init(|| {
        let dataset = parse(LINES.as_bytes(), "x", tokenizer(), &options()).expect("sound");
        let dir = tempfile::tempdir().expect("a folder");
        let cache = Cache { dir: dir.path().to_owned(), least_bytes: 0 };
        cache.store("key", &dataset).expect("written");
        (dataset, fs::read(dir.path().join("key.tokens")).expect("written"))
    })
}

pub fn caches() -> Vec<Vec<u8>> {
    vec![sound().1.clone()]
}

/// Bytes before the contents of an entry: the magic word and the digest.
const BEFORE: usize = 8 + 32;

pub fn cache_contents() -> Vec<Vec<u8>> {
    vec![sound().1[BEFORE..].to_vec()]
}

fn load(entry: &[u8]) -> Option<Dataset> {
    let cache = Cache { dir: folder(&[("key.tokens", Some(entry))]), least_bytes: 0 };
    match cache.load("key", "x") {
        Entry::Found(dataset) => Some(dataset),
        _ => None,
    }
}

/// A damaged entry is never used.
pub fn cache(input: &[u8]) -> Outcome {
    match load(input) {
        Some(dataset) => accepted_if(dataset == sound().0, || "other samples".into()),
        None => Outcome::Refused("damaged".into()),
    }
}

/// An entry with a right digest over any contents.
pub fn cache_content(input: &[u8]) -> Outcome {
    let entry = [&sound().1[..8], &Sha256::digest(input), input].concat();
    match load(&entry) {
        Some(dataset) => {
            let fits = dataset.samples.iter().all(|sample| sample.ids.len() == sample.labels.len());
            accepted_if(fits, || "tokens without labels".into())
        }
        None => Outcome::Refused("damaged".into()),
    }
}
