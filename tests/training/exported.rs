//! Exports compute what the trained adapter computes: PEFT agrees on a PEFT folder (tests/golden/chat/peft_logits.py recorded
//! its logits), and every format gives the same replies.

use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::adapter::formats::{peft, rullama};
use rullama_train::adapter::lora::{Adapter, slots};
use rullama_train::adapter::{self, Format, WriteOptions};
use rullama_train::base::Base;
use rullama_train::base::Module;
use rullama_train::data::batch::{IGNORE, MicroBatch, Sample};
use rullama_train::data::template::{Message, Role, render_prompt};
use rullama_train::data::tokenizer::Tokenizer;
use rullama_train::families;
use rullama_train::gpu::Gpu;
use rullama_train::model::Model;
use rullama_train::model::plan::Recompute;
use rullama_train::talk::sampling::likeliest;
use rullama_train::train::{Capacity, Dropout, Trainer};
use safetensors::SafeTensors;

use super::chat::ADAPTER;
use super::{check, check_that, gpu};

/// As in tests/golden.rs.
const LOGITS: f64 = 2e-5;

pub fn logits(gpu: &Gpu) -> Result<(), Failed> {
    let bytes = std::fs::read("tests/golden/chat/peft_logits.safetensors").expect("a golden file");
    let file = SafeTensors::deserialize(&bytes).expect("a sound golden file");
    let data = |name: &str| file.tensor(name).expect("a tensor of that name").data().to_vec();
    let ids: Vec<u32> = data("tokens").as_chunks().0.iter().map(|&b| i64::from_le_bytes(b) as u32).collect();
    let expected: Vec<f64> =
        data("logits").as_chunks().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect();

    let base = Base::tiny().expect("the model in the program");
    let config = base.config();
    let all = slots(config, &Module::ALL);
    let first = peft::read(ADAPTER.as_ref(), config, &all)?;
    let dir = tempfile::tempdir().expect("a temporary folder");
    let dir = dir.path().join("adapter");
    let options = WriteOptions { base_model: "tiny", dropout: 0.0, fingerprint: None, vocabulary: None };
    peft::write(&dir, &first, peft::Naming::causal_lm(config), &options)?;
    let adapter = peft::read(&dir, config, &all)?;
    check_that("reading, writing and reading changes nothing", adapter == first)?;

    let model = Model::load(gpu, &base, ids.len()).expect("the model fits");
    // PEFT's logits are those of the last rows.
    let rows: Vec<u32> = (0..ids.len() as u32).rev().take(expected.len() / config.vocab).rev().collect();
    let sample = Sample { labels: vec![IGNORE; ids.len()], ids, origin: String::new(), ..Sample::default() };
    let batch = MicroBatch::pack([&sample]);
    let capacity =
        Capacity { tokens: batch.len(), longest: batch.len(), loss_tokens: rows.len(), ..Capacity::LEAST };
    let trainer = Trainer::new(gpu, &model, &adapter, capacity, Dropout::NONE, Recompute::Never)?;
    let found: Vec<f64> = block_on(trainer.logits(&batch, &rows))?.into_iter().map(f64::from).collect();
    check("logits", gpu::relative(&found, &expected), LOGITS)
}

/// Twenty questions, with a few tokens per reply.
pub fn replies(gpu: &Gpu) -> Result<(), Failed> {
    let base = Base::tiny().expect("the model in the program");
    let (config, tokenizer) = (base.config(), Tokenizer::from_gguf(base.gguf())?);
    // Without the modules that rullama's format cannot store.
    let mut adapter = peft::read(ADAPTER.as_ref(), config, &slots(config, &Module::ALL))?;
    adapter.pairs.retain(|slot, _| rullama::name(slot.module).is_some());
    // Large enough to change the replies.
    adapter.alpha *= 20.0;
    let text = std::fs::read_to_string("datasets/pirate.jsonl")?;
    let prompts: Vec<Vec<u32>> = text.lines().take(20).map(|line| prompt(line, &tokenizer, &base)).collect();
    let longest = prompts.iter().map(Vec::len).max().expect("twenty") + REPLY;
    let capacity = Capacity { tokens: longest, longest, ..Capacity::LEAST };
    let model = Model::load(gpu, &base, longest).expect("the model fits");
    let replies = |adapter: &Adapter, prompts: &[Vec<u32>]| {
        let trainer =
            Trainer::new(gpu, &model, adapter, capacity, Dropout::NONE, Recompute::Always).expect("it fits");
        prompts.iter().map(|prompt| greedy(&trainer, prompt)).collect::<Vec<_>>()
    };
    let expected = replies(&adapter, &prompts);
    check_that("the adapter has its own replies", {
        let mut nothing = adapter.clone();
        nothing.pairs.values_mut().for_each(|pair| pair.b.fill(0.0));
        replies(&nothing, &prompts[..5]) != expected[..5]
    })?;
    let dir = tempfile::tempdir().expect("a temporary folder");
    for format in Format::ALL {
        let options = WriteOptions { base_model: "tiny", dropout: 0.0, fingerprint: None, vocabulary: None };
        let path = adapter::write(dir.path(), format, &adapter, config, &options)?;
        let read = adapter::read_any(&path, config, None)?;
        // Equal numbers give equal replies; all formats but F16 must have them.
        let same = read.pairs == adapter.pairs && read.scale() as f32 == adapter.scale() as f32;
        check_that(&format!("{format:?} holds the same numbers"), same != (format == Format::GgufLoraF16))?;
        check_that(
            &format!("{format:?} gives the same replies"),
            same || replies(&read, &prompts) == expected,
        )?;
    }
    Ok(())
}

/// Maximum number of tokens per reply.
const REPLY: usize = 4;

/// The question of a conversation, with the generation prompt.
fn prompt(line: &str, tokenizer: &Tokenizer, base: &Base) -> Vec<u32> {
    let sample: serde_json::Value = serde_json::from_str(line).expect("JSON");
    let question = sample["messages"][0]["content"].as_str().expect("a question");
    let messages = [Message::new(Role::User, question)];
    render_prompt(tokenizer, families::template(base.config()), &messages).expect("sound")
}

fn greedy(trainer: &Trainer, prompt: &[u32]) -> Vec<u32> {
    let mut ids = prompt.to_vec();
    for _ in 0..REPLY {
        let sample =
            Sample { labels: vec![IGNORE; ids.len()], ids, origin: String::new(), ..Sample::default() };
        let (batch, last) = (MicroBatch::pack([&sample]), [sample.ids.len() as u32 - 1]);
        let next = likeliest(&block_on(trainer.logits(&batch, &last)).expect("it runs"));
        ids = [sample.ids, vec![next as u32]].concat();
    }
    ids.split_off(prompt.len())
}
