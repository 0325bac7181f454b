//! Unknown sections and keys, and suggestions for them.

use super::error::RecipeError;
use super::manual::{REWARDS, sections};
use super::source::{Entry, Source, Value};

/// Keys that are planned for later versions.
const PLANNED: [(&str, &[&str]); 1] = [("lora", &["alpha_pattern"])];

/// Renamed keys: section, old name, new name.
const RENAMED: [(&str, &str, &str); 1] = [("device", "adapter", "gpu")];

/// Names of keys in other trainers (PEFT, TRL, axolotl, LLaMA-Factory, mlx-lm) that are spelled differently.
const OTHER_NAMES: [(&str, &str); 42] = [
    ("r", "lora.rank"),
    ("lora_r", "lora.rank"),
    ("scale", "lora.alpha"),
    ("use_rslora", "lora.rslora"),
    ("lora_target", "lora.target_modules"),
    ("layers_to_transform", "lora.layers"),
    ("num_layers", "lora.layers"),
    ("model_name_or_path", "model.base"),
    ("digest", "model.fingerprint"),
    ("sequence_len", "data.max_seq_len"),
    ("cutoff_len", "data.max_seq_len"),
    ("chat_template", "data.template"),
    ("datasets", "data.sources"),
    ("field_instruction", "data.fields"),
    ("columns", "data.fields"),
    ("prompt_feature", "data.fields"),
    ("default_system_message", "data.system"),
    ("system_prompt", "data.system"),
    ("train_on_inputs", "data.train_on"),
    ("assistant_only_loss", "data.train_on"),
    ("iters", "train.max_steps"),
    ("rl", "train.objective"),
    ("pref_beta", "train.beta"),
    ("pref_loss", "train.loss_type"),
    ("rpo_alpha", "train.sft_weight"),
    ("cpo_alpha", "train.sft_weight"),
    ("lr", "train.learning_rate"),
    ("beta1", "train.adam_beta1"),
    ("beta2", "train.adam_beta2"),
    ("lr_schedule", "train.lr_scheduler"),
    ("per_device_train_batch_size", "train.batch_size"),
    ("micro_batch_size", "train.batch_size"),
    ("clip_grad_norm", "train.max_grad_norm"),
    ("eval_steps", "eval.steps"),
    ("load_best_model_at_end", "eval.keep_best"),
    ("metric_for_best_model", "eval.best_metric"),
    ("compute_metrics", "eval.metrics"),
    ("patience", "eval.early_stopping_patience"),
    ("early_stopping_steps", "eval.early_stopping_patience"),
    ("steps_per_save", "output.save_steps"),
    ("keep", "output.save_total_limit"),
    ("output_dir", "output.dir"),
];

/// Minimum `strsim::normalized_damerau_levenshtein` at which a name is suggested.
const MIN_SIMILARITY: f64 = 0.5;

/// Rejects the first unknown key or section.
pub(super) fn check(source: &Source) -> Result<(), RecipeError> {
    for section in &source.entries {
        let name = section.key.as_str();
        if name == "$schema" {
            // Editors find the schema of a JSON file under this key.
            continue;
        }
        if name == REWARDS {
            // Its reader checks the keys.
            continue;
        }
        let Some((_, keys)) = sections().iter().find(|(known, _)| known == name) else {
            let (what, hint) = match &section.node.value {
                Value::Table(_) => (format!("section [{name}]"), section_hint(name)),
                Value::List(items)
                    if items.first().is_some_and(|item| matches!(item.value, Value::Table(_))) =>
                {
                    (format!("list [[{name}]]"), section_hint(name))
                }
                _ => (format!("key `{name}` outside any section"), key_hint(None, name)),
            };
            return Err(RecipeError::Unknown { place: source.place(section.origin), what, hint });
        };
        let Value::Table(entries) = &section.node.value else {
            return Err(RecipeError::WrongType {
                place: source.place(section.node.origin),
                key: name.to_owned(),
                expected: "a section of keys".into(),
                found: section.node.value.describe(),
            });
        };
        if let Some(entry) = entries.iter().find(|entry| !keys.contains(&entry.key)) {
            return Err(unknown(source, name, entry));
        }
    }
    Ok(())
}

fn unknown(source: &Source, section: &str, entry: &Entry) -> RecipeError {
    let place = source.place(entry.origin);
    let key = entry.key.as_str();
    if PLANNED.iter().any(|(name, keys)| *name == section && keys.contains(&key)) {
        return RecipeError::NotSupported { place, what: format!("`{key}` in [{section}]") };
    }
    let renamed = RENAMED.iter().find(|(name, old, _)| (*name, *old) == (section, key));
    let hint = match renamed {
        Some((_, old, new)) => format!("`{old}` is now called `{new}`"),
        None => key_hint(Some(section), key),
    };
    RecipeError::Unknown { place, what: format!("key `{key}` in [{section}]"), hint }
}

fn section_hint(name: &str) -> String {
    match nearest(name, sections().iter().map(|(known, _)| known.as_str()).chain([REWARDS])) {
        Some(REWARDS) => format!("did you mean [[{REWARDS}]]?"),
        Some(known) => format!("did you mean [{known}]?"),
        None => format!("the sections are {}", list(sections().iter().map(|(known, _)| known.as_str()))),
    }
}

fn key_hint(section: Option<&str>, key: &str) -> String {
    if let Some((owner, _)) = sections().iter().find(|(_, keys)| has(keys, key)) {
        return format!("`{key}` belongs in [{owner}]");
    }
    let other =
        OTHER_NAMES.iter().find(|(other, _)| *other == key).and_then(|(_, path)| path.split_once('.'));
    if let Some((owner, known)) = other {
        return format!("did you mean `{known}` in [{owner}]?");
    }
    let own = sections().iter().find(|(name, _)| Some(name.as_str()) == section);
    let own = || own.into_iter().flat_map(|(_, keys)| keys).map(String::as_str);
    if let Some(known) = nearest(key, own()) {
        return format!("did you mean `{known}`?");
    }
    let known = nearest(key, sections().iter().flat_map(|(_, keys)| keys).map(String::as_str));
    let owner = sections().iter().find(|(_, keys)| known.is_some_and(|known| has(keys, known)));
    match (known, owner, section) {
        (Some(known), Some((owner, _)), _) => format!("did you mean `{known}` in [{owner}]?"),
        (_, _, Some(section)) => format!("[{section}] takes {}", list(own())),
        _ => format!("the sections are {}", list(sections().iter().map(|(known, _)| known.as_str()))),
    }
}

fn has(keys: &[String], key: &str) -> bool {
    keys.iter().any(|known| known == key)
}

/// The candidate most similar to `name`, if any is similar enough.
pub(super) fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let similarity = |candidate: &&str| strsim::normalized_damerau_levenshtein(name, candidate);
    candidates
        .filter(|c| similarity(c) >= MIN_SIMILARITY)
        .max_by(|a, b| similarity(a).total_cmp(&similarity(b)))
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}
