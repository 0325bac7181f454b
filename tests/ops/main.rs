//! Every op on the device against the f64 reference of the same name, on every variant of its kernels that the device has.
//!
//! Every output lies in a larger buffer of known values, and every input among NaN, so that writes and reads outside show.

mod adamw;
mod attention;
mod check;
mod cuda;
mod dropout;
mod embedding;
#[path = "../common/gpu.rs"]
mod gpu;
mod half;
mod half_long;
mod half_pairs;
mod half_readers;
mod linear;
mod matvec;
mod pending;
mod random;
mod rms_norm;
mod selftest;
mod sums;
mod tiles;
mod tokens;

use rullama_train::base::formats::GgmlType::{self, *};
use rullama_train::cases;
use rullama_train::gpu::Gpu;
use rullama_train::ops::op::{OPS, Variant, find};

type Run = fn(&Gpu) -> check::Outcome;

/// A test of an op, on some of its variants.
struct Case {
    op: &'static str,
    name: &'static str,
    variants: &'static [Variant],
    run: Run,
    /// See [`gpu::Test`].
    slow: bool,
}

const fn case(op: &'static str, name: &'static str, variants: &'static [Variant], run: Run) -> Case {
    Case { op, name, variants, run, slow: false }
}

/// A test that takes too long on a software renderer, which compiles a kernel for every format and size.
const fn slow(op: &'static str, name: &'static str, variants: &'static [Variant], run: Run) -> Case {
    Case { slow: true, ..case(op, name, variants, run) }
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
/// Kernels of GPUs that a software renderer runs too.
const GPUS: &[Variant] = &[Variant::Plain, Variant::F16, Variant::Coop8];
/// Kernels of rows, without matrices.
const TILED_ROWS: &[Variant] = &[Variant::Plain, Variant::F16];
const TILES: &[Variant] = &[Variant::Coop16, Variant::Cuda];

const ALL: &[GgmlType] = &GgmlType::SUPPORTED;
/// One format of each kind, and those of most files.
const COMMON: &[GgmlType] = &[GgmlType::F32, F16, Q5_0, Q8_0, Q4_K, Q6_K];
const OTHERS: &[GgmlType] = &[
    BF16, Q4_0, Q4_1, Q5_1, Q2_K, Q3_K, Q5_K, IQ4_NL, IQ4_XS, MXFP4, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S,
    IQ1_S, IQ1_M, TQ1_0, TQ2_0, NVFP4, Q1_0, Q2_0,
];

/// Formats of which each kernel is tested on a software renderer, one of each kind of grid among them. The kernels read all others alike,
/// by three functions that "decoders of every format" and "forward" of products test.
const MANY: &[GgmlType] = &[
    GgmlType::F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    IQ2_S,
    IQ3_XXS,
];
const RARE: &[GgmlType] = &[IQ2_XXS, IQ2_XS, IQ3_S, IQ1_S, IQ1_M, TQ1_0, TQ2_0, NVFP4, Q1_0, Q2_0];

const CASES: [Case; 80] = [
    case("adamw", "gradients that are not finite", F32, adamw::non_finite),
    case("argmax", "the likeliest token", F32, tokens::likeliest),
    case("argmax", "the likeliest tokens of rows", F32, tokens::likeliest_of_rows),
    case("categorical", "drawn tokens", F32, tokens::drawn),
    case("attention", "forward and backward", F32, |gpu| {
        attention::forward_and_backward(gpu, &[4, 32, 64, 100, 128, 256, 512])
    }),
    case("attention", "forward and backward", GPUS, |gpu| {
        attention::forward_and_backward(gpu, &[4, 100, 128, 512])
    }),
    case("attention", "forward and backward, few registers", TILED_ROWS, |gpu| {
        attention::forward_and_backward(&few_registers(gpu), &[260])
    }),
    slow("attention", "forward and backward, few registers, other head sizes", TILED_ROWS, |gpu| {
        attention::forward_and_backward(&few_registers(gpu), &[32, 64, 100, 256, 512])
    }),
    case("attention", "large scores, few registers", TILED_ROWS, |gpu| {
        check::of_table(&few_registers(gpu), "attention", "large scores")
    }),
    slow("attention", "forward and backward, other head sizes", GPUS, |gpu| {
        attention::forward_and_backward(gpu, &[32, 64, 256])
    }),
    case("attention", "forward and backward", TILES, |gpu| {
        attention::forward_and_backward(gpu, &[32, 64, 96, 128, 192, 256, 512])
    }),
    case("block_end", "many threads per row", F32, |gpu| {
        split(gpu, |gpu| check::of_table(gpu, "block_end", "stream and next norm"))
    }),
    case("cached_attention", "forward, keys split", F32, |gpu| split(gpu, over_a_cache)),
    case("cached_attention", "forward, the last workgroup adds up", F32, arriving),
    case("cached_gated", "many threads per column", F32, |gpu| {
        split(gpu, |gpu| check::of_table(gpu, "cached_gated", "gates with adapters"))
    }),
    case("dropout", "shares of masks", F32, dropout::masks),
    case("embedding", "the longest binding", COOP16, embedding::longest_binding),
    case("heads", "keys and values at once, forward", PACKED, half_pairs::forward),
    case("heads", "keys and values at once, backward", PACKED, half_pairs::backward),
    case("linear", "forward", F32, |gpu| linear::forward(gpu, ALL)),
    case("linear", "forward", PLAIN, |gpu| linear::forward(gpu, COMMON)),
    slow("linear", "forward, other formats", PLAIN, |gpu| linear::forward(gpu, OTHERS)),
    case("linear", "forward", HALF, |gpu| linear::forward(gpu, COMMON)),
    slow("linear", "forward, other formats", HALF, |gpu| linear::forward(gpu, OTHERS)),
    case("linear", "forward", COOP16, |gpu| linear::forward(gpu, ALL)),
    case("linear", "forward", CUDA, linear::cuda_forward),
    case("linear", "backward", CUDA, linear::cuda_backward),
    case("linear", "split sums", CUDA, linear::cuda_split),
    case("linear", "panels of weights", PACKED, cuda::operands),
    case("linear", "forward, sums split", PLAIN, |gpu| split(gpu, |gpu| linear::forward(gpu, COMMON))),
    case("linear", "forward, sums split", COOP8, |gpu| split(gpu, |gpu| linear::forward(gpu, COMMON))),
    case("linear", "forward, sums split", COOP16, |gpu| split(gpu, |gpu| linear::forward(gpu, ALL))),
    case("linear", "forward, other tiles", PLAIN, |gpu| {
        tiles::others(gpu, |gpu| linear::forward(gpu, COMMON))
    }),
    case("linear", "forward, other tiles", HALF, |gpu| {
        tiles::others(gpu, |gpu| linear::forward(gpu, COMMON))
    }),
    case("linear", "forward, other tiles", COOP16, |gpu| tiles::others(gpu, |gpu| linear::forward(gpu, ALL))),
    case("linear", "backward, other tiles", PLAIN, |gpu| {
        tiles::others(gpu, |gpu| linear::backward(gpu, COMMON))
    }),
    case("linear", "backward, other tiles", HALF, |gpu| {
        tiles::others(gpu, |gpu| linear::backward(gpu, COMMON))
    }),
    case("linear", "backward, other tiles", COOP16, |gpu| {
        tiles::others(gpu, |gpu| linear::backward(gpu, ALL))
    }),
    case("linear", "the fastest way is found", TILED, tiles::found),
    case("linear", "a way that computes wrongly is not chosen", PLAIN, tiles::wrong),
    case("linear", "gradients in parts", COOP16, sums::backward),
    case("linear", "gradients in parts, split", COOP16, |gpu| split(gpu, sums::backward)),
    case("linear", "partial sums that are left to a reader", COOP16, pending::products),
    case("linear", "partial sums that are left to a reader, split", COOP16, |gpu| {
        split(gpu, pending::products)
    }),
    case("linear", "results in parts", COOP16, sums::forward),
    case("linear", "results in parts, split", COOP16, |gpu| split(gpu, sums::forward)),
    case("linear", "readers of kernels on matrices of 16×16", &[Variant::F16], half_readers::values),
    case("linear", "backward", F32, |gpu| linear::backward(gpu, MANY)),
    slow("linear", "backward, rare formats", F32, |gpu| linear::backward(gpu, RARE)),
    case("linear", "backward", PLAIN, |gpu| linear::backward(gpu, COMMON)),
    slow("linear", "backward, other formats", PLAIN, |gpu| linear::backward(gpu, OTHERS)),
    case("linear", "backward", HALF, |gpu| linear::backward(gpu, COMMON)),
    slow("linear", "backward, other formats", HALF, |gpu| linear::backward(gpu, OTHERS)),
    case("linear", "backward", COOP16, |gpu| linear::backward(gpu, ALL)),
    case("linear", "backward, sums split", PLAIN, |gpu| split(gpu, |gpu| linear::backward(gpu, COMMON))),
    case("linear", "backward, sums split", COOP8, |gpu| split(gpu, |gpu| linear::backward(gpu, COMMON))),
    case("linear", "backward, sums split", COOP16, |gpu| split(gpu, |gpu| linear::backward(gpu, ALL))),
    case("linear", "a device's self-test", HALF, linear::self_test),
    case("linear", "experts", F32, |gpu| linear::of_experts(gpu, MANY)),
    slow("linear", "experts, rare formats", F32, |gpu| linear::of_experts(gpu, RARE)),
    case("linear", "experts", HALF, |gpu| linear::of_experts(gpu, COMMON)),
    slow("linear", "experts, other formats", HALF, |gpu| linear::of_experts(gpu, OTHERS)),
    case("linear", "experts", TILES, |gpu| linear::of_experts(gpu, ALL)),
    case("lora", "gradient, sums split", PLAIN, |gpu| {
        split(gpu, |gpu| check::of_table(gpu, "lora", "gradients"))
    }),
    case("lora", "products, sums split", COOP16, |gpu| {
        split(gpu, |gpu| check::of_table(gpu, "lora", "products"))
    }),
    case("lora", "gradients apart, sums split", COOP16, |gpu| {
        split(gpu, |gpu| check::of_table(gpu, "lora", "gradients apart"))
    }),
    case("lora", "gradients beside a product, sums split", COOP16, |gpu| {
        split(gpu, |gpu| check::of_table(gpu, "lora", "gradients beside a product"))
    }),
    case("matvec", "a few rows, with an adapter's A", F32, |gpu| matvec::forward(gpu, MANY)),
    slow("matvec", "a few rows in rare formats", F32, |gpu| matvec::forward(gpu, RARE)),
    case("matvec", "a few rows, with an adapter's A", PLAIN, |gpu| matvec::forward(gpu, COMMON)),
    slow("matvec", "a few rows in other formats", PLAIN, |gpu| matvec::forward(gpu, OTHERS)),
    case("matvec", "many threads per row", PLAIN, |gpu| split(gpu, |gpu| matvec::wide_rows(gpu, COMMON))),
    slow("matvec", "many threads per row, other formats", PLAIN, |gpu| {
        split(gpu, |gpu| matvec::wide_rows(gpu, OTHERS))
    }),
    case("matvec", "one row, in bytes, many threads", PLAIN, |gpu| {
        split(gpu, |gpu| check::of_table(gpu, "matvec", "one row, in bytes"))
    }),
    case("matvec", "a gated input", F32, |gpu| matvec::gated(gpu, MANY)),
    slow("matvec", "a gated input in rare formats", F32, |gpu| matvec::gated(gpu, RARE)),
    case("norm_add", "waiting for the next norm", PACKED, pending::norms),
    case("random", "blocks of weights", F32, random::blocks),
    case("rms_norm", "a row that overflows is not finite", EXACT, rms_norm::overflow),
    case("rms_norm", "packed, of more rows than one dimension of workgroups has", PACKED, half_long::rows),
];

/// Ops that only other ops' tests run: packing and partial sums in products, row factors in products in f16, and the norms of updates in
/// the optimizer. Peaks are measured, not tested.
const WITHIN_OTHERS: [&str; 5] = ["pack", "partial_sums", "peak", "row_factors", "update_norm"];

fn main() -> std::process::ExitCode {
    assert!(ALL.iter().all(|ty| COMMON.contains(ty) != OTHERS.contains(ty)), "each format is in one list");
    assert!(ALL.iter().all(|ty| MANY.contains(ty) != RARE.contains(ty)), "each format is in one list");
    for op in OPS.iter().filter(|op| !WITHIN_OTHERS.contains(&op.name)) {
        for variant in op.variants {
            let own = CASES.iter().any(|case| case.op == op.name && case.variants.contains(variant));
            let tested = own || of_table().any(|case| case.op == op.name && case.variants.contains(variant));
            assert!(tested, "{} [{variant}] has no test", op.name);
        }
    }
    for case in &CASES {
        let op = find(case.op).unwrap_or_else(|| panic!("{}: no such op", case.op));
        // The longest binding needs the memory of a GPU, not its matrices.
        let listed = |variant| op.variants.contains(variant) || case.name == "the longest binding";
        let missing = case.variants.iter().find(|variant| !listed(variant));
        assert!(missing.is_none(), "{} [{}] is tested, but not in OPS", case.op, missing.expect("one"));
    }
    let tests = CASES.iter().flat_map(|case| {
        let name = format!("{}/{}", case.op, case.name);
        let test = move |variant: &Variant| gpu::Test::new(name.clone(), *variant, case.run).slow(case.slow);
        case.variants.iter().map(test)
    });
    let table = of_table().flat_map(|case| {
        let test = |variant: &Variant| {
            let name = format!("{}/{}", case.op, case.name);
            gpu::Test::new(name, *variant, |gpu| check::all_shapes(gpu, case))
        };
        case.variants.iter().map(test)
    });
    gpu::run(tests.chain(table).chain(selftest::tests()).collect())
}

/// Cases with shapes or tolerances that the self-test does not have.
fn of_table() -> impl Iterator<Item = &'static cases::case::Case> {
    cases::all().filter(|case| case.shapes.counts()[1] > 0)
}

/// Runs a test with every product cut into as many parts as its sum allows.
fn split(gpu: &Gpu, test: Run) -> check::Outcome {
    test(&gpu.with_kernels(gpu.kernels().filling(1 << 20)))
}

/// The device with the kernels of GPUs whose threads have few registers.
fn few_registers(gpu: &Gpu) -> Gpu {
    gpu.with_kernels(gpu.kernels().with_few_registers())
}

fn over_a_cache(gpu: &Gpu) -> check::Outcome {
    check::of_table(gpu, "cached_attention", "over a cache")
}

/// With keys split, of which the last workgroup of each block of queries adds up the parts.
fn arriving(gpu: &Gpu) -> check::Outcome {
    over_a_cache(&gpu.with_kernels(gpu.kernels().filling(1 << 20).ordering_storage()))
}
