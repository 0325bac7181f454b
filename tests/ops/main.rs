//! Every operation on the device against the f64 reference of the same name.
//!
//! Every output stands in a larger buffer of known values, every input among NaN: what is written or read outside shows.

mod adamw;
mod attention;
mod cached_attention;
mod check;
mod coop;
mod cross_entropy;
mod decoding;
mod elementwise;
mod embedding;
mod expert_dropout;
mod experts;
#[path = "../common/gpu.rs"]
mod gpu;
mod half;
mod linear;
mod lora;
mod matvec;
mod random;
mod rms_norm;
mod verdict;

use rullama_train::gpu::Gpu;

type Test = (&'static str, fn(&Gpu) -> check::Outcome);

fn main() {
    let tests: [Test; 89] = [
        ("embedding: decoders are exact", embedding::decodes_exactly),
        ("embedding: forward", embedding::forward),
        ("embedding: rows of activations, and backward", embedding::gather_and_backward),
        ("linear: forward", linear::forward),
        ("linear: backward", linear::backward),
        ("linear: adapter matrices as weights", linear::adapter_products),
        ("lora: gradient", lora::gradient),
        ("plain: linear, forward, sums split", |gpu| split(gpu, linear::forward)),
        ("plain: linear, backward, sums split", |gpu| split(gpu, linear::backward)),
        ("plain: lora, gradient, sums split", |gpu| split(gpu, lora::gradient)),
        ("plain: linear, forward", linear::forward),
        ("plain: linear, backward", linear::backward),
        ("plain: linear, adapter matrices as weights", linear::adapter_products),
        ("plain: lora, gradient", lora::gradient),
        ("plain: rms_norm, forward", rms_norm::forward),
        ("plain: rms_norm, backward", rms_norm::backward),
        ("plain: attention, forward and backward", attention::forward_and_backward),
        ("plain: attention, large scores", attention::large_scores),
        ("plain: rms_norm, a row that overflows is not finite", rms_norm::overflow),
        ("linear: forward (operands in f16)", linear::forward_in_f16),
        ("linear: backward (operands in f16)", linear::backward_in_f16),
        ("linear: a device's trial (8×8 matrices)", linear::trial),
        ("linear: forward (8×8 matrices)", linear::forward_in_f16),
        ("linear: backward (8×8 matrices)", linear::backward_in_f16),
        ("linear: forward, sums split (8×8 matrices)", |gpu| split(gpu, linear::forward_in_f16)),
        ("linear: backward, sums split (8×8 matrices)", |gpu| split(gpu, linear::backward_in_f16)),
        ("linear: adapter matrices as weights (8×8 matrices)", linear::adapter_products),
        ("packed: norms (f16)", half::norms),
        ("packed: norms added to the stream (f16)", half::residuals),
        ("packed: GeGLU, both ways (f16)", half::geglu),
        ("packed: gradients of logits (f16)", half::cross_entropy),
        ("packed: heads (f16)", half::heads),
        ("packed: gradients of heads (f16)", half::heads_backward),
        ("packed: the likeliest token (f16)", verdict::top1_with_gradients),
        ("packed: rows that are not finite (f16)", verdict::lost_rows_with_gradients),
        ("cooperative: linear, forward", coop::forward),
        ("cooperative: linear, backward", coop::backward),
        ("cooperative: adapter and gradients", coop::adapter),
        ("cooperative: linear, forward, sums split", |gpu| split(gpu, coop::forward)),
        ("cooperative: linear, backward, sums split", |gpu| split(gpu, coop::backward)),
        ("cooperative: adapter and gradients, sums split", |gpu| split(gpu, coop::adapter)),
        ("rms_norm: forward", rms_norm::forward),
        ("rms_norm: backward", rms_norm::backward),
        ("rope: forward and backward", elementwise::rope_both_ways),
        ("attention: forward and backward", attention::forward_and_backward),
        ("attention: large scores", attention::large_scores),
        ("attention: forward and backward (operands in f16)", attention::forward_and_backward),
        ("attention: large scores (operands in f16)", attention::large_scores),
        ("attention: forward and backward (8×8 matrices)", attention::forward_and_backward),
        ("attention: large scores (8×8 matrices)", attention::large_scores),
        ("cooperative: attention, forward and backward", attention::forward_and_backward),
        ("cooperative: attention, large scores", attention::large_scores),
        ("geglu: forward and backward", elementwise::geglu_both_ways),
        ("scale: in place and add", elementwise::scale_and_add),
        ("router: choice, weights and scores", experts::routers),
        ("experts: tokens sorted", experts::groups),
        ("experts: products", experts::products),
        ("experts: GeGLU and back to tokens", experts::whole),
        ("experts: gradients of their adapters", experts::gradients),
        ("experts: dropout of what their adapters read", expert_dropout::masks),
        ("experts: products of short passes", experts::short),
        ("experts: products (operands in f16)", experts::products),
        ("experts: products (8×8 matrices)", experts::products),
        ("cooperative: experts, gradients of their adapters", experts::gradients),
        ("cooperative: experts, products", experts::products),
        ("cooperative: experts, GeGLU and back to tokens", experts::whole),
        ("dropout: masks", elementwise::dropout_masks),
        ("cross_entropy: forward", cross_entropy::forward),
        ("cross_entropy: backward", cross_entropy::backward),
        ("cross_entropy: softcap alone", cross_entropy::softcap),
        ("rms_norm: a row that overflows is not finite", rms_norm::overflow),
        ("verdict: the likeliest token", verdict::top1),
        ("verdict: rows that are not finite", verdict::lost_rows),
        ("verdict: the counts of a step", verdict::tally),
        ("adamw, sgd and clipping: ten steps", adamw::ten_steps),
        ("adamw, sgd and clipping: gradients that are not finite", adamw::non_finite),
        ("matvec: a few rows, with an adapter's A", matvec::forward),
        ("matvec: many threads a row", |gpu| split(gpu, matvec::wide_rows)),
        ("cached attention", cached_attention::forward),
        ("cached attention, keys split", |gpu| split(gpu, cached_attention::forward)),
        ("heads: queries, keys and values into the cache", decoding::heads_and_cache),
        ("random blocks", random::blocks),
        ("residual: the end of a block", decoding::residual_and_next),
        ("residual: many threads", |gpu| split(gpu, decoding::residual_and_next)),
        ("gated: feed-forward and per-layer inputs", decoding::gates),
        ("gated: many threads", |gpu| split(gpu, decoding::gates)),
        ("matvec: a gated input", decoding::gated_products),
        ("per-layer inputs of all layers", decoding::per_layer_inputs),
        ("argmax", decoding::likeliest),
    ];
    gpu::run(tests.map(|(name, test)| (name.to_string(), Box::new(test) as _)).into())
}

/// The same test with every product cut into as many parts as its sum allows.
fn split(gpu: &Gpu, test: fn(&Gpu) -> check::Outcome) -> check::Outcome {
    let usual = gpu.workgroups_to_fill();
    gpu.set_workgroups_to_fill(1 << 20);
    let outcome = test(gpu);
    gpu.set_workgroups_to_fill(usual);
    outcome
}
