//! LoRA adapters: which matrices have one, and their values in host memory.

pub mod lora;
