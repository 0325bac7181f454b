//! The tests of tests/ops, which check a kernel before it is timed.
#![allow(dead_code, unused_imports)] // the files have tests of other kernels, too

#[path = "../../tests/ops/attention.rs"]
pub mod attention;
#[path = "../../tests/ops/check.rs"]
pub mod check;
#[path = "../../tests/ops/linear.rs"]
pub mod linear;

use check::Outcome;
use rullama_train::cases;
use rullama_train::gpu::Gpu;

/// Checks all shapes of the cases of `op` for every device that the table of cases has.
pub fn of_table(gpu: &Gpu, op: &str) -> Outcome {
    cases::all()
        .filter(|case| case.op == op && case.is_for(gpu))
        .try_for_each(|case| check::all_shapes(gpu, case))
}
