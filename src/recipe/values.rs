//! Values of keys that are not plain strings or numbers.

use std::path::PathBuf;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::json;

use super::error::RecipeError;
use super::fields::Section;
use super::keys::nearest;
use super::kinds::target_modules;
use super::source::Value;
use crate::base::Module;
use crate::families;
use crate::model::plan::Share;
use crate::talk::metrics::Metric;

/// The kinds of matrices that get an adapter.
#[derive(Clone, Debug, PartialEq)]
pub enum TargetModules {
    /// [`Module::ALL_LINEAR`].
    AllLinear,
    /// These kinds, in the recipe's order, without duplicates.
    Only(Vec<Module>),
}

impl TargetModules {
    /// The kinds as a list, for [`slots`](crate::adapter::lora::slots).
    pub fn modules(&self) -> &[Module] {
        match self {
            TargetModules::AllLinear => Module::ALL_LINEAR,
            TargetModules::Only(modules) => modules,
        }
    }
}

impl Serialize for TargetModules {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            TargetModules::AllLinear => serializer.serialize_str("all-linear"),
            TargetModules::Only(modules) => serializer.collect_seq(modules.iter().map(|m| m.gguf_name())),
        }
    }
}

/// The measure by which evaluations are compared: the validation loss, or a metric. Of equal metrics, the lower loss is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BestMetric {
    /// The validation loss.
    #[default]
    Loss,
    /// [`Metric::ExactMatch`].
    ExactMatch,
    /// [`Metric::Regex`].
    Regex,
    /// [`Metric::Json`].
    Json,
    /// [`Metric::RougeL`].
    RougeL,
}

impl BestMetric {
    /// The metric; `None` for the loss.
    pub fn metric(self) -> Option<Metric> {
        match self {
            BestMetric::Loss => None,
            BestMetric::ExactMatch => Some(Metric::ExactMatch),
            BestMetric::Regex => Some(Metric::Regex),
            BestMetric::Json => Some(Metric::Json),
            BestMetric::RougeL => Some(Metric::RougeL),
        }
    }
}

/// The chat template that renders conversations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Template {
    /// The template that the model will be run with: the built-in one for Ollama's models, otherwise the base file's own.
    Auto,
    /// The base file's own template (`tokenizer.chat_template`).
    Gguf,
    /// The built-in template of a family, by the family's name.
    BuiltIn(&'static str),
    /// A Jinja file.
    File(PathBuf),
}

impl Template {
    /// Parses the value of `data.template` or `--template`.
    pub fn from_name(text: &str) -> Template {
        match text {
            "auto" => Template::Auto,
            "gguf" => Template::Gguf,
            text => match families::named(text) {
                Some(family) => Template::BuiltIn(family.name),
                None => Template::File(text.into()),
            },
        }
    }
}

impl Serialize for Template {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Template::Auto => serializer.serialize_str("auto"),
            Template::Gguf => serializer.serialize_str("gguf"),
            Template::BuiltIn(family) => serializer.serialize_str(family),
            Template::File(path) => path.serialize(serializer),
        }
    }
}

/// Folder in which tokenized files are cached between runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cache {
    /// The user's cache folder.
    User,
    /// No cache.
    Off,
    /// This folder.
    Folder(PathBuf),
}

impl Serialize for Cache {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Cache::User => serializer.serialize_bool(true),
            Cache::Off => serializer.serialize_bool(false),
            Cache::Folder(path) => path.serialize(serializer),
        }
    }
}

/// Writes a [`Share`] as recipes do: `"auto"`, true, false or a number of layers.
pub(super) fn write_share<S: Serializer>(share: &Share, serializer: S) -> Result<S::Ok, S::Error> {
    match share {
        Share::Auto => serializer.serialize_str("auto"),
        Share::All => serializer.serialize_bool(true),
        Share::Never => serializer.serialize_bool(false),
        Share::Layers(count) => serializer.serialize_u64(*count as u64),
    }
}

/// `"auto"`, true or false: a choice per layer that may be left to the memory plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// The memory plan decides, layer by layer.
    Auto,
    /// Every layer.
    On,
    /// No layer.
    Off,
}

impl Serialize for Switch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Switch::Auto => serializer.serialize_str("auto"),
            Switch::On => serializer.serialize_bool(true),
            Switch::Off => serializer.serialize_bool(false),
        }
    }
}

impl Section<'_> {
    /// `"all-linear"`, or a list of GGUF or PEFT names.
    pub fn target_modules(&self, key: &str) -> Result<TargetModules, RecipeError> {
        self.note(key, target_modules());
        let expected = "\"all-linear\" or a list of module names";
        let Some(node) = self.get(key) else { return Ok(TargetModules::AllLinear) };
        let items = match &node.value {
            Value::Text(text) if text == "all-linear" => return Ok(TargetModules::AllLinear),
            Value::List(items) if !items.is_empty() => items,
            Value::List(_) | Value::Text(_) => return Err(self.out_of_range(key, node, expected)),
            _ => return Err(self.wrong_type(key, node, expected)),
        };
        let mut modules = Vec::new();
        for item in items {
            let name = self.text_of(key, item, "a list of module names")?;
            let Some(module) = families::module(&name) else {
                let predicts = ["mtp", "nextn"].iter().any(|part| name.contains(part));
                let expected = match nearest(&name, families::module_names()) {
                    _ if predicts => {
                        "a module that replies use; layers for multi-token prediction are not trained".into()
                    }
                    Some(known) => format!("the name of a module; did you mean \"{known}\"?"),
                    None => format!("one of {}", Module::ALL.map(Module::gguf_name).join(", ")),
                };
                return Err(self.out_of_range(key, item, &expected));
            };
            if modules.contains(&module) {
                return Err(self.out_of_range(key, item, "each module once"));
            }
            modules.push(module);
        }
        Ok(TargetModules::Only(modules))
    }

    /// `"auto"`, true, false or a number of layers.
    pub fn share(&self, key: &str) -> Result<Share, RecipeError> {
        self.note(
            key,
            json!({ "anyOf": [{ "enum": ["auto", true, false] }, { "type": "integer", "minimum": 0 }] }),
        );
        let Some(node) = self.get(key) else { return Ok(Share::Auto) };
        match &node.value {
            Value::Boolean(true) => Ok(Share::All),
            Value::Boolean(false) => Ok(Share::Never),
            Value::Text(text) if text == "auto" => Ok(Share::Auto),
            Value::Integer(count) if *count >= 0 => Ok(Share::Layers(*count as usize)),
            _ => Err(self.wrong_type(key, node, "\"auto\", true, false or a number of layers")),
        }
    }

    /// `"auto"`, true or false.
    pub fn switch(&self, key: &str) -> Result<Switch, RecipeError> {
        self.note(key, json!({ "enum": ["auto", true, false] }));
        let Some(node) = self.get(key) else { return Ok(Switch::Auto) };
        match &node.value {
            Value::Boolean(true) => Ok(Switch::On),
            Value::Boolean(false) => Ok(Switch::Off),
            Value::Text(text) if text == "auto" => Ok(Switch::Auto),
            _ => Err(self.wrong_type(key, node, "\"auto\", true or false")),
        }
    }

    /// True, false or a folder.
    pub fn cache(&self, key: &str) -> Result<Cache, RecipeError> {
        self.note(key, json!({ "anyOf": [{ "type": "boolean" }, { "type": "string", "minLength": 1 }] }));
        let Some(node) = self.get(key) else { return Ok(Cache::User) };
        match &node.value {
            Value::Boolean(true) => Ok(Cache::User),
            Value::Boolean(false) => Ok(Cache::Off),
            _ => Ok(Cache::Folder(self.text_of(key, node, "true, false or a folder")?.into())),
        }
    }
}
