//! Names of modules in adapter files: transformers' `Gemma4ForCausalLM` and `Gemma4ForConditionalGeneration`, and mlx-lm's
//! `models/gemma4.py`.

use crate::base::Module;
use crate::families::AdapterNames;

pub(super) static NAMES: AdapterNames = AdapterNames {
    peft: |module| paths(module).0,
    mlx: |module| paths(module).1,
    causal_lm_layers: "model.layers",
    conditional_generation_layers: "model.language_model.layers",
    mlx_layers: "language_model.model.layers",
};

/// Paths inside transformers' `Gemma4TextDecoderLayer`, and inside mlx-lm's `DecoderLayer`.
fn paths(module: Module) -> (&'static str, &'static [&'static str]) {
    match module {
        Module::AttnQ => ("self_attn.q_proj", &["self_attn.q_proj"]),
        Module::AttnK => ("self_attn.k_proj", &["self_attn.k_proj"]),
        Module::AttnV => ("self_attn.v_proj", &["self_attn.v_proj"]),
        Module::AttnOutput => ("self_attn.o_proj", &["self_attn.o_proj"]),
        Module::FfnGate => ("mlp.gate_proj", &["mlp.gate_proj"]),
        Module::FfnUp => ("mlp.up_proj", &["mlp.up_proj"]),
        Module::FfnDown => ("mlp.down_proj", &["mlp.down_proj"]),
        Module::InpGate => ("per_layer_input_gate", &["per_layer_input_gate"]),
        Module::Proj => ("per_layer_projection", &["per_layer_projection"]),
        Module::FfnGateInp => ("router.proj", &["router.proj"]),
        Module::FfnGateUpExps => {
            ("experts.gate_up_proj", &["experts.switch_glu.gate_proj", "experts.switch_glu.up_proj"])
        }
        Module::FfnDownExps => ("experts.down_proj", &["experts.switch_glu.down_proj"]),
    }
}
