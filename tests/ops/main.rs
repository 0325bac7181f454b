//! Every op on the device against the f64 reference of the same name, on every variant of its kernels that the device has.
//!
//! Every output lies in a larger buffer of known values, and every input among NaN, so that writes and reads outside show.

mod adamw;
mod attention;
mod cached_attention;
mod check;
mod coop;
mod cross_entropy;
mod cuda;
mod decoding;
mod delta;
mod elementwise;
mod embedding;
mod experts;
mod gates;
#[path = "../common/gpu.rs"]
mod gpu;
mod half;
mod half_heads;
mod half_readers;
mod linear;
mod lora;
mod matvec;
mod random;
mod rms_norm;
mod selftest;
mod tiles;
mod verdict;

use rullama_train::gpu::Gpu;
use rullama_train::ops::op::{OPS, Variant};

type Run = fn(&Gpu) -> check::Outcome;

/// A test of an op, on some of its variants.
struct Case {
    op: &'static str,
    name: &'static str,
    variants: &'static [Variant],
    run: Run,
}

const fn case(op: &'static str, name: &'static str, variants: &'static [Variant], run: Run) -> Case {
    Case { op, name, variants, run }
}

const F32: &[Variant] = &[Variant::F32];
const PLAIN: &[Variant] = &[Variant::Plain];
/// Both kinds of f32 kernels, where a software renderer has its own.
const EXACT: &[Variant] = &[Variant::F32, Variant::Plain];
/// f16 operands without matrices of 16×16.
const HALF: &[Variant] = &[Variant::F16, Variant::Coop8];
const COOP8: &[Variant] = &[Variant::Coop8];
const COOP16: &[Variant] = &[Variant::Coop16];
/// Kernels whose tiles are chosen.
const TILED: &[Variant] = &[Variant::Plain, Variant::F16, Variant::Coop8, Variant::Coop16];
const CUDA: &[Variant] = &[Variant::Cuda];
const PACKED: &[Variant] = &[Variant::Packed];
const ATTENTION: &[Variant] =
    &[Variant::F32, Variant::Plain, Variant::F16, Variant::Coop8, Variant::Coop16, Variant::Cuda];

const CASES: [Case; 96] = [
    case("adamw", "ten steps of adamw and sgd, with clipping", F32, adamw::ten_steps),
    case("adamw", "gradients that are not finite", F32, adamw::non_finite),
    case("argmax", "the likeliest token", F32, decoding::likeliest),
    case("attention", "forward and backward", ATTENTION, attention::forward_and_backward),
    case("attention", "large scores", ATTENTION, attention::large_scores),
    case("block_end", "the end of a block", F32, decoding::residual_and_next),
    case("block_end", "many threads per row", F32, |gpu| split(gpu, decoding::residual_and_next)),
    case("cached_attention", "forward", F32, cached_attention::forward),
    case("cached_attention", "forward, keys split", F32, |gpu| split(gpu, cached_attention::forward)),
    case("cached_gated", "feed-forward and per-layer inputs", F32, decoding::gates),
    case("cached_gated", "many threads per column", F32, |gpu| split(gpu, decoding::gates)),
    case("bias", "added to some columns", F32, elementwise::biases),
    case("cached_heads", "queries, keys and values into the cache", F32, decoding::heads_and_cache),
    case("cross_entropy", "forward", F32, cross_entropy::forward),
    case("cross_entropy", "backward", F32, cross_entropy::backward),
    case("cross_entropy", "softcap alone", F32, cross_entropy::softcap),
    case("cross_entropy", "losses, gradients of logits", PACKED, half::cross_entropy),
    case("delta", "forward and backward", F32, delta::forward_and_backward),
    case("delta", "forward and backward", COOP16, delta::on_matrices),
    case("delta", "in passes that continue each other", F32, delta::carried),
    case("delta", "decays and rates of extreme size", F32, delta::extreme_gates),
    case("dropout", "masks", F32, elementwise::dropout_masks),
    case("dropout", "masks of the inputs of experts' adapters", F32, experts::dropout::masks),
    case("embedding", "decoders are exact", F32, embedding::decodes_exactly),
    case("embedding", "forward", F32, embedding::forward),
    case("embedding", "rows of activations, and backward", F32, embedding::gather_and_backward),
    case("embedding", "the longest binding", COOP16, embedding::longest_binding),
    case("experts", "choice, weights and scores of the router", F32, experts::routing::routers),
    case("experts", "tokens sorted", F32, experts::routing::groups),
    case("experts", "biases", F32, experts::biases::biases),
    case("experts", "the gate of a shared one", F32, gates::shared_experts),
    case("gated", "forward and backward", F32, elementwise::gated_both_ways),
    case("gated", "gates of extreme size", F32, elementwise::extreme_gates),
    case("gated", "forward and backward, packed", PACKED, half::gated),
    case("gated", "experts, and back to tokens", &[Variant::F32, Variant::Coop16], experts::gated::whole),
    case("heads", "forward", PACKED, half_heads::forward),
    case("heads", "backward", PACKED, half_heads::backward),
    case("linear", "forward", EXACT, linear::forward),
    case("linear", "forward", HALF, linear::forward_in_f16),
    case("linear", "forward", COOP16, coop::forward),
    case("linear", "forward", CUDA, cuda::forward),
    case("linear", "backward", CUDA, cuda::backward),
    case("linear", "split sums", CUDA, cuda::split),
    case("linear", "fragments of weights", PACKED, cuda::operands),
    case("linear", "forward, sums split", PLAIN, |gpu| split(gpu, linear::forward)),
    case("linear", "forward, sums split", COOP8, |gpu| split(gpu, linear::forward_in_f16)),
    case("linear", "forward, sums split", COOP16, |gpu| split(gpu, coop::forward)),
    case("linear", "forward, other tiles", PLAIN, |gpu| tiles::others(gpu, linear::forward)),
    case("linear", "forward, other tiles", HALF, |gpu| tiles::others(gpu, linear::forward_in_f16)),
    case("linear", "forward, other tiles", COOP16, |gpu| tiles::others(gpu, coop::forward)),
    case("linear", "backward, other tiles", PLAIN, |gpu| tiles::others(gpu, linear::backward)),
    case("linear", "backward, other tiles", HALF, |gpu| tiles::others(gpu, linear::backward_in_f16)),
    case("linear", "backward, other tiles", COOP16, |gpu| tiles::others(gpu, coop::backward)),
    case("linear", "the fastest way is found", TILED, tiles::found),
    case("linear", "a way that computes wrongly is not chosen", PLAIN, tiles::wrong),
    case("linear", "sums in parts", COOP16, coop::unsummed),
    case("linear", "sums in parts, split", COOP16, |gpu| split(gpu, coop::unsummed)),
    case("linear", "readers of kernels on matrices of 16×16", &[Variant::F16], half_readers::values),
    case("linear", "backward", EXACT, linear::backward),
    case("linear", "backward", HALF, linear::backward_in_f16),
    case("linear", "backward", COOP16, coop::backward),
    case("linear", "backward, sums split", PLAIN, |gpu| split(gpu, linear::backward)),
    case("linear", "backward, sums split", COOP8, |gpu| split(gpu, linear::backward_in_f16)),
    case("linear", "backward, sums split", COOP16, |gpu| split(gpu, coop::backward)),
    case(
        "linear",
        "adapter matrices as weights",
        &[Variant::F32, Variant::Plain, Variant::Coop8],
        linear::adapter_products,
    ),
    case("linear", "a device's self-test", HALF, linear::self_test),
    case(
        "linear",
        "experts",
        &[Variant::F32, Variant::F16, Variant::Coop8, Variant::Coop16, Variant::Cuda],
        experts::products::products,
    ),
    case("lora", "gradient", EXACT, lora::gradient),
    case("lora", "gradient, sums split", PLAIN, |gpu| split(gpu, lora::gradient)),
    case("lora", "products", COOP16, coop::adapter_products),
    case("lora", "products, sums split", COOP16, |gpu| split(gpu, coop::adapter_products)),
    case("lora", "gradients apart", COOP16, coop::adapter),
    case("lora", "gradients apart, sums split", COOP16, |gpu| split(gpu, coop::adapter)),
    case("lora", "gradients together", COOP16, coop::adapter_pairs),
    case("lora", "gradients of experts", &[Variant::F32, Variant::Coop16], experts::gradients::gradients),
    case("matvec", "a few rows, with an adapter's A", EXACT, matvec::forward),
    case("matvec", "many threads per row", EXACT, |gpu| split(gpu, matvec::wide_rows)),
    case("matvec", "a gated input", F32, decoding::gated_products),
    case("matvec", "experts in short passes", F32, experts::products::short),
    case("norm_add", "forward", PACKED, half::residuals),
    case("output_gate", "forward and backward", F32, gates::output_gates),
    case("per_layer", "inputs of all layers", F32, decoding::per_layer_inputs),
    case("per_layer", "inputs of one layer", EXACT, decoding::inputs_of_a_layer),
    case("random", "blocks of weights", F32, random::blocks),
    case("rms_norm", "forward", EXACT, rms_norm::forward),
    case("rms_norm", "backward", EXACT, rms_norm::backward),
    case("rms_norm", "no norm in the place of one", EXACT, rms_norm::identity),
    case("rms_norm", "a row that overflows is not finite", EXACT, rms_norm::overflow),
    case("rms_norm", "forward and backward, packed", PACKED, half::norms),
    case("rope", "forward and backward", F32, elementwise::rope_both_ways),
    case("row_status", "the likeliest token", F32, verdict::top1),
    case(
        "row_status",
        "the likeliest token, with losses and gradients",
        PACKED,
        verdict::top1_with_gradients,
    ),
    case("row_status", "rows that are not finite", F32, verdict::lost_rows),
    case(
        "row_status",
        "rows that are not finite, with losses and gradients",
        PACKED,
        verdict::lost_rows_with_gradients,
    ),
    case("row_status", "the counts of a step", F32, verdict::tally),
    case("scale", "in place", F32, elementwise::scale_in_place),
];

/// Ops that only other ops' tests run: packing and partial sums in products, row factors in products in f16, and the norms of updates in
/// the optimizer. Peaks are measured, not tested.
const WITHIN_OTHERS: [&str; 5] = ["pack", "partial_sums", "peak", "row_factors", "update_norm"];

fn main() {
    for op in OPS.iter().filter(|op| !WITHIN_OTHERS.contains(&op.name)) {
        for variant in op.variants {
            let tested = CASES.iter().any(|case| case.op == op.name && case.variants.contains(variant));
            assert!(tested, "{} [{variant}] has no test", op.name);
        }
    }
    let tests = CASES.iter().flat_map(|case| {
        let name = format!("{}/{}", case.op, case.name);
        case.variants.iter().map(move |variant| gpu::Test::new(name.clone(), *variant, case.run))
    });
    gpu::run(tests.chain(selftest::tests()).collect())
}

/// Runs a test with every product cut into as many parts as its sum allows.
fn split(gpu: &Gpu, test: Run) -> check::Outcome {
    test(&gpu.with_kernels(gpu.kernels().filling(1 << 20)))
}
