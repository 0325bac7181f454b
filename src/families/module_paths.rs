//! Names of modules in adapter files: the part that transformers' and mlx-lm's models of every family agree on.

use crate::base::Module;

/// Paths of a module inside transformers' decoder layer, and inside mlx-lm's.
pub(super) type Paths = (&'static str, &'static [&'static str]);

/// Paths of a mixture's modules, which each family places elsewhere.
pub(super) struct MixturePaths {
    pub router: Paths,
    pub gate_up: Paths,
    pub down: Paths,
}

/// The paths of a module.
pub(super) fn paths(module: Module, mixture: &MixturePaths) -> Paths {
    match module {
        Module::AttnQ => ("self_attn.q_proj", &["self_attn.q_proj"]),
        Module::AttnK => ("self_attn.k_proj", &["self_attn.k_proj"]),
        Module::AttnV => ("self_attn.v_proj", &["self_attn.v_proj"]),
        Module::AttnOutput => ("self_attn.o_proj", &["self_attn.o_proj"]),
        Module::FfnGate => ("mlp.gate_proj", &["mlp.gate_proj"]),
        Module::FfnUp => ("mlp.up_proj", &["mlp.up_proj"]),
        Module::FfnDown => ("mlp.down_proj", &["mlp.down_proj"]),
        // Qwen 3.5 alone has these nine.
        Module::AttnQkv => ("linear_attn.in_proj_qkv", &["linear_attn.in_proj_qkv"]),
        Module::AttnGate => ("linear_attn.in_proj_z", &["linear_attn.in_proj_z"]),
        Module::SsmAlpha => ("linear_attn.in_proj_a", &["linear_attn.in_proj_a"]),
        Module::SsmBeta => ("linear_attn.in_proj_b", &["linear_attn.in_proj_b"]),
        Module::SsmOut => ("linear_attn.out_proj", &["linear_attn.out_proj"]),
        Module::FfnGateShexp => ("mlp.shared_expert.gate_proj", &["mlp.shared_expert.gate_proj"]),
        Module::FfnUpShexp => ("mlp.shared_expert.up_proj", &["mlp.shared_expert.up_proj"]),
        Module::FfnDownShexp => ("mlp.shared_expert.down_proj", &["mlp.shared_expert.down_proj"]),
        Module::FfnGateInpShexp => ("mlp.shared_expert_gate", &["mlp.shared_expert_gate"]),
        // LFM2 alone has these two.
        Module::ShortconvInProj => ("conv.in_proj", &["conv.in_proj"]),
        Module::ShortconvOutProj => ("conv.out_proj", &["conv.out_proj"]),
        // DeepSeek 2 alone has these six, of which the last three are one matrix there.
        Module::AttnQA => ("self_attn.q_a_proj", &["self_attn.q_a_proj"]),
        Module::AttnQB => ("self_attn.q_b_proj", &["self_attn.q_b_proj"]),
        Module::AttnKvAMqa => ("self_attn.kv_a_proj_with_mqa", &["self_attn.kv_a_proj_with_mqa"]),
        Module::AttnKvB | Module::AttnKB | Module::AttnVB => {
            ("self_attn.kv_b_proj", &["self_attn.kv_b_proj"])
        }
        // Models that have gate and up as one matrix.
        Module::FfnGateUp => ("mlp.gate_up_proj", &["mlp.gate_up_proj"]),
        // Gemma 4 alone has these two.
        Module::InpGate => ("per_layer_input_gate", &["per_layer_input_gate"]),
        Module::Proj => ("per_layer_projection", &["per_layer_projection"]),
        Module::FfnGateInp => mixture.router,
        Module::FfnGateUpExps => mixture.gate_up,
        Module::FfnDownExps => mixture.down,
    }
}
