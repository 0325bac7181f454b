//! Names of modules in adapter files: transformers' `GptOssForCausalLM` and mlx-lm's `models/gpt_oss.py`.

use crate::families::AdapterNames;
use crate::families::names::{MixturePaths, paths};

pub(super) static NAMES: AdapterNames = AdapterNames {
    peft: |module| paths(module, &MIXTURE).0,
    mlx: |module| paths(module, &MIXTURE).1,
    causal_lm_layers: "model.layers",
    conditional_generation_layers: "model.language_model.layers",
    mlx_layers: "model.layers",
    router_is_parameter: true,
    gate_up_alternate: true,
};

const MIXTURE: MixturePaths = MixturePaths {
    router: ("mlp.router", &["mlp.router"]),
    gate_up: ("mlp.experts.gate_up_proj", &["mlp.experts.gate_proj", "mlp.experts.up_proj"]),
    down: ("mlp.experts.down_proj", &["mlp.experts.down_proj"]),
};
