//! Decoding over the key-value cache gives the training forward's logits, however the tokens are divided into passes.
//!
//! `RULLAMA_MODELS` names further GGUF files to check, separated by colons.

use std::ops::ControlFlow;
use std::path::Path;

use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::adapter::formats::peft;
use rullama_train::adapter::lora::{Adapter, slots};
use rullama_train::adapter::merge::{self, MergeType};
use rullama_train::base::Module;
use rullama_train::base::{Base, Gguf};
use rullama_train::data::batch::{IGNORE, MicroBatch, Sample};
use rullama_train::data::tokenizer::Special;
use rullama_train::gpu::{Gpu, GpuOptions, Tier};
use rullama_train::model::Model;
use rullama_train::model::decode::{Decoder, Lengths, Scoring, Workspace};
use rullama_train::model::plan::Recompute;
use rullama_train::run::OpenBase;
use rullama_train::talk::generate::{Finish, Generator, Options, Reply};
use rullama_train::talk::sampling::{Sampling, likeliest};
use rullama_train::train::{Capacity, Dropout, Trainer};

use super::golden::{self, Golden};
use super::{check, check_that, gpu};

/// Both sides sum f32 in different orders: about 1e-6.
const LOGITS: f64 = 1e-5;

/// As in tests/golden.rs.
const HALF: f64 = 1e-2;
/// For mixtures, where some kernels multiply in f16 and others in f32, and the router may choose another expert: 8.5e-2 was
/// seen.
const HALF_MIXTURE: f64 = 1e-1;

/// A model, an adapter and a sequence.
pub(super) struct Case {
    pub name: String,
    pub base: Base,
    pub adapter: Adapter,
    pub ids: Vec<u32>,
}

pub fn golden_case(name: &str) -> Case {
    let g = Golden::read(&Path::new("tests/golden").join(name));
    Case { name: name.into(), adapter: g.adapter.clone(), ids: g.first.ids.clone(), base: g.base }
}

/// The golden models, which together cover every part, and the tiny one with an adapter of large effect.
pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = golden::FOLDERS.into_iter().map(golden_case).collect();
    let base = Base::tiny().expect("the model in the program");
    let adapter = random_adapter(&base, 6, 7);
    // Longer than its window of 64.
    let text = "<bos><|turn>user\nWhat is the capital of Peru?<turn|>\n<|turn>model\nThe capital of Peru is Lima.<turn|>\n";
    let ids = OpenBase::named("tiny", &rullama_train::recipe::Template::Auto)
        .expect("the model in the program")
        .tokenizer
        .encode(&text.repeat(3), Special::Parse);
    cases.push(Case { name: "tiny".into(), base, adapter, ids });
    let further = std::env::var_os("RULLAMA_MODELS").unwrap_or_default();
    for path in std::env::split_paths(&further).filter(|p| !p.as_os_str().is_empty()) {
        let name = path.display().to_string();
        let base = Base::open(&name).expect("a model");
        let adapter = random_adapter(&base, 16, 7);
        cases.push(Case { name, base, adapter, ids: (0..20).map(|i| 500 + i * 1009).collect() });
    }
    cases
}

/// An adapter whose `B` is as large as its `A`.
pub fn random_adapter(base: &Base, rank: usize, seed: u64) -> Adapter {
    let mut adapter = Adapter::init(&slots(base.config(), &Module::ALL), rank, rank as f64, false, seed);
    for pair in adapter.pairs.values_mut() {
        let (a, len) = (pair.a.clone(), pair.a.len());
        pair.b.iter_mut().enumerate().for_each(|(i, b)| *b = a[i * 31 % len]);
    }
    adapter
}

/// The training forward's logits of every token of a sequence, `[T, V]`.
pub fn training_logits(gpu: &Gpu, model: &Model, adapter: &Adapter, ids: &[u32]) -> Vec<f64> {
    let sample = Sample {
        labels: vec![IGNORE; ids.len()],
        ids: ids.to_vec(),
        origin: String::new(),
        ..Sample::default()
    };
    let batch = MicroBatch::pack([&sample]);
    let rows: Vec<u32> = (0..ids.len() as u32).collect();
    let capacity =
        Capacity { tokens: ids.len(), longest: ids.len(), loss_tokens: ids.len(), ..Capacity::LEAST };
    let trainer = Trainer::new(gpu, model, adapter, capacity, Dropout::NONE, Recompute::Never);
    let logits = block_on(trainer.expect("the buffers fit").logits(&batch, &rows));
    logits.expect("a sound pass").into_iter().map(f64::from).collect()
}

/// The kernels of passes of every length are compiled ahead. A kernel that a reply compiles itself delays it, and those that wait.
pub fn compiled_ahead(gpu: &Gpu) -> Result<(), Failed> {
    for case in
        cases().into_iter().filter(|case| ["moe", "qwen35", "qwen35moe", "tiny"].contains(&&*case.name))
    {
        // A device that has compiled nothing.
        let fresh = block_on(Gpu::open(GpuOptions::default()))?.with_kernels(gpu.kernels());
        let model = Model::load(&fresh, &case.base, 64).expect("the model fits");
        let workspace =
            Workspace::new(&fresh, &model, Lengths { context: 64, chunk: 32 }, case.adapter.rank)?;
        let mut decoder = Decoder::new(&workspace, Some(&case.adapter))?;
        let new = decoder.compile()?;
        let scoring = Scoring::new(&workspace, 2)?;
        let new = new + decoder.compile_scores(&scoring)?;
        check_that(&format!("{}: {new} compiled", case.name), new > 10 && new == fresh.compiled())?;
        for rows in [1, 2, 3, 5, 8, 9, 15, 17] {
            decoder.rewind(0);
            block_on(decoder.logits(&case.ids[..rows]))?;
            block_on(decoder.likeliest(&case.ids[..1]))?;
            block_on(decoder.scores(
                &case.ids[..rows],
                &case.ids[..rows],
                &scoring,
                model.config().vocab,
                2,
            ))?;
            let late = fresh.compiled() - new;
            check_that(&format!("{}: {late} compiled for {rows} tokens", case.name), late == 0)?;
        }
    }
    Ok(())
}

/// Ways to divide a sequence: the sizes of the first passes, then single tokens; and the maximum pass size, which also decides
/// when the rings of sliding-window layers wrap. Passes of one to eight tokens and longer passes use different kernels.
const WAYS: [(usize, usize); 4] = [(7, 8), (1, 2), (100, 9), (60, 32)];

/// Compares every row's logits with the training forward: with the adapter unmerged, divided in three ways, and for the base in
/// a fourth.
pub fn against_training(gpu: &Gpu) -> Result<(), Failed> {
    compare(gpu, cases(), &WAYS[1..], &WAYS[..1])
}

/// The families with parts of their own in decoding, in one way.
pub fn kin(gpu: &Gpu) -> Result<(), Failed> {
    let names = [
        "lfm2moe",
        "qwen2moe",
        "smollm3",
        "mistral3",
        "gemma2",
        "exaone4",
        "olmo2",
        "lfm2",
        "ernie4_5",
        "glm4",
        "phi3",
        "hunyuan-dense",
        "deepseek2",
        "glm4moelite",
    ];
    compare(gpu, names.into_iter().map(golden_case).collect(), &WAYS[..1], &[])
}

/// Like [`against_training`], with the keys of every attention split over workgroups.
pub fn keys_split(gpu: &Gpu) -> Result<(), Failed> {
    compare(&gpu.with_kernels(gpu.kernels().filling(1 << 20)), cases(), &WAYS[..1], &[])
}

/// Long passes with f16 operands, compared with the training forward with f16 operands: both round, but at different places.
pub fn in_f16(gpu: &Gpu) -> Result<(), Failed> {
    compare(gpu, cases(), &WAYS[2..], &WAYS[3..])
}

/// Single tokens, with products in bytes wherever formats have them.
pub fn in_bytes(gpu: &Gpu) -> Result<(), Failed> {
    compare(&gpu.with_kernels(gpu.kernels().filling(2)), cases(), &WAYS[..1], &WAYS[..1])
}

fn compare(
    gpu: &Gpu,
    cases: Vec<Case>,
    adapted: &[(usize, usize)],
    base: &[(usize, usize)],
) -> Result<(), Failed> {
    for case in cases {
        let model = Model::load(gpu, &case.base, 128)?;
        let mixture = case.base.config().layers.iter().any(|l| l.experts.is_some());
        let mut without = case.adapter.clone();
        without.pairs.values_mut().for_each(|pair| pair.b.fill(0.0));
        for (what, ways, adapter, trained) in
            [("adapter", adapted, Some(&case.adapter), &case.adapter), ("base", base, None, &without)]
        {
            let expected = training_logits(gpu, &model, trained, &case.ids);
            let expected: Vec<&[f64]> = expected.chunks(model.config().vocab).collect();
            let mut worst = 0f64;
            for &(first, chunk) in ways {
                let workspace =
                    Workspace::new(gpu, &model, Lengths { context: 100, chunk }, case.adapter.rank)?;
                let mut decoder = Decoder::new(&workspace, adapter)?;
                for (from, to) in passes(case.ids.len(), first, chunk) {
                    let found = block_on(decoder.logits(&case.ids[from..to]))?;
                    let found: Vec<f64> = found.into_iter().map(f64::from).collect();
                    // Written so that NaN stays.
                    let relative = gpu::relative(&found, expected[to - 1]);
                    worst = if relative > worst || relative.is_nan() { relative } else { worst };
                }
                check(
                    &format!("{}, {what}, {first} at first, at most {chunk}", case.name),
                    worst,
                    match (gpu.kernels().tier(), mixture) {
                        (Tier::F32, _) => LOGITS,
                        (Tier::Coop8, true) => HALF_MIXTURE,
                        _ => HALF,
                    },
                )?;
            }
        }
    }
    Ok(())
}

/// Runs the first `first` tokens in passes of at most `chunk`, and the rest one by one.
fn passes(len: usize, first: usize, chunk: usize) -> Vec<(usize, usize)> {
    let first = first.min(len);
    let starts = (0..first).step_by(chunk).map(|from| (from, (from + chunk).min(first)));
    starts.chain((first..len).map(|i| (i, i + 1))).collect()
}

/// Rewinding and continuing with other tokens gives the logits of a sequence of only these tokens, bit-identical if the passes
/// are the same.
pub fn rewind(gpu: &Gpu) -> Result<(), Failed> {
    let base = Base::tiny().expect("the model in the program");
    let model = Model::load(gpu, &base, 256)?;
    let workspace = Workspace::new(gpu, &model, Lengths { context: 256, chunk: 16 }, 0)?;
    let (mut decoder, mut fresh) = (Decoder::new(&workspace, None)?, Decoder::new(&workspace, None)?);
    let ids: Vec<u32> = (0..200).map(|i| 300 + i * 17 % 1500).collect();
    for chunk in ids[..160].chunks(16) {
        block_on(decoder.append(chunk))?;
        block_on(fresh.append(chunk))?;
    }
    for chunk in ids[160..190].chunks(10) {
        block_on(decoder.append(chunk))?;
    }
    check_that("190 tokens are in", decoder.len() == 190)?;
    check_that("thirty tokens can be taken back", decoder.rewind(160) == 160)?;
    let (found, expected) = (block_on(decoder.logits(&[7])), block_on(fresh.logits(&[7])));
    check_that("going back and on equals never having gone further", found? == expected?)?;
    // The ring of 64 + 2·16 rows has seen 190 tokens: it starts at 94, the first token that token 157 no longer sees.
    check_that("what the ring still has stays", decoder.rewind(157) == 157)?;
    check_that("what the ring has lost begins anew", decoder.rewind(156) == 0)?;
    check_that("an empty sequence is empty", decoder.is_empty() && decoder.rewind(5) == 0)?;
    block_on(decoder.append(&ids[..16]))?;
    check_that("after that it counts from the start", decoder.rewind(100) == 16)
}

/// Greedy replies with the adapter unmerged agree with the training forward's likeliest tokens, and with a base into which the
/// adapter was merged in F32.
pub fn greedy(gpu: &Gpu) -> Result<(), Failed> {
    let base = Base::tiny().expect("the model in the program");
    let config = base.config();
    let mut adapter = peft::read(super::chat::ADAPTER.as_ref(), config, &slots(config, &Module::ALL))?;
    adapter.alpha *= -16.0; // enough to change the replies
    let frozen = OpenBase::named("tiny", &rullama_train::recipe::Template::Auto)?;
    let model = Model::load(gpu, &base, 128)?;
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("merged.gguf");
    merge::write(&file, &base, &adapter, MergeType::from_name("f32").expect("a type"), |_| {})?;
    let whole = Base::from_gguf(Gguf::open(&file)?, "merged")?;
    let merged = Model::load(gpu, &whole, 128)?;

    let lengths = Lengths { context: 128, chunk: 64 };
    let options =
        Options { sampling: Sampling::GREEDY, max_new_tokens: 30, stop: Vec::new(), logprobs: None };
    let workspaces = [(&model, adapter.rank), (&merged, 0)];
    let [workspace, merged] = workspaces.map(|(model, rank)| Workspace::new(gpu, model, lengths, rank));
    let (workspace, merged) = (workspace?, merged?);
    // Several conversations in turn in the same caches.
    let mut with = Generator::new(&workspace, &frozen.tokenizer, Some(&adapter))?;
    let mut without = Generator::new(&workspace, &frozen.tokenizer, None)?;
    let mut whole = Generator::new(&merged, &frozen.tokenizer, None)?;
    let reply = |generator: &mut Generator, prompt: &[u32]| -> Result<Reply, Failed> {
        Ok(block_on(generator.reply(prompt, &options, |_| ControlFlow::Continue(())))?)
    };
    let mut changed = 0;
    for message in ["Hello!", "What is 7 plus 8?", "Spell the word river."] {
        let prompt = frozen.prompt(message)?;
        let unmerged = reply(&mut with, &prompt)?;
        let of_base = reply(&mut without, &prompt)?;
        changed += usize::from(unmerged.ids != of_base.ids);
        check_that(
            "it says something and ends",
            !unmerged.ids.is_empty() && unmerged.finish == Finish::Stop,
        )?;
        check_that("the merged base says the same", reply(&mut whole, &prompt)?.ids == unmerged.ids)?;
        let sequence = [&prompt[..], &unmerged.ids].concat();
        let logits = training_logits(gpu, &model, &adapter, &sequence);
        let of_token = |i: usize| &logits[i * config.vocab..][..config.vocab];
        for (i, id) in unmerged.ids.iter().enumerate() {
            let row: Vec<f32> = of_token(prompt.len() - 1 + i).iter().map(|&l| l as f32).collect();
            check_that("the training forward thinks the same", likeliest(&row) == *id as usize)?;
        }
        let row: Vec<f32> = of_token(sequence.len() - 1).iter().map(|&l| l as f32).collect();
        let last = likeliest(&row) as u32;
        check_that("the training forward ends there too", frozen.tokenizer.eos().contains(&last))?;
    }
    check_that("the adapter changes the replies", changed > 0)
}

/// Both models with delta nets, a dense one and a mixture with a shared expert, and one with short convolutions.
pub fn states(gpu: &Gpu) -> Result<(), Failed> {
    ["qwen35", "qwen35moe", "lfm2"].into_iter().try_for_each(|name| state(gpu, name))
}

/// Greedy replies of a model with states, to prompts around the chunks of delta nets, with the adapter unmerged and merged: each token's logits
/// are those of the training forward. A state takes no token back: rewinding begins anew.
fn state(gpu: &Gpu, name: &str) -> Result<(), Failed> {
    let g = Golden::read(&Path::new("tests/golden").join(name));
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("merged.gguf");
    merge::write(&file, &g.base, &g.adapter, MergeType::from_name("f32").expect("a type"), |_| {})?;
    let whole = Base::from_gguf(Gguf::open(&file)?, "merged")?;
    let (model, merged) = (Model::load(gpu, &g.base, 256)?, Model::load(gpu, &whole, 256)?);
    let lengths = Lengths { context: 256, chunk: 128 };
    let workspace = Workspace::new(gpu, &model, lengths, g.adapter.rank)?;
    let of_merged = Workspace::new(gpu, &merged, lengths, 0)?;
    let mut unmerged = Decoder::new(&workspace, Some(&g.adapter))?;
    let mut merged = Decoder::new(&of_merged, None)?;
    let vocab = model.config().vocab;
    for prompt in [1, 63, 64, 65, 200] {
        let mut ids: Vec<u32> = (0..prompt).map(|i| (i * 31 + 7) % vocab as u32).collect();
        let (first, mut rows) = (ids.len() - 1, Vec::new());
        for decoder in [&mut unmerged, &mut merged] {
            let all_but_one = decoder.len().saturating_sub(1);
            check_that("a sequence begins anew", decoder.rewind(all_but_one) == 0)?;
        }
        let mut next = 0;
        for _ in 0..6 {
            let chunks: Vec<&[u32]> = ids[next..].chunks(lengths.chunk).collect();
            let (last, before) = chunks.split_last().expect("there is a next token");
            for chunk in before {
                block_on(unmerged.append(chunk))?;
                block_on(merged.append(chunk))?;
            }
            let (row, of_merged) = (block_on(unmerged.logits(last))?, block_on(merged.logits(last))?);
            check_that("the merged base says the same", likeliest(&row) == likeliest(&of_merged))?;
            next = ids.len();
            ids.push(likeliest(&row) as u32);
            rows.extend(row.into_iter().map(f64::from));
        }
        check_that("nothing is taken back", unmerged.rewind(next) == next)?;
        let expected = training_logits(gpu, &model, &g.adapter, &ids[..next]);
        let worst = gpu::relative(&rows, &expected[first * vocab..]);
        check(&format!("a prompt of {prompt} tokens"), worst, LOGITS)?;
    }
    Ok(())
}
