#![no_main]
rullama_fuzz::fuzz_target!("teacher-sha");
