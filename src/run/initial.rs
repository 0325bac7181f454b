//! The adapter that training starts from.

use super::RunError;
use crate::adapter::lora::{Adapter, Slot, slots as adapter_slots};
use crate::adapter::{self, AdapterPath, Loaded, Origin};
use crate::base::config::Config;
use crate::base::{Base, Module};
use crate::recipe::{Recipe, TargetModules};

/// The slots of this model that the recipe's `target_modules` select.
pub fn slots(recipe: &Recipe, config: &Config) -> Result<Vec<Slot>, RunError> {
    let slots = adapter_slots(config, recipe.lora.target_modules.modules());
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
    Ok(slots)
}

/// The initial adapter: a new one, or that of `lora.init_from`. Fails if a format of `output.export` cannot hold it.
pub fn initial_adapter(recipe: &Recipe, base: &Base) -> Result<Loaded, RunError> {
    let slots = slots(recipe, base.config())?;
    let lora = &recipe.lora;
    // Checked now rather than after hours of training.
    for format in &recipe.output.export {
        let lacking = |s: &&Slot| format.lacks(s, base.config()).is_some();
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
    if !lora.init_from.is_empty() {
        return read_adapters(&lora.init_from, base, &slots, recipe);
    }
    let adapter = Adapter::init(&slots, lora.rank, lora.alpha, lora.rslora, recipe.train.seed);
    Ok(Loaded { adapter, origin: Origin::default(), notices: Vec::new() })
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
    let wanted =
        Adapter { rank: lora.rank, alpha: lora.alpha, rslora: lora.rslora, pairs: Default::default() };
    let names = paths.iter().map(ToString::to_string).collect::<Vec<_>>().join(" + ");
    let whole = matches!(paths, [AdapterPath { weight: 1.0, .. }]);
    if !whole && found.adapter.rank != lora.rank {
        return Err(RunError::Conflict(format!(
            "{names} have a total rank of {}, but the recipe has rank = {}; make them equal",
            found.adapter.rank, lora.rank
        )));
    }
    if whole && (found.adapter.rank != lora.rank || !adapter::same_scale(&wanted, &found.adapter)) {
        return Err(RunError::Conflict(format!(
            "{names} has rank = {}, alpha = {}, rslora = {}, but the recipe has rank = {}, alpha = {}, rslora = {}; make \
             them equal",
            found.adapter.rank, found.adapter.alpha, found.adapter.rslora, lora.rank, lora.alpha, lora.rslora
        )));
    }
    found.adapter = match whole {
        true => Adapter { pairs: found.adapter.pairs, ..wanted },
        false => found.adapter.rescaled(lora.alpha, lora.rslora),
    };
    Ok(found)
}

/// The names of the modules among `slots`, for messages.
pub fn names(slots: &[Slot]) -> String {
    let present = Module::ALL.into_iter().filter(|m| slots.iter().any(|s| s.module == *m));
    present.map(Module::gguf_name).collect::<Vec<_>>().join(", ")
}
