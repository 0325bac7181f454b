//! `[lora]`: the adapter, which layers get one, and ranks of some matrices.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};
use serde_json::json;

use super::error::RecipeError;
use super::fields::Section;
use super::keys::nearest;
use super::source::Value;
use super::values::TargetModules;
use crate::adapter::AdapterPath;
use crate::adapter::lora::{Slot, is_valid_scale};
use crate::base::Module;
use crate::families;

/// `[lora]`: the adapter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lora {
    /// Rank `R` of every `B·A`.
    pub rank: usize,
    /// Numerator of the scale; `2·rank` unless set. See [`crate::adapter::lora::scale`].
    pub alpha: f64,
    /// Whether the scale is `alpha/√rank` instead of `alpha/rank`.
    pub rslora: bool,
    /// Probability in `[0, 1)` that an input element of `A` is zeroed in training.
    pub dropout: f64,
    /// Matrices that get an adapter.
    pub target_modules: TargetModules,
    /// Layers that get an adapter; all where it is empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<Layers>,
    /// Ranks of some matrices. Their alpha follows, so that every matrix has one scale.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rank_pattern: BTreeMap<Pattern, usize>,
    /// Adapters of any [`Format`](crate::adapter::Format) whose weighted sum training starts from, with a new optimizer state.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub init_from: Vec<AdapterPath>,
    /// Whether to load adapters that were trained on another model than `model.base`.
    pub allow_other_base: bool,
}

impl Lora {
    pub(super) fn read(section: &Section) -> Result<Lora, RecipeError> {
        let rank = section.count("rank", 16, 1)?;
        let rslora = section.boolean("rslora", false)?;
        let valid = |alpha| alpha > 0.0 && is_valid_scale(alpha);
        Ok(Lora {
            rank,
            alpha: section.number("alpha", 2.0 * rank as f64, "a number > 0 that f32 can hold", valid)?,
            rslora,
            dropout: section
                .continuable()
                .number("dropout", 0.0, "a number from 0 to below 1", |x| (0.0..1.0).contains(&x))?,
            target_modules: section.target_modules("target_modules")?,
            layers: section.layers("layers")?,
            rank_pattern: section.rank_pattern("rank_pattern")?,
            init_from: section.adapters("init_from")?,
            allow_other_base: section.harmless().boolean("allow_other_base", false)?,
        })
    }
}

/// An entry of `lora.layers`. Layers count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layers {
    /// From the first to the second, both included.
    Range(usize, usize),
    /// The last `n` layers.
    Last(usize),
}

impl Layers {
    /// Whether a model of `count` layers has all of them.
    pub fn fit(self, count: usize) -> bool {
        match self {
            Layers::Range(_, last) => last < count,
            Layers::Last(n) => n <= count,
        }
    }

    /// Whether `layer` of a model of `count` layers is one of them.
    pub fn contain(self, layer: usize, count: usize) -> bool {
        match self {
            Layers::Range(first, last) => (first..=last).contains(&layer),
            Layers::Last(n) => layer + n >= count,
        }
    }
}

impl fmt::Display for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Layers::Range(first, last) if first == last => write!(f, "{first}"),
            Layers::Range(first, last) => write!(f, "{first}-{last}"),
            Layers::Last(n) => write!(f, "last {n}"),
        }
    }
}

impl Serialize for Layers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A key of `lora.rank_pattern`: a module in every layer, or in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pattern {
    /// `None` for every layer. Patterns with a layer count more.
    pub layer: Option<usize>,
    /// The module.
    pub module: Module,
}

impl Pattern {
    fn parse(name: &str) -> Option<Pattern> {
        // Names of a shared expert's matrices have two parts: `shared_expert.up_proj`.
        let at = match name.rsplit_once("shared_expert.") {
            Some((before, _)) if before.is_empty() || before.ends_with('.') => before.len(),
            _ => name.rfind('.').map_or(0, |dot| dot + 1),
        };
        let module = families::module(&name[at..])?;
        // The rest is empty, or has one number: `3`, `blk.3`, `model.layers.3.self_attn`.
        let rest = name[..at].strip_suffix('.').map_or(Vec::new(), |rest| rest.split('.').collect());
        let numbers: Vec<usize> = rest.iter().filter_map(|part| part.parse().ok()).collect();
        match (&rest[..], &numbers[..]) {
            ([], _) => Some(Pattern { layer: None, module }),
            (_, [layer]) => Some(Pattern { layer: Some(*layer), module }),
            _ => None,
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layer {
            Some(layer) => write!(f, "blk.{layer}.{}", self.module.gguf_name()),
            None => f.write_str(self.module.gguf_name()),
        }
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The rank of a slot: that of the pattern that names its layer, else of the one for its module, else `rank`.
pub fn rank_of(slot: &Slot, patterns: &BTreeMap<Pattern, usize>, rank: usize) -> usize {
    let of = |layer| patterns.get(&Pattern { layer, module: slot.module });
    of(Some(slot.layer)).or_else(|| of(None)).copied().unwrap_or(rank)
}

impl Section<'_> {
    /// `"all"` (the default, an empty list here), a range, or a list of numbers and ranges.
    pub fn layers(&self, key: &str) -> Result<Vec<Layers>, RecipeError> {
        let expected =
            "\"all\", numbers from 0 such as 3, ranges such as \"8-15\", \"last 8\", or a list of these";
        self.note(key, json!({ "anyOf": [{ "type": ["string", "integer"] }, { "type": "array", "items": { "type": ["string", "integer"] } }] }));
        let Some(node) = self.get(key) else { return Ok(Vec::new()) };
        let items = match &node.value {
            Value::Text(text) if text == "all" => return Ok(Vec::new()),
            Value::List(items) if items.is_empty() => return Err(self.out_of_range(key, node, expected)),
            Value::List(items) => items.iter().collect(),
            _ => vec![node],
        };
        let mut layers = Vec::new();
        for item in items {
            let parsed = match &item.value {
                Value::Integer(number) => usize::try_from(*number).ok().map(|n| Layers::Range(n, n)),
                Value::Text(text) => parse_layers(text),
                _ => return Err(self.wrong_type(key, item, expected)),
            };
            layers.push(parsed.ok_or_else(|| self.out_of_range(key, item, expected))?);
        }
        Ok(layers)
    }

    /// A table of module names, with or without a layer, and ranks.
    pub fn rank_pattern(&self, key: &str) -> Result<BTreeMap<Pattern, usize>, RecipeError> {
        let expected = "a table of modules and ranks, such as { q_proj = 8, \"3.down_proj\" = 32 }";
        let rank = json!({ "type": "integer", "minimum": 1 });
        self.note(key, json!({ "type": "object", "additionalProperties": rank }));
        let Some(node) = self.get(key) else { return Ok(BTreeMap::new()) };
        let Value::Table(entries) = &node.value else { return Err(self.wrong_type(key, node, expected)) };
        let mut patterns = BTreeMap::new();
        for entry in entries {
            let Some(pattern) = Pattern::parse(&entry.key) else {
                let last = entry.key.rsplit('.').next().unwrap_or_default();
                let hint = match nearest(last, families::module_names()).filter(|near| *near != last) {
                    Some(near) => format!("did you mean \"{near}\"?"),
                    None => {
                        "it takes names of modules, with or without a layer: \"q_proj\", \"3.q_proj\"".into()
                    }
                };
                let what = format!("module `{}` in lora.{key}", entry.key);
                return Err(RecipeError::Unknown { place: self.source.place(entry.origin), what, hint });
            };
            let Value::Integer(rank) = entry.node.value else {
                return Err(self.wrong_type(key, &entry.node, "an integer for each module"));
            };
            let rank = u32::try_from(rank).ok().filter(|rank| *rank > 0);
            let rank = rank.ok_or_else(|| self.out_of_range(key, &entry.node, "a rank of 1 or more"))?;
            if patterns.insert(pattern, rank as usize).is_some() {
                return Err(self.conflict(key, &format!("`{pattern}` is named twice; remove one of the two")));
            }
        }
        Ok(patterns)
    }
}

fn parse_layers(text: &str) -> Option<Layers> {
    if let Some(count) = text.strip_prefix("last ") {
        return count.trim().parse().ok().filter(|n| *n > 0).map(Layers::Last);
    }
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (first <= last).then_some(Layers::Range(first, last))
}
