//! Files of strangers and failing disks: no reader panics or takes what is damaged, and no fault of the disk harms a good file.
//!
//! The targets are those of `fuzz/`, whose corpus is replayed.

#[allow(dead_code, reason = "some parts are for `fuzz/` alone")]
#[path = "../../fuzz/src/cli.rs"]
mod cli;
#[allow(dead_code, reason = "some parts are for `fuzz/` alone")]
#[path = "../../fuzz/src/mutate/mod.rs"]
mod mutate;
#[allow(dead_code, reason = "some parts are for `fuzz/` alone")]
#[path = "../../fuzz/src/rng.rs"]
mod rng;
#[allow(dead_code, reason = "some parts are for `fuzz/` alone")]
#[path = "../../fuzz/src/targets/mod.rs"]
mod targets;

mod faults;
mod replay;
mod unfinished;
