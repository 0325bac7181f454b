//! The first twenty steps of the chat recipe, with its own data, split, packing and order, compared with a PyTorch record.
//!
//! tests/golden/README.md, "chat/", describes how the record is made.

use std::collections::BTreeMap;
use std::path::Path;

use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::adapter::lora::{Adapter, Pair, Slot};
use rullama_train::data::batch::{Sample, Step};
use rullama_train::gpu::Gpu;
use rullama_train::model::Model;
use rullama_train::model::plan::Recompute;
use rullama_train::recipe::Recipe;
use rullama_train::run::{self, Data, OpenBase, Steps};
use rullama_train::train::StepReport;
use serde_json::{Value, json};

use super::{check, check_that, trainer};

/// If set, the test writes [`BATCHES`] first.
const WRITE: &str = "RULLAMA_WRITE_BATCHES";
const BATCHES: &str = "tests/golden/chat/batches.json";
const LOSSES: &str = "tests/golden/chat/losses.json";
pub const ADAPTER: &str = "tests/golden/chat/adapter";

/// Overrides of the recipe: the recorded adapter, rows of about three samples, two rows per step, a learning rate at which the
/// loss stays above its rounding, and a gradient norm limit that some steps reach and others do not.
const OVERRIDES: [(&str, &str); 8] = [
    ("lora.rank", "8"),
    ("lora.alpha", "16"),
    ("lora.init_from", ADAPTER),
    ("data.max_seq_len", "128"),
    ("train.gradient_accumulation_steps", "2"),
    ("train.max_steps", "20"),
    ("train.learning_rate", "1e-3"),
    ("train.max_grad_norm", "1.0"),
];

/// Absolute. PyTorch itself is within 4.3e-07 in f32.
const LOSS: f64 = 1e-4;
/// Relative. PyTorch itself is within 4.5e-07 in f32.
const GRAD_NORM: f64 = 1e-3;

/// Everything that the recipe refers to.
pub struct Chat {
    recipe: Recipe,
    frozen: OpenBase,
    pub samples: Vec<Sample>,
    pub steps: Steps,
    initial: Adapter,
}

impl Chat {
    pub fn read(further: &[(&str, &str)]) -> Chat {
        let overrides = [&OVERRIDES, further].concat();
        let recipe = Recipe::read(Path::new("recipes/chat.toml"), &overrides).expect("a sound recipe");
        let frozen = OpenBase::open(&recipe).expect("the tiny base");
        let samples = Data::read(&recipe, &frozen).expect("sound data").train;
        let steps = Steps::plan(&recipe, &samples).expect("a plan");
        let initial = run::initial_adapter(&recipe, &frozen.base).expect("a sound adapter").adapter;
        Chat { recipe, frozen, samples, steps, initial }
    }

    fn model(&self, gpu: &Gpu) -> Model<'_> {
        Model::load(gpu, &self.frozen.base, self.recipe.data.row()).expect("the model fits")
    }

    /// Trains the first `count` steps, modified by `change`. Returns the reports and the trained adapter.
    pub fn train(
        &self,
        gpu: &Gpu,
        count: usize,
        change: impl Fn(usize) -> Step,
    ) -> Result<(Vec<StepReport>, BTreeMap<Slot, Pair>), Failed> {
        let model = self.model(gpu);
        let steps: Vec<Step> = (0..count).map(change).collect();
        let references: Vec<&Step> = steps.iter().collect();
        let dropout = run::dropout(&self.recipe);
        let trainer = trainer(gpu, &model, &self.initial, &references, dropout, Recompute::Never);
        let optimizer = run::optimizer(&self.recipe);
        let mut reports = Vec::new();
        for (index, step) in steps.iter().enumerate() {
            let learning_rate = self.steps.schedule.learning_rate(index);
            reports.push(block_on(trainer.step(step, index as u64 + 1, &optimizer, learning_rate))?);
        }
        Ok((reports, block_on(trainer.adapter())?))
    }

    /// The steps in the form that tests/golden/chat/train.py reads.
    fn batches(&self) -> Value {
        let sample = |&i: &usize| {
            let sample = &self.samples[i];
            json!({ "input_ids": sample.ids, "labels": sample.labels })
        };
        let micro_batch = |rows: &Vec<usize>| rows.iter().map(sample).collect::<Value>();
        self.steps.plans.iter().map(|plan| plan.iter().map(micro_batch).collect::<Value>()).collect()
    }

    /// The settings that train.py must have used.
    fn settings(&self) -> Value {
        let (t, schedule) = (&self.recipe.train, &self.steps.schedule);
        json!({
            "learning_rate": t.learning_rate, "total_steps": schedule.total_steps,
            "warmup_steps": schedule.warmup_steps, "min_lr_ratio": t.min_lr_ratio, "beta1": t.adam_beta1,
            "beta2": t.adam_beta2, "eps": t.adam_epsilon, "weight_decay": t.weight_decay,
            "max_grad_norm": t.max_grad_norm, "dtype": "float64", "rank": self.initial.rank,
            "lora_alpha": self.initial.alpha,
        })
    }
}

fn read(path: &str) -> Value {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    serde_json::from_slice(&bytes).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Whole numbers are equal in any notation.
fn alike(a: &Value, b: &Value) -> bool {
    a == b || (a.is_number() && a.as_f64() == b.as_f64())
}

pub fn twenty_steps(gpu: &Gpu) -> Result<(), Failed> {
    let chat = Chat::read(&[]);
    let batches = chat.batches();
    if std::env::var_os(WRITE).is_some() {
        let lines: Vec<String> = batches.as_array().expect("steps").iter().map(Value::to_string).collect();
        std::fs::write(BATCHES, format!("[\n{}\n]\n", lines.join(",\n"))).expect("a writable checkout");
    }
    let again = "make the record again as tests/golden/README.md says under \"chat/\"";
    check_that(&format!("the recipe gives the steps of {BATCHES}; {again}"), batches == read(BATCHES))?;
    let record = read(LOSSES);
    for (name, value) in chat.settings().as_object().expect("settings") {
        let found = &record["settings"][name];
        let what = format!("{name} is {value} in {LOSSES}, as in the recipe, and not {found}; {again}");
        check_that(&what, alike(found, value))?;
    }

    let expected = record["steps"].as_array().expect("steps");
    assert_eq!(expected.len(), 20);
    let (reports, _) = chat.train(gpu, 20, |i| chat.steps.step(&chat.samples, i))?;
    let (mut worst_loss, mut worst_norm, mut clipped) = (0.0, 0.0, 0);
    for (i, (report, expected)) in reports.iter().zip(expected).enumerate() {
        let number = |name: &str| expected[name].as_f64().expect("a number");
        let loss = (report.loss - number("loss")).abs();
        let norm = (report.grad_norm - number("grad_norm")).abs() / number("grad_norm");
        println!("step {}: loss {:.7}, off by {loss:.1e}; norm {:.5}", i + 1, report.loss, report.grad_norm);
        check_that(&format!("step {} has a finite loss and norm", i + 1), (loss + norm).is_finite())?;
        (worst_loss, worst_norm) = (f64::max(worst_loss, loss), f64::max(worst_norm, norm));
        clipped += usize::from(number("grad_norm") > chat.recipe.train.max_grad_norm);
        let rate = chat.steps.schedule.learning_rate(i);
        // Both are f64; the last bit of a cosine may differ.
        check(&format!("learning rate of step {}", i + 1), (rate - number("learning_rate")).abs(), 1e-17)?;
    }
    check("worst loss", worst_loss, LOSS)?;
    check("worst gradient norm", worst_norm, GRAD_NORM)?;
    check_that("some steps are clipped and some are not", (3..=17).contains(&clipped))
}
