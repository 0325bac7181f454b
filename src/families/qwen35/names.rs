//! Names of modules in adapter files: transformers' `Qwen3_5ForCausalLM` and mlx-lm's `models/qwen3_5.py`, which has the text model inside
//! another one.

use crate::families::{AdapterNames, uniform};

pub(super) static NAMES: AdapterNames =
    AdapterNames { mlx_layers: "language_model.model.layers", ..uniform::NAMES };
