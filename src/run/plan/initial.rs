//! The adapter that training starts from.

use super::RunError;
use crate::adapter::lora::{Adapter, Slot, slots as adapter_slots};
use crate::adapter::{self, AdapterPath, Format, Loaded, Origin};
use crate::base::config::Config;
use crate::base::{Base, Module};
use crate::recipe::{Layers, Pattern, Recipe, TargetModules, rank_of};

/// The slots of this model that the recipe's `target_modules` and `layers` select.
pub fn slots(recipe: &Recipe, config: &Config) -> Result<Vec<Slot>, RunError> {
    let mut slots = adapter_slots(config, recipe.lora.target_modules.modules());
    if let TargetModules::Only(modules) = &recipe.lora.target_modules {
        let missing = |m: &&Module| !slots.iter().any(|s| s.module == **m);
        if let Some(module) = modules.iter().find(missing) {
            return Err(RunError::Conflict(format!(
                "lora.target_modules names {}, which this model does not have; its modules are {}",
                module.gguf_name(),
                names(&adapter_slots(config, &Module::ALL))
            )));
        }
    }
    let (layers, count) = (&recipe.lora.layers, config.layers.len());
    if let Some(layers) = layers.iter().find(|layers| !layers.fit(count)) {
        return Err(RunError::Conflict(format!(
            "lora.layers names {layers}, but this model has {count} layers, numbered from 0 to {}; name some of these",
            count - 1
        )));
    }
    let chosen = |layer: usize| layers.is_empty() || layers.iter().any(|l: &Layers| l.contain(layer, count));
    slots.retain(|slot| chosen(slot.layer));
    if slots.is_empty() {
        let shown: Vec<String> = layers.iter().map(ToString::to_string).collect();
        return Err(RunError::Conflict(format!(
            "lora.layers = [{}] has none of the modules of lora.target_modules; name other layers or modules",
            shown.join(", ")
        )));
    }
    let idle = |pattern: &&Pattern| {
        let named =
            |s: &Slot| s.module == pattern.module && pattern.layer.is_none_or(|layer| s.layer == layer);
        !slots.iter().any(named)
    };
    if let Some(pattern) = recipe.lora.rank_pattern.keys().find(idle) {
        return Err(RunError::Conflict(format!(
            "lora.rank_pattern names {pattern}, which gets no adapter; adapted are {}. Remove it, or choose its module and layer with \
             lora.target_modules and lora.layers",
            names(&slots)
        )));
    }
    // Checked before an adapter of this rank is allocated.
    let size = |slot: &Slot| slot.in_features.min(slot.out_features);
    let largest = slots.iter().map(size).max().unwrap_or_default();
    if recipe.lora.rank > largest {
        return Err(RunError::Conflict(format!(
            "lora.rank = {} exceeds the rank of every matrix that it adapts, which is at most {largest}; lower it",
            recipe.lora.rank
        )));
    }
    let too_high = |slot: &&Slot| rank_of(slot, &recipe.lora.rank_pattern, 1) > size(slot);
    if let Some(slot) = slots.iter().find(too_high) {
        return Err(RunError::Conflict(format!(
            "lora.rank_pattern gives {} rank {}, which exceeds the rank of the matrix, at most {}; lower it",
            slot.name(),
            rank_of(slot, &recipe.lora.rank_pattern, 1),
            size(slot)
        )));
    }
    Ok(slots)
}

/// The adapter's rank, which is the largest of its slots, and the alpha that gives it the recipe's scale; without matrices.
fn shape(recipe: &Recipe, slots: &[Slot]) -> Adapter {
    let lora = &recipe.lora;
    let ranks = slots.iter().map(|slot| rank_of(slot, &lora.rank_pattern, lora.rank));
    let rank = ranks.max().unwrap_or(lora.rank);
    let ratio = rank as f64 / lora.rank as f64;
    let alpha = match rank == lora.rank {
        true => lora.alpha,
        false => lora.alpha * if lora.rslora { ratio.sqrt() } else { ratio },
    };
    Adapter { rank, alpha, rslora: lora.rslora, pairs: Default::default() }
}

/// The initial adapter: a new one, or that of `lora.init_from`. Fails if a format of `output.export` cannot hold it.
pub fn initial_adapter(recipe: &Recipe, base: &Base) -> Result<Loaded, RunError> {
    let slots = slots(recipe, base.config())?;
    let lora = &recipe.lora;
    // Checked now rather than after hours of training.
    for format in &recipe.output.export {
        let lacking = |s: &&Slot| format.lacks(s).is_some();
        let lacking: Vec<Slot> = slots.iter().filter(lacking).copied().collect();
        if !lacking.is_empty() {
            return Err(RunError::Conflict(format!(
                "output.export has \"{}\", which cannot store adapters of {}; remove these modules from lora.target_modules, \
                 or remove that format",
                format.name(),
                names(&lacking)
            )));
        }
    }
    let mut loaded = match lora.init_from.is_empty() {
        true => Loaded { adapter: fresh(recipe, &slots), origin: Origin::default(), notices: Vec::new() },
        false => read_adapters(&lora.init_from, base, &slots, recipe)?,
    };
    let unapplied = Format::all_unapplied(&recipe.output.export, base.config(), &slots);
    loaded.notices.extend(unapplied.into_iter().map(String::from));
    Ok(loaded)
}

/// A new adapter for `slots`, with the recipe's ranks.
pub fn fresh(recipe: &Recipe, slots: &[Slot]) -> Adapter {
    let Adapter { rank, alpha, rslora, .. } = shape(recipe, slots);
    let mut adapter = Adapter::init(slots, rank, alpha, rslora, recipe.train.seed);
    for slot in slots {
        adapter.lower(slot, rank_of(slot, &recipe.lora.rank_pattern, recipe.lora.rank));
    }
    adapter
}
/// Loads one or several adapters of any format as their weighted sum, with the recipe's rank and scale.
///
/// A single adapter with weight 1 must have the recipe's scale. It gets the recipe's alpha, which not all files record. A
/// weighted sum has no scale of its own and gets the recipe's.
pub fn read_adapters(
    paths: &[AdapterPath],
    base: &Base,
    slots: &[Slot],
    recipe: &Recipe,
) -> Result<Loaded, RunError> {
    let lora = &recipe.lora;
    let mut found = adapter::load(paths, base, Some(slots), lora.allow_other_base.into())?;
    let wanted = shape(recipe, slots);
    let names = paths.iter().map(ToString::to_string).collect::<Vec<_>>().join(" + ");
    let whole = matches!(paths, [AdapterPath { weight: 1.0, .. }]);
    if !whole && found.adapter.rank != wanted.rank {
        return Err(RunError::Conflict(format!(
            "{names} have a total rank of {}, but the recipe has rank = {}; make them equal",
            found.adapter.rank, wanted.rank
        )));
    }
    if whole && (found.adapter.rank != wanted.rank || !adapter::same_scale(&wanted, &found.adapter)) {
        return Err(RunError::Conflict(format!(
            "{names} has rank = {}, alpha = {}, rslora = {}, but the recipe has rank = {}, alpha = {}, rslora = {}; make \
             them equal",
            found.adapter.rank,
            found.adapter.alpha,
            found.adapter.rslora,
            wanted.rank,
            wanted.alpha,
            wanted.rslora
        )));
    }
    let own = |slot: &&Slot| rank_of(slot, &lora.rank_pattern, lora.rank);
    if let Some(slot) = slots.iter().find(|slot| found.adapter.rank_of(slot) > own(slot)) {
        return Err(RunError::Conflict(format!(
            "{names} has rank {} in {}, but the recipe has rank {}; make them equal with lora.rank_pattern",
            found.adapter.rank_of(slot),
            slot.name(),
            own(&slot)
        )));
    }
    found.adapter = match whole {
        true => Adapter { pairs: found.adapter.pairs, ..wanted },
        false => found.adapter.rescaled(wanted.alpha, lora.rslora),
    };
    Ok(found)
}

/// The names of the modules among `slots`, for messages.
pub fn names(slots: &[Slot]) -> String {
    let present = Module::ALL.into_iter().filter(|m| slots.iter().any(|s| s.module == *m));
    present.map(Module::gguf_name).collect::<Vec<_>>().join(", ")
}
