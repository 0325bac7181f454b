//! One check per operation and kind of kernels: small, odd sizes, forward and backward, against f64.

mod attention;
mod decoding;
mod delta;
mod distill;
mod elementwise;
mod experts;
mod latent;
mod matrices;
mod products;
mod short_conv;
mod training;

use super::bench::Bench;
use crate::gpu::{Gpu, GpuError};

/// The kernels that a check is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Every device.
    Any,
    /// Products that read rows of f32.
    Rows,
    /// Products on matrices of 16×16, which read f16 tiles.
    Tiles,
    /// Long products in CUDA.
    Cuda,
}

/// A check of an operation.
pub struct Check {
    /// The operation's folder.
    pub op: &'static str,
    /// Its part.
    pub name: &'static str,
    /// The kernels that it is for.
    pub needs: Needs,
    /// Runs the kernels and notes what they must have written.
    pub run: fn(&mut Bench) -> Result<(), GpuError>,
}

impl Check {
    /// Whether the kernels of `gpu` run it.
    pub fn is_for(&self, gpu: &Gpu) -> bool {
        match self.needs {
            Needs::Any => true,
            Needs::Rows => !gpu.kernels().reads_tiles(),
            Needs::Tiles => gpu.kernels().reads_tiles(),
            Needs::Cuda => gpu.kernels().cuda().is_some(),
        }
    }
}

const fn check(
    op: &'static str,
    name: &'static str,
    needs: Needs,
    run: fn(&mut Bench) -> Result<(), GpuError>,
) -> Check {
    Check { op, name, needs, run }
}

/// Every check. `pack`, `partial_sums`, `row_factors` and `update_norm` are parts of others; `peak` is measured.
pub const CHECKS: [Check; 57] = [
    check("linear", "products", Needs::Rows, products::q4_k),
    check("linear", "products", Needs::Tiles, matrices::q4_k),
    check("linear", "products in every format", Needs::Rows, products::every_format),
    check("linear", "products in every format", Needs::Tiles, matrices::every_format),
    check("linear", "long products in CUDA", Needs::Cuda, matrices::in_cuda),
    check("linear", "products of experts", Needs::Any, experts::products),
    check("linear", "products of experts in CUDA", Needs::Cuda, experts::in_cuda),
    check("lora", "gradients", Needs::Rows, products::adapter),
    check("lora", "products and gradients", Needs::Tiles, matrices::adapter),
    check("lora", "products and gradients in CUDA", Needs::Cuda, matrices::adapter_in_cuda),
    check("lora", "gradients of experts", Needs::Any, experts::gradients),
    check("attention", "forward and backward", Needs::Any, attention::attention),
    check("attention", "a softcap", Needs::Any, attention::capped),
    check("rms_norm", "forward and backward", Needs::Any, elementwise::rms_norms),
    check("norm_add", "norms and sums as tiles", Needs::Tiles, matrices::norms),
    check("rope", "forward and backward", Needs::Any, elementwise::ropes),
    check("heads", "forward and backward", Needs::Tiles, matrices::heads_both_ways),
    check("delta", "forward and backward", Needs::Any, delta::nets),
    check("delta", "forward and backward in CUDA", Needs::Cuda, delta::in_cuda),
    check("delta", "backward of the norm and the gates", Needs::Any, delta::norms),
    check("short_conv", "forward and backward", Needs::Any, short_conv::both_ways),
    check("short_conv", "tokens that continue others", Needs::Any, short_conv::continued),
    check("latent", "heads of latent vectors", Needs::Any, latent::both_ways),
    check("output_gate", "forward and backward", Needs::Any, delta::output_gates),
    check("gated", "forward and backward", Needs::Any, elementwise::gates),
    check("gated", "tiles, forward and backward", Needs::Tiles, matrices::gates),
    check("gated", "experts, and back to tokens", Needs::Any, experts::gates),
    check("experts", "router and groups", Needs::Any, experts::routers),
    check("experts", "biases", Needs::Any, experts::biases),
    check("experts", "the gate of a shared one", Needs::Any, experts::shared_gate),
    check("embedding", "decoders of every format", Needs::Any, products::decoders),
    check("embedding", "rows by number, and back", Needs::Any, products::rows_by_number),
    check("cross_entropy", "losses, gradients, softcap", Needs::Any, training::losses),
    check("cross_entropy", "losses, gradients as tiles", Needs::Tiles, matrices::losses),
    check("distill", "divergences from a teacher", Needs::Any, distill::lessons),
    check("row_status", "right, wrong, lost", Needs::Any, training::statuses),
    check("row_status", "counts", Needs::Any, training::tally),
    check("adamw", "AdamW, clipping, norms", Needs::Any, training::adamw_steps),
    check("adamw", "gradient descent", Needs::Any, training::sgd_steps),
    check("bias", "added to some columns", Needs::Any, elementwise::biases),
    check("columns", "to others and back", Needs::Any, elementwise::columns_copied),
    check("scale", "in place", Needs::Any, elementwise::scales),
    check("dropout", "masks", Needs::Any, elementwise::dropouts),
    check("matvec", "a few rows in every format", Needs::Any, products::short_products),
    check("matvec", "a gated input", Needs::Any, decoding::gated_products),
    check("matvec", "the stream behind a block", Needs::Any, decoding::ended_products),
    check("matvec", "one row in bytes", Needs::Tiles, decoding::byte_products),
    check("matvec", "experts of a few rows", Needs::Any, experts::short_products),
    check("cached_attention", "over a cache", Needs::Any, attention::cached),
    check("cached_heads", "into the cache", Needs::Any, decoding::heads),
    check("cached_gated", "gates with adapters", Needs::Any, decoding::gates),
    check("block_end", "stream and next norm", Needs::Any, decoding::block_ends),
    check("per_layer", "inputs of layers", Needs::Any, decoding::per_layer_inputs),
    check("random", "blocks", Needs::Any, products::random_blocks),
    check("argmax", "the likeliest token", Needs::Any, decoding::likeliest),
    check("argmax", "the likeliest tokens of rows", Needs::Any, decoding::likeliest_of_rows),
    check("categorical", "drawn tokens", Needs::Any, decoding::drawn),
];
