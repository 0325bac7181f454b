//! Names of modules in adapter files: transformers' and mlx-lm's `models/{qwen2,qwen3,qwen3_moe,llama}.py` agree on them.

use crate::families::AdapterNames;
use crate::families::names::{MixturePaths, paths};

pub(in crate::families) static NAMES: AdapterNames = AdapterNames {
    peft: |module| paths(module, &MIXTURE).0,
    mlx: |module| paths(module, &MIXTURE).1,
    causal_lm_layers: "model.layers",
    conditional_generation_layers: "model.language_model.layers",
    mlx_layers: "model.layers",
    router_is_parameter: true,
    gate_up_alternate: false,
};

const MIXTURE: MixturePaths = MixturePaths {
    router: ("mlp.gate", &["mlp.gate"]),
    gate_up: ("mlp.experts.gate_up_proj", &["mlp.switch_mlp.gate_proj", "mlp.switch_mlp.up_proj"]),
    down: ("mlp.experts.down_proj", &["mlp.switch_mlp.down_proj"]),
};
