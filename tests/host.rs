//! Everything that needs no device, in one program: files and samples, tokenizers, templates, adapters, recipes, and the code itself.

mod batch;
#[path = "common/families.rs"]
mod common_families;
#[path = "common/template.rs"]
mod common_template;
mod data;
mod export;
mod formats;
#[path = "common/gguf_writer.rs"]
mod gguf_writer;
#[path = "common/golden.rs"]
mod golden_files;
mod layers;
mod merge;
#[path = "common/pieces.rs"]
mod pieces;
mod quantize;
mod recipes;
mod rewards;
mod tokenizer;
mod weights;
