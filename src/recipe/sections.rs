//! The keys of each section, with their types, ranges and defaults.

use std::path::PathBuf;

use super::error::RecipeError;
use super::fields::Section;
use super::{
    Data, DataFormat, DataSource, Device, Eval, Invalid, Lora, LrScheduler, Model, OptimizerKind, Output,
    Overlong, Switch, Template, Train, TrainOn,
};
use crate::adapter::Format;
use crate::families;
use crate::gpu::{Backend, KernelSetting};

pub(super) fn model(section: &Section) -> Result<Model, RecipeError> {
    let example = families::ALL[0].example;
    let expected = format!("\"tiny\", an Ollama tag such as \"{example}\", or the path of a .gguf file");
    Ok(Model {
        base: section.text("base")?.ok_or_else(|| section.missing("base", &expected))?,
        fingerprint: section.parsed("fingerprint")?,
    })
}

pub(super) fn lora(section: &Section) -> Result<Lora, RecipeError> {
    let rank = section.count("rank", 16, 1)?;
    Ok(Lora {
        rank,
        alpha: section.number("alpha", 2.0 * rank as f64, "a number > 0", |x| x > 0.0)?,
        rslora: section.boolean("rslora", false)?,
        dropout: section.number("dropout", 0.0, "a number from 0 to below 1", |x| (0.0..1.0).contains(&x))?,
        target_modules: section.target_modules("target_modules")?,
        init_from: section.adapters("init_from")?,
        allow_other_base: section.boolean("allow_other_base", false)?,
    })
}

pub(super) fn data(section: &Section) -> Result<Data, RecipeError> {
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
    let sources = section.tables("sources", &["path", "weight", "format", "train_on"], |source| {
        let expected = "a file, a folder or a pattern such as \"data/*.jsonl\"";
        Ok(DataSource {
            path: source.text("path")?.ok_or_else(|| source.missing("path", expected))?.into(),
            weight: source.number("weight", 1.0, "a number > 0, at most 1000", |x| x > 0.0 && x <= 1000.0)?,
            format: source.choice("format", format)?,
            train_on: source.choice("train_on", train_on)?,
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
        template: match section.text("template")?.as_deref() {
            None => Template::Auto,
            Some(name) => Template::from_name(name),
        },
        train_on,
        max_seq_len: section.count("max_seq_len", 2048, 2)?,
        overlong: section.choice("overlong", Overlong::Error)?,
        invalid: section.choice("invalid", Invalid::Error)?,
        packing: section.boolean("packing", true)?,
        shuffle: section.boolean("shuffle", true)?,
        cache: section.cache("cache")?,
        sources,
    })
}

pub(super) fn train(section: &Section) -> Result<Train, RecipeError> {
    let fraction =
        |key, default| section.number(key, default, "a number from 0 to 1", |x| (0.0..=1.0).contains(&x));
    let beta = |key, default| {
        section.number(key, default, "a number from 0 to below 1", |x| (0.0..1.0).contains(&x))
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
    Ok(Train {
        seed: section.integer("seed", 42, 0)?,
        epochs: section.count("epochs", 3, 1)?,
        max_steps: section.optional_count("max_steps", 1)?,
        batch_size: section.count("batch_size", 1, 1)?,
        gradient_accumulation_steps: section.count("gradient_accumulation_steps", 1, 1)?,
        optimizer: section.choice("optimizer", OptimizerKind::Adamw)?,
        learning_rate: positive("learning_rate", 1e-4)?,
        adam_beta1: beta("adam_beta1", 0.9)?,
        adam_beta2: beta("adam_beta2", 0.999)?,
        adam_epsilon: positive("adam_epsilon", 1e-8)?,
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
    })
}

pub(super) fn eval(section: &Section) -> Result<Eval, RecipeError> {
    let steps = section.count("steps", 0, 0)?;
    let early_stopping_patience = section.count("early_stopping_patience", 0, 0)?;
    if early_stopping_patience > 0 && steps == 0 {
        let message = "it counts evaluations, but eval.steps is 0; set eval.steps, or remove this key";
        return Err(section.conflict("early_stopping_patience", message));
    }
    Ok(Eval {
        steps,
        samples: section.texts("samples")?.unwrap_or_default(),
        max_new_tokens: section.count("max_new_tokens", 64, 1)?,
        keep_best: section.boolean("keep_best", true)?,
        early_stopping_patience,
    })
}

pub(super) fn output(section: &Section) -> Result<Output, RecipeError> {
    let dir =
        section.text("dir")?.ok_or_else(|| section.missing("dir", "the folder for the files of the run"))?;
    Ok(Output {
        dir: PathBuf::from(dir),
        export: section.choices("export", &[Format::Peft])?,
        base_model_name: section.text("base_model_name")?,
        save_steps: section.count("save_steps", 50, 0)?,
        save_total_limit: section.count("save_total_limit", 2, 1)?,
    })
}

pub(super) fn device(section: &Section) -> Result<Device, RecipeError> {
    Ok(Device {
        backend: section.choice("backend", Backend::Auto)?,
        gpu: section.text("gpu")?,
        kernels: section.choice("kernels", KernelSetting::Auto)?,
    })
}
