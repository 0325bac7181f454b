//! DeepSeek V2 Lite and GLM 4.7 Flash, which share the architecture of their files: keys and values in a latent vector (MLA), and a mixture of
//! experts with a shared one behind dense layers.

mod config;
mod shapes;
mod template;

use super::module_paths::{Paths, paths};
use super::{AdapterNames, Family, USUAL_SAMPLING, uniform};
use crate::base::Module;

pub use template::{CHAT_DEEPSEEK, CHAT_GLM, TOKENIZER};

const NAME: &str = "deepseek2";

/// DeepSeek V2 Lite and GLM 4.7 Flash.
pub static FAMILY: Family = Family {
    name: NAME,
    title: "DeepSeek V2 Lite and GLM 4.7 Flash",
    example: "hf.co/unsloth/GLM-4.7-Flash-GGUF",
    config: config::config,
    tokenizer: &TOKENIZER,
    template: |config| match config.vocab >= GLM_VOCAB {
        true => &CHAT_GLM,
        false => &CHAT_DEEPSEEK,
    },
    sampling: USUAL_SAMPLING,
    authors_token: "",
    names: &NAMES,
    shapes: &shapes::SHAPES,
    small_shape: shapes::SMALL,
    metadata: shapes::metadata,
    tensors: shapes::tensors,
};

/// Tokens from which on a vocabulary is GLM's, of 154 880; DeepSeek's has 102 400, and its kin's are no larger than 129 280.
const GLM_VOCAB: usize = 150_000;

/// Names of modules in adapter files: transformers' `DeepseekV2ForCausalLM` and `Glm4MoeLiteForCausalLM`, and mlx-lm's
/// `models/deepseek_v2.py`.
static NAMES: AdapterNames =
    AdapterNames { peft: |module| own_paths(module).0, mlx: |module| own_paths(module).1, ..uniform::NAMES };

fn own_paths(module: Module) -> Paths {
    match module {
        Module::FfnGateShexp => ("mlp.shared_experts.gate_proj", &["mlp.shared_experts.gate_proj"]),
        Module::FfnUpShexp => ("mlp.shared_experts.up_proj", &["mlp.shared_experts.up_proj"]),
        Module::FfnDownShexp => ("mlp.shared_experts.down_proj", &["mlp.shared_experts.down_proj"]),
        module => paths(module, &uniform::MIXTURE),
    }
}
