//! Names of modules in adapter files: transformers' `Gemma4ForCausalLM` and `Gemma4ForConditionalGeneration`, and mlx-lm's
//! `models/gemma4.py`.

use crate::families::AdapterNames;
use crate::families::names::{MixturePaths, paths};

pub(super) static NAMES: AdapterNames = AdapterNames {
    peft: |module| paths(module, &MIXTURE).0,
    mlx: |module| paths(module, &MIXTURE).1,
    causal_lm_layers: "model.layers",
    conditional_generation_layers: "model.language_model.layers",
    mlx_layers: "language_model.model.layers",
    router_is_parameter: false,
    gate_up_alternate: false,
};

const MIXTURE: MixturePaths = MixturePaths {
    router: ("router.proj", &["router.proj"]),
    gate_up: ("experts.gate_up_proj", &["experts.switch_glu.gate_proj", "experts.switch_glu.up_proj"]),
    down: ("experts.down_proj", &["experts.switch_glu.down_proj"]),
};
