//! Generates JavaScript and TypeScript types for a WASM module, like `wasm-bindgen --target web`.
//!
//!   rullama-train-bindgen MODULE.wasm FOLDER

use anyhow::{Result, bail};
use wasm_bindgen_cli_support::Bindgen;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [module, folder] = &arguments[..] else { bail!("usage: rullama-train-bindgen MODULE.wasm FOLDER") };
    Bindgen::new()
        .input_path(module)
        .typescript(true)
        .web(true)?
        .omit_default_module_path(false)
        .generate(folder)
}
