#![no_main]
rullama_fuzz::fuzz_target!("rullama-v0");
