//! The tests of tests/ops, which check a kernel before it is timed.
#![allow(dead_code)] // the files have tests of other kernels, too

#[path = "../../tests/ops/adamw.rs"]
pub mod adamw;
#[path = "../../tests/ops/attention.rs"]
pub mod attention;
#[path = "../../tests/ops/check.rs"]
pub mod check;
#[path = "../../tests/ops/coop.rs"]
pub mod coop;
#[path = "../../tests/ops/cross_entropy.rs"]
pub mod cross_entropy;
#[path = "../../tests/ops/elementwise.rs"]
pub mod elementwise;
#[path = "../../tests/ops/half.rs"]
pub mod half;
#[path = "../../tests/ops/half_heads.rs"]
pub mod half_heads;
#[path = "../../tests/ops/linear.rs"]
pub mod linear;
#[path = "../../tests/ops/lora.rs"]
pub mod lora;
#[path = "../../tests/ops/rms_norm.rs"]
pub mod rms_norm;
#[path = "../../tests/ops/short_conv.rs"]
pub mod short_conv;
