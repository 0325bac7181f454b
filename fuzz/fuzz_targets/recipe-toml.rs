#![no_main]
rullama_fuzz::fuzz_target!("recipe-toml");
