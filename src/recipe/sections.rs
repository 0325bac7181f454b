//! The keys of each section, with their types, ranges and defaults.

use std::path::PathBuf;
use std::str::FromStr;

use super::error::RecipeError;
use super::fields::Section;
use super::objective;
use super::source::Source;
use super::{
    BestMetric, Data, DataFormat, DataSource, Device, Eval, Invalid, Log, Lora, LrScheduler, Metric, Model,
    OptimizerKind, Output, Overlong, Recipe, Switch, Template, Train, TrainOn,
};
use crate::adapter::Format;
use crate::adapter::lora::is_valid_scale;
use crate::families;
use crate::gpu::{Backend, KernelSetting};

/// Reads every section.
pub(super) fn all(source: &Source) -> Result<Recipe, RecipeError> {
    let data = data(&source.section("data"))?;
    let train = train(&source.section("train"))?;
    objective::check(&source.section("data"), &data, train.objective.name)?;
    let validates = data.val_size > 0.0 || !data.valid.is_empty();
    Ok(Recipe {
        model: model(&source.section("model"))?,
        lora: lora(&source.section("lora"))?,
        data,
        train,
        eval: eval(&source.section("eval"), validates)?,
        output: output(&source.section("output"))?,
        log: log(&source.section("log"))?,
        device: device(&source.section("device"))?,
    })
}

fn model(section: &Section) -> Result<Model, RecipeError> {
    let example = families::ALL[0].example;
    let expected = format!("\"tiny\", an Ollama tag such as \"{example}\", or the path of a .gguf file");
    Ok(Model {
        base: section.text("base")?.ok_or_else(|| section.missing("base", &expected))?,
        fingerprint: section.parsed("fingerprint")?,
    })
}

fn lora(section: &Section) -> Result<Lora, RecipeError> {
    let rank = section.count("rank", 16, 1)?;
    let rslora = section.boolean("rslora", false)?;
    let valid = |alpha| alpha > 0.0 && is_valid_scale(alpha);
    Ok(Lora {
        rank,
        alpha: section.number("alpha", 2.0 * rank as f64, "a number > 0 that f32 can hold", valid)?,
        rslora,
        dropout: section.number("dropout", 0.0, "a number from 0 to below 1", |x| (0.0..1.0).contains(&x))?,
        target_modules: section.target_modules("target_modules")?,
        layers: section.layers("layers")?,
        rank_pattern: section.rank_pattern("rank_pattern")?,
        init_from: section.adapters("init_from")?,
        allow_other_base: section.boolean("allow_other_base", false)?,
    })
}

/// Keys of `[[data.sources]]`.
const SOURCE_KEYS: [&str; 5] = ["path", "weight", "format", "train_on", "fields"];

fn data(section: &Section) -> Result<Data, RecipeError> {
    let valid = section.paths("valid")?.unwrap_or_default();
    let default_size = if valid.is_empty() { 0.05 } else { 0.0 };
    let sizes = "0 (none), a fraction below 1, or a whole count";
    let val_size = section.number("val_size", default_size, sizes, |x| {
        (0.0..1.0).contains(&x) || (x >= 1.0 && x.fract() == 0.0)
    })?;
    if !valid.is_empty() && val_size > 0.0 {
        return Err(section
            .conflict("val_size", "`valid` already names the validation samples; remove one of the two"));
    }
    let format = section.choice("format", DataFormat::Auto)?;
    let train_on = section.choice("train_on", TrainOn::Assistant)?;
    let fields = section.renames("fields")?.unwrap_or_default();
    let sources = section.tables("sources", &SOURCE_KEYS, |source| {
        let expected = "a file, a folder or a pattern such as \"data/*.jsonl\"";
        Ok(DataSource {
            path: source.text("path")?.ok_or_else(|| source.missing("path", expected))?.into(),
            weight: source.number("weight", 1.0, "a number > 0, at most 1000", |x| x > 0.0 && x <= 1000.0)?,
            format: source.choice("format", format)?,
            train_on: source.choice("train_on", train_on)?,
            fields: source.renames("fields")?.unwrap_or_else(|| fields.clone()),
        })
    })?;
    let train = section.paths("train")?;
    if train.is_some() && !sources.is_empty() {
        return Err(section.conflict("sources", "`train` already names the samples; remove one of the two"));
    }
    let expected = "a file of samples, a folder or a pattern such as \"data/*.jsonl\", or a list of them";
    if train.is_none() && sources.is_empty() {
        return Err(section.missing("train", expected));
    }
    Ok(Data {
        train: train.unwrap_or_default(),
        valid,
        val_size,
        format,
        fields,
        system: section.text("system")?,
        template: match section.text("template")?.as_deref() {
            None => Template::Auto,
            Some(name) => Template::from_name(name),
        },
        train_on,
        max_seq_len: section.optional_count("max_seq_len", 2)?,
        overlong: section.choice("overlong", Overlong::Error)?,
        invalid: section.choice("invalid", Invalid::Error)?,
        packing: section.boolean("packing", true)?,
        shuffle: section.boolean("shuffle", true)?,
        cache: section.cache("cache")?,
        max_file_size: section.number("max_file_size", 0.5, "a number > 0 (GiB)", |x| x > 0.0)?,
        sources,
    })
}

fn train(section: &Section) -> Result<Train, RecipeError> {
    let fraction =
        |key, default| section.number(key, default, "a number from 0 to 1", |x| (0.0..=1.0).contains(&x));
    // The optimizer computes in f32, where a number close to 1 is 1 and one close to 0 is 0.
    let beta = |key, default| {
        section.number(key, default, "a number from 0 to below 1", |x| x >= 0.0 && (x as f32) < 1.0)
    };
    let positive = |key, default| section.number(key, default, "a number > 0", |x| x > 0.0);
    let not_negative = |key, default| section.number(key, default, "a number >= 0", |x| x >= 0.0);
    let warmup_steps = section.optional_count("warmup_steps", 0)?;
    let warmup_ratio = fraction("warmup_ratio", if warmup_steps.is_some() { 0.0 } else { 0.05 })?;
    if warmup_steps.is_some() && warmup_ratio > 0.0 {
        return Err(section
            .conflict("warmup_ratio", "`warmup_steps` already sets the warm-up; remove one of the two"));
    }
    let gradient_checkpointing = section.switch("gradient_checkpointing")?;
    let memory_limit = section.has("memory_limit").then(|| positive("memory_limit", 1.0)).transpose()?;
    if memory_limit.is_some() && gradient_checkpointing != Switch::Auto {
        let message = "`gradient_checkpointing` already decides what is kept; remove one of the two";
        return Err(section.conflict("memory_limit", message));
    }
    let accumulation = section.count("gradient_accumulation_steps", 1, 1)?;
    let shares = section.optional_count("shares", 1)?;
    if shares.is_some_and(|shares| shares > accumulation) {
        let message = format!(
            "a step has only `gradient_accumulation_steps` = {accumulation} micro-batches; lower it, or raise that key"
        );
        return Err(section.conflict("shares", &message));
    }
    let objective = objective::keys(section)?;
    Ok(Train {
        seed: section.integer("seed", 42, 0)?,
        epochs: section.count("epochs", 3, 1)?,
        max_steps: section.optional_count("max_steps", 1)?,
        objective,
        batch_size: section.count("batch_size", 1, 1)?,
        gradient_accumulation_steps: accumulation,
        shares,
        optimizer: section.choice("optimizer", OptimizerKind::Adamw)?,
        learning_rate: positive("learning_rate", if objective.name.is_sft() { 2e-4 } else { 1e-5 })?,
        adam_beta1: beta("adam_beta1", 0.9)?,
        adam_beta2: beta("adam_beta2", 0.999)?,
        adam_epsilon: section.number(
            "adam_epsilon",
            1e-8,
            "a number >= 1e-30, which f32 holds, and <= 1",
            |x| (1e-30..=1.0).contains(&x),
        )?,
        lr_scheduler: section.choice("lr_scheduler", LrScheduler::Cosine)?,
        min_lr_ratio: fraction("min_lr_ratio", 0.0)?,
        warmup_ratio,
        warmup_steps,
        weight_decay: not_negative("weight_decay", 0.0)?,
        max_grad_norm: not_negative("max_grad_norm", 1.0)?,
        gradient_checkpointing,
        memory_limit,
        offload_experts: section.switch("offload_experts")?,
        max_skipped_steps: section.count("max_skipped_steps", 0, 0)?,
        stop_if_diverged: section.boolean("stop_if_diverged", true)?,
    })
}

/// Reads `[eval]`; `validates`: whether there are validation samples.
fn eval(section: &Section, validates: bool) -> Result<Eval, RecipeError> {
    let steps = section.count("steps", 0, 0)?;
    let early_stopping_patience = section.count("early_stopping_patience", 0, 0)?;
    if early_stopping_patience > 0 && steps == 0 {
        let message = "it counts evaluations, but eval.steps is 0; set eval.steps, or remove this key";
        return Err(section.conflict("early_stopping_patience", message));
    }
    let metrics = metrics(section)?;
    let keep_best = section.boolean("keep_best", validates)?;
    if keep_best && !validates {
        let message = "it compares validation losses, but there are no validation samples; set data.valid or data.val_size, or \
                       remove this key";
        return Err(section.conflict("keep_best", message));
    }
    Ok(Eval {
        steps,
        samples: section.texts("samples")?.unwrap_or_default(),
        max_new_tokens: section.count("max_new_tokens", 64, 1)?,
        general: section.boolean("general", true)?,
        metrics: metrics.names,
        metric_samples: metrics.samples,
        regex: metrics.pattern,
        best_metric: metrics.best,
        keep_best,
        early_stopping_patience,
    })
}

/// The keys of `[eval]` that are about metrics.
struct Metrics {
    names: Vec<Metric>,
    samples: Option<usize>,
    pattern: Option<String>,
    best: BestMetric,
}

fn metrics(section: &Section) -> Result<Metrics, RecipeError> {
    let names: Vec<Metric> = section.choices("metrics", &[])?;
    let pattern = section.text("regex")?;
    match (&pattern, names.contains(&Metric::Regex)) {
        (None, true) => {
            let message = "\"regex\" needs a pattern: set eval.regex, such as '^(yes|no)$'";
            return Err(section.conflict("metrics", message));
        }
        (Some(_), false) => {
            let message =
                "it is the pattern of the metric \"regex\": add that to eval.metrics, or remove this key";
            return Err(section.conflict("regex", message));
        }
        (Some(pattern), true) => {
            // The syntax error ends with the reason; before it, the pattern is drawn over several lines.
            let reason =
                |error: regex::Error| error.to_string().lines().last().unwrap_or_default().to_owned();
            let error = |e| {
                section.conflict("regex", &format!("{pattern:?} is not a regular expression: {}", reason(e)))
            };
            regex::Regex::new(pattern).map_err(error)?;
        }
        (None, false) => {}
    }
    if section.has("metric_samples") && names.is_empty() {
        return Err(
            section.conflict("metric_samples", "there are no eval.metrics; set them, or remove this key")
        );
    }
    let samples = section.count("metric_samples", 50, 1)?;
    let samples = (!names.is_empty()).then_some(samples);
    let best = section.choice("best_metric", BestMetric::Loss)?;
    if let Some(metric) = best.metric().filter(|metric| !names.contains(metric)) {
        let message = format!("eval.metrics does not have it; add {:?} there", metric.name());
        return Err(section.conflict("best_metric", &message));
    }
    Ok(Metrics { names, samples, pattern, best })
}

fn output(section: &Section) -> Result<Output, RecipeError> {
    let dir =
        section.text("dir")?.ok_or_else(|| section.missing("dir", "the folder for the files of the run"))?;
    Ok(Output {
        dir: PathBuf::from(dir),
        export: section.choices("export", &[Format::Peft])?,
        base_model_name: section.text("base_model_name")?,
        ollama: section.parsed::<OllamaName>("ollama")?.map(|name| name.0),
        save_steps: section.count("save_steps", 50, 0)?,
        save_total_limit: section.count("save_total_limit", 2, 1)?,
    })
}

fn log(section: &Section) -> Result<Log, RecipeError> {
    Ok(Log { csv: section.boolean("csv", false)?, hook: section.text("hook")? })
}

fn device(section: &Section) -> Result<Device, RecipeError> {
    Ok(Device {
        backend: section.choice("backend", Backend::Auto)?,
        gpu: section.text("gpu")?,
        kernels: section.choice("kernels", KernelSetting::Auto)?,
        tune: section.boolean("tune", true)?,
    })
}

/// A name for a model in Ollama.
struct OllamaName(String);

impl FromStr for OllamaName {
    type Err = String;

    fn from_str(name: &str) -> Result<OllamaName, String> {
        // A browser has no Ollama to name a model in.
        #[cfg(feature = "native")]
        crate::base::ollama::full_name(name).map_err(|problem| format!("{name:?} {problem}"))?;
        Ok(OllamaName(name.into()))
    }
}
