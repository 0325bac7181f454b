//! One table of cases for all operations: shapes, inputs, the f64 reference and tolerances stand once.
//!
//! The self-test of a device runs the small shapes of each case, and `tests/ops` all of them, with tolerances of their own. Outputs lie among
//! sentinels and are poisoned, and inputs lie among NaN. The cases of an operation are not in its folder, because the f64 reference comes
//! after the operations.

mod adamw;
mod adapter;
pub mod attention;
pub mod bench;
mod bias;
pub mod block;
mod block_end;
mod cached_attention;
mod cached_gated;
mod cached_heads;
pub mod case;
mod columns;
mod cross_entropy;
mod cross_entropy_tiles;
mod delta;
mod delta_norm;
mod distill;
mod dropout;
mod embedding;
pub mod experts;
pub mod gated;
mod gated_tiles;
mod heads;
pub mod inputs;
mod latent;
mod lora;
mod lora_backward;
mod lora_pairs;
mod lora_tiles;
pub mod matvec;
mod matvec_bytes;
mod norm_add;
mod output_gate;
mod per_layer;
pub mod product;
pub mod products;
mod random;
pub mod rms_norm;
mod rms_norm_tiles;
pub mod rope;
mod row_status;
mod scale;
mod shared_experts;
mod short_conv;
pub mod step;
mod tiles;
mod tokens;
pub mod tolerance;
pub mod weight;

use case::{Case, Needs, Once, Run};

use crate::gpu::Gpu;
use crate::ops::op::Variant;

/// Both kinds of f32 kernels, where a software renderer has its own.
const EXACT: &[Variant] = &[Variant::F32, Variant::Plain];
const F32: &[Variant] = &[Variant::F32];
const PLAIN: &[Variant] = &[Variant::Plain];
/// Kernels that read rows of f32.
const ROWS: &[Variant] = &[Variant::F32, Variant::Plain, Variant::F16, Variant::Coop8];
const PRODUCTS: &[Variant] = &[Variant::F32, Variant::Plain, Variant::F16, Variant::Coop8, Variant::Coop16];
const MATRICES_IN_ROWS: &[Variant] = &[Variant::F32, Variant::Plain, Variant::Coop8];
const EVERY: &[Variant] =
    &[Variant::F32, Variant::Plain, Variant::F16, Variant::Coop8, Variant::Coop16, Variant::Cuda];
const ROWS_AND_TILES: &[Variant] = &[Variant::F32, Variant::Coop16];
const TILES: &[Variant] = &[Variant::Coop16, Variant::Cuda];
const COOP16: &[Variant] = &[Variant::Coop16];
const PACKED: &[Variant] = &[Variant::Packed];
const CUDA: &[Variant] = &[Variant::Cuda];

const fn case(
    op: &'static str,
    name: &'static str,
    needs: Needs,
    variants: &'static [Variant],
    shapes: &'static dyn Run,
) -> Case {
    Case { op, name, needs, variants, shapes }
}

/// Rows and columns of operations on single values; the last have more than one dimension of workgroups of 64 covers.
pub const ROWS_OF_VALUES: &[(usize, usize)] = &[(1, 4), (7, 20), (65, 252), (130, 68), (8_400, 256)];

/// The cases of each operation.
static TABLE: [&[Case]; 38] = [
    &OTHERS,
    &adamw::CASES,
    &attention::CASES,
    &bias::CASES,
    &block_end::CASES,
    &cached_attention::CASES,
    &cached_gated::CASES,
    &cached_heads::CASES,
    &columns::CASES,
    &cross_entropy::CASES,
    &cross_entropy_tiles::CASES,
    &delta::CASES,
    &delta_norm::CASES,
    &distill::CASES,
    &dropout::CASES,
    &embedding::CASES,
    &experts::CASES,
    &gated::CASES,
    &gated_tiles::CASES,
    &heads::CASES,
    &latent::CASES,
    &lora::CASES,
    &lora_backward::CASES,
    &lora_pairs::CASES,
    &lora_tiles::CASES,
    &matvec::CASES,
    &matvec_bytes::CASES,
    &norm_add::CASES,
    &output_gate::CASES,
    &per_layer::CASES,
    &products::CASES,
    &rms_norm::CASES,
    &rms_norm_tiles::CASES,
    &rope::CASES,
    &row_status::CASES,
    &scale::CASES,
    &shared_experts::CASES,
    &short_conv::CASES,
];

/// Every case. `pack`, `partial_sums`, `row_factors` and `update_norm` are parts of others; `peak` is measured.
pub fn all() -> impl Iterator<Item = &'static Case> {
    TABLE.iter().copied().flatten()
}

/// The cases that the self-test runs on the kernels of `gpu`.
pub fn of_selftest(gpu: &Gpu) -> impl Iterator<Item = &'static Case> {
    all().filter(|case| case.shapes.counts()[0] > 0 && case.is_for(gpu))
}

/// Cases of the self-test beside which tests look at properties.
static OTHERS: [Case; 4] = [
    case("random", "blocks", Needs::Any, F32, &Once(random::blocks)),
    case("argmax", "the likeliest token", Needs::Any, F32, &Once(tokens::likeliest)),
    case("argmax", "the likeliest tokens of rows", Needs::Any, F32, &Once(tokens::likeliest_of_rows)),
    case("categorical", "drawn tokens", Needs::Any, F32, &Once(tokens::drawn)),
];
