//! Fuzzing of every reader of foreign bytes: see CONTRIBUTING.md.

#[allow(dead_code, reason = "some parts are for the program alone")]
mod cli;
pub mod mutate;
pub mod rng;
pub mod targets;

/// Declares a target of cargo-fuzz. Panics on what the storm counts as wrong.
#[macro_export]
macro_rules! fuzz_target {
    ($name:literal) => {
        libfuzzer_sys::fuzz_target!(|input: &[u8]| {
            let target = $crate::targets::named($name).expect("a target of this name");
            if let $crate::targets::Outcome::Wrong(problem) = (target.read)(input) {
                panic!("{problem}");
            }
        });
    };
}
