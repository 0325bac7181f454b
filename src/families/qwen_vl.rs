//! The text models of Qwen 2, 2.5 and 3 VL: those of Qwen 2 and 3 inside a model with a vision tower. All three positions of a token of
//! text are the same, so the rotary embedding by sections is the plain one.

use super::uniform::{self, Traits};
use super::{AdapterNames, Family, SamplingDefaults, Shape, qwen2, qwen3};
use crate::data::template::BuiltIn;

const VL2: Traits = Traits { name: "qwen2vl", ..qwen2::TRAITS };
const VL3: Traits = Traits { name: "qwen3vl", ..qwen3::DENSE };
const VL3_MOE: Traits = Traits { name: "qwen3vlmoe", ..qwen3::DENSE };

/// Qwen 3 VL from 2B to 32B.
pub static FAMILY: Family = Family {
    name: VL3.name,
    title: "Qwen 3 VL",
    example: "qwen3-vl:8b",
    config: |gguf| uniform::config(gguf, &VL3),
    template: |_| &CHAT,
    sampling: SAMPLING,
    names: &NAMES,
    shapes: &SHAPES,
    small_shape: Shape { family: VL3.name, name: "qwen3vl-tiny", ..qwen3::SMALL },
    metadata: |shape| uniform::metadata(shape, 5e6),
    ..qwen3::FAMILY
};

/// Qwen 3 VL 30B-A3B and 235B-A22B.
pub static FAMILY_MOE: Family = Family {
    name: VL3_MOE.name,
    title: "Qwen 3 VL mixture of experts",
    example: "qwen3-vl:30b",
    config: |gguf| uniform::config(gguf, &VL3_MOE),
    template: |_| &CHAT_MOE,
    sampling: SAMPLING,
    names: &NAMES,
    shapes: &SHAPES_MOE,
    small_shape: Shape { family: VL3_MOE.name, name: "qwen3vlmoe-tiny", ..qwen3::SMALL_MOE },
    metadata: |shape| uniform::metadata(shape, 5e6),
    ..qwen3::FAMILY_MOE
};

/// Qwen 2 and 2.5 VL from 2B to 72B.
pub static FAMILY_2: Family = Family {
    name: VL2.name,
    title: "Qwen 2.5 VL",
    example: "hf.co/ggml-org/Qwen2.5-VL-7B-Instruct-GGUF",
    config: |gguf| uniform::config(gguf, &VL2),
    template: |_| &CHAT_2,
    names: &NAMES,
    shapes: &SHAPES_2,
    small_shape: Shape { family: VL2.name, name: "qwen2vl-tiny", ..qwen2::SMALL },
    ..qwen2::FAMILY
};

const SAMPLING: SamplingDefaults = SamplingDefaults { temperature: 0.7, top_k: 20, top_p: 0.8 };

/// Names of modules in adapter files: transformers has no class for the text model alone. mlx-lm's `models/qwen3_vl.py` has it inside
/// another one.
static NAMES: AdapterNames = AdapterNames {
    causal_lm_layers: "model.language_model.layers",
    mlx_layers: "language_model.model.layers",
    ..uniform::NAMES
};

/// Source: transformers' configurations of Qwen's checkpoints.
const SHAPES: [Shape; 2] = [
    Shape {
        width: 2048,
        ffn_width: 6144,
        context_length: 262_144,
        ..sized(VL3.name, "qwen3-vl-2b", qwen3::SHAPES[0])
    },
    Shape { context_length: 262_144, ..sized(VL3.name, "qwen3-vl-8b", qwen3::SHAPES[2]) },
];

const SHAPES_MOE: [Shape; 1] =
    [Shape { context_length: 262_144, ..sized(VL3_MOE.name, "qwen3-vl-30b-a3b", qwen3::SHAPES_MOE[0]) }];

const SHAPES_2: [Shape; 1] = [Shape {
    layers: 36,
    width: 2048,
    ffn_width: 11_008,
    heads: 16,
    head_sizes: [128, 128],
    context_length: 128_000,
    ..sized(VL2.name, "qwen2.5-vl-3b", qwen2::SHAPES[0])
}];

/// A size of the text model under another name.
const fn sized(family: &'static str, name: &'static str, of_text: Shape) -> Shape {
    Shape { family, name, ..of_text }
}

/// ChatML. Reasoning stands in `<think>` in front of the answer to the last question.
static CHAT: BuiltIn = BuiltIn { family: VL3.name, ..qwen3::CHAT };
/// The layout of the mixtures of experts.
static CHAT_MOE: BuiltIn = BuiltIn { family: VL3_MOE.name, ..qwen3::CHAT };
/// The layout of Qwen 2 and 2.5 VL.
static CHAT_2: BuiltIn = BuiltIn { family: VL2.name, ..qwen2::CHAT };
