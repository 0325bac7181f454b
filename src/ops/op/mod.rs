//! The table of all ops. Tests, benchmarks, shader validation and the profiler read it.

mod sizes;

use crate::ops::cached_attention;
use sizes::*;

/// The kind of work that an op does, for the profiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Products with frozen weights.
    Product,
    /// Attention.
    Attention,
    /// The recurrence of delta nets, with the convolution before it.
    DeltaNet,
    /// Gradients of adapter matrices, and their own products on matrices of 16×16.
    Adapter,
    /// Norms.
    Norm,
    /// Losses and gradients of logits.
    Loss,
    /// The optimizer.
    Optimizer,
    /// Everything else.
    Other,
}

/// A family of kernels that an op can run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Variant {
    /// f32: a software renderer takes its own kernels where an op has them, other devices take the plain ones.
    F32,
    /// f32 by the kernels that every device runs.
    Plain,
    /// Operands in f16.
    F16,
    /// Operands in f16 on cooperative matrices of 8×8.
    Coop8,
    /// Kernels beside the products on matrices of 16×16, which read or write packed operands: they need f16 only.
    Packed,
    /// Operands in f16 on cooperative matrices of 16×16.
    Coop16,
    /// Those, with all products in CUDA that its kernels can compute.
    Cuda,
}

impl std::fmt::Display for Variant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Variant::F32 => "f32",
            Variant::Plain => "plain",
            Variant::F16 => "f16",
            Variant::Coop8 => "coop8",
            Variant::Packed => "packed",
            Variant::Coop16 => "coop16",
            Variant::Cuda => "cuda",
        })
    }
}

/// Values of the sizes that a kernel's text is expanded with.
pub type Sizes = Vec<(&'static str, u32)>;

/// A file of an op's shaders without `.wgsl`, and a function that lists its sizes.
pub type ShaderSizes = (&'static str, fn() -> Vec<Sizes>);

/// One op: a folder of `src/ops` and `shaders`.
pub struct Op {
    /// Its folder.
    pub name: &'static str,
    /// The kind of its work.
    pub kind: Kind,
    /// The variants that have kernels of their own.
    pub variants: &'static [Variant],
    /// Its shaders that have sizes, with values that cover what the op asks for. Other shaders have none.
    pub sizes: &'static [ShaderSizes],
}

const fn op(
    name: &'static str,
    kind: Kind,
    variants: &'static [Variant],
    sizes: &'static [ShaderSizes],
) -> Op {
    Op { name, kind, variants, sizes }
}

const F32: &[Variant] = &[Variant::F32];
const LINEAR: &[Variant] = &[
    Variant::F32,
    Variant::Plain,
    Variant::F16,
    Variant::Coop8,
    Variant::Coop16,
    Variant::Cuda,
    Variant::Packed,
];
const ATTENTION: &[Variant] =
    &[Variant::F32, Variant::Plain, Variant::F16, Variant::Coop8, Variant::Coop16, Variant::Cuda];

/// Every op.
pub static OPS: [Op; 36] = [
    op("adamw", Kind::Optimizer, F32, &[]),
    op("argmax", Kind::Other, F32, &[]),
    op(
        "attention",
        Kind::Attention,
        ATTENTION,
        &[
            ("tiled", attention_tiled),
            ("software", attention_software),
            ("coop8", attention_coop8),
            ("coop16", attention_coop16),
            ("coop16_rows", matrices),
            ("coop16_scores", attention_scores),
            ("coop16_product", attention_parts),
        ],
    ),
    op("bias", Kind::Other, F32, &[]),
    op("block_end", Kind::Norm, F32, &[("plain", block_ends)]),
    op("cached_attention", Kind::Attention, F32, &[("plain", cached_attention::sizes)]),
    op("cached_gated", Kind::Other, F32, &[("plain", cached_gates)]),
    op("cached_heads", Kind::Norm, F32, &[("plain", cached_heads)]),
    op("categorical", Kind::Other, F32, &[]),
    op("columns", Kind::Other, F32, &[]),
    op(
        "cross_entropy",
        Kind::Loss,
        &[Variant::F32, Variant::Packed],
        &[("coop16", || each("THREADS", &[256, 1024]))],
    ),
    op(
        "delta",
        Kind::DeltaNet,
        &[Variant::F32, Variant::Coop16, Variant::Cuda],
        &[
            ("mix", mixes),
            ("gates", deltas),
            ("solve", deltas),
            ("scan", deltas),
            ("products", deltas),
            ("step", steps),
            ("norm", delta_norms),
            ("coop16", coop16_deltas),
            ("coop16_pairs", coop16_deltas),
            ("coop16_scan", coop16_deltas),
        ],
    ),
    op(
        "distill",
        Kind::Loss,
        F32,
        &[("plain", || each("THREADS", &[256, 512])), ("teacher", || each("THREADS", &[256, 512]))],
    ),
    op("dropout", Kind::Adapter, F32, &[]),
    op("embedding", Kind::Other, F32, &[]),
    op("experts", Kind::Other, F32, &[("router", routers)]),
    op(
        "gated",
        Kind::Other,
        &[Variant::F32, Variant::Packed, Variant::Coop16],
        &[
            ("plain", activations),
            ("coop16", gates),
            ("tiles", activations),
            ("grouped", activations),
            ("grouped_coop16", activations),
        ],
    ),
    op(
        "heads",
        Kind::Norm,
        &[Variant::Packed],
        &[("coop16", heads_forward), ("coop16_backward", heads_backward)],
    ),
    op("latent", Kind::Other, F32, &[]),
    op(
        "linear",
        Kind::Product,
        LINEAR,
        &[
            ("tiled", tiled_products),
            ("grouped", grouped_products),
            ("software", software),
            ("coop8", turned_lanes),
            ("grouped_coop8", lanes),
            ("coop16", coop16_products),
            ("grouped_coop16", grouped_coop16_products),
        ],
    ),
    op(
        "lora",
        Kind::Adapter,
        &[Variant::F32, Variant::Plain, Variant::Coop16, Variant::Cuda],
        &[
            ("software", software),
            ("tiled", || each("HIGH", &[2])),
            ("grouped", || each("HIGH", &[2])),
            ("coop16", || each("COLUMNS", &[1, 2, 3, 4])),
            ("coop16_project", adapter_products),
            ("coop16_gradients", adapter_gradients),
        ],
    ),
    op(
        "matvec",
        Kind::Product,
        &[Variant::F32, Variant::Plain],
        &[("grouped", || each("WHOLE", &[0, 1])), ("plain", matvecs)],
    ),
    op("norm_add", Kind::Norm, &[Variant::Packed], &[("coop16", norms_added)]),
    op("output_gate", Kind::Other, F32, &[]),
    op("pack", Kind::Other, &[Variant::Packed], &[]),
    op("partial_sums", Kind::Product, F32, &[]),
    op("peak", Kind::Other, &[], &[("coop", peaks)]),
    op("per_layer", Kind::Other, &[Variant::F32, Variant::Plain], &[("layer", norms_of_rows)]),
    op("random", Kind::Other, F32, &[]),
    op(
        "rms_norm",
        Kind::Norm,
        &[Variant::F32, Variant::Plain, Variant::Packed],
        &[("plain", norms), ("columns", || vec![Vec::new()]), ("coop16", norms_packed)],
    ),
    op("rope", Kind::Norm, F32, &[("plain", ropes)]),
    op("row_factors", Kind::Product, &[Variant::F16], &[]),
    op("row_status", Kind::Loss, &[Variant::F32, Variant::Packed], &[]),
    op("scale", Kind::Other, F32, &[]),
    op("short_conv", Kind::Other, F32, &[("plain", short_convolutions)]),
    op("update_norm", Kind::Optimizer, F32, &[]),
];

/// The op of a shader or a kernel, by its name: the part before the first `/`.
pub fn find(name: &str) -> Option<&'static Op> {
    let folder = name.split('/').next().unwrap_or(name);
    OPS.iter().find(|op| op.name == folder)
}

/// The kind of work of a kernel, by the name that [`crate::gpu::Gpu::finish_profile`] gives it.
pub fn kind(kernel: &str) -> Kind {
    find(kernel).map_or(Kind::Other, |op| op.kind)
}

/// Values of the sizes of `shader`, a file of `shaders/` without `.wgsl`, that its validation covers; at least one.
pub fn sizes(shader: &str) -> Vec<Sizes> {
    let file = shader.split('/').next_back();
    let own = find(shader).and_then(|op| op.sizes.iter().find(|(name, _)| Some(*name) == file));
    own.map_or_else(|| vec![Vec::new()], |(_, sizes)| sizes())
}
