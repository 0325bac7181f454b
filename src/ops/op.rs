//! The table of all ops. Tests, benchmarks, shader validation and the profiler read it.

use crate::base::config::Activation;
use crate::base::formats::GgmlType;
use crate::ops::lora::coop16_project;
use crate::ops::{attention, block_end, delta, gated, heads};

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
pub static OPS: [Op; 31] = [
    op("adamw", Kind::Optimizer, F32, &[]),
    op("argmax", Kind::Other, F32, &[]),
    op(
        "attention",
        Kind::Attention,
        ATTENTION,
        &[
            ("tiled", attention_tiled),
            ("software", software),
            ("coop8", attention_coop8),
            ("coop16", attention_coop16),
            ("coop16_rows", matrices),
            ("coop16_scores", attention_parts),
            ("coop16_product", attention_parts),
        ],
    ),
    op("bias", Kind::Other, F32, &[]),
    op("block_end", Kind::Norm, F32, &[("plain", block_ends)]),
    op("cached_attention", Kind::Attention, F32, &[("plain", || each("SINKS", &[0, 1]))]),
    op("cached_gated", Kind::Other, F32, &[("plain", cached_gates)]),
    op("cached_heads", Kind::Norm, F32, &[("plain", cached_heads)]),
    op(
        "cross_entropy",
        Kind::Loss,
        &[Variant::F32, Variant::Packed],
        &[("coop16", || each("THREADS", &[256, 1024]))],
    ),
    op(
        "delta",
        Kind::DeltaNet,
        &[Variant::F32, Variant::Coop16],
        &[
            ("mix", deltas),
            ("gates", deltas),
            ("solve", deltas),
            ("scan", deltas),
            ("products", deltas),
            ("step", deltas),
            ("coop16", coop16_deltas),
            ("coop16_pairs", coop16_deltas),
            ("coop16_scan", coop16_deltas),
        ],
    ),
    op("dropout", Kind::Adapter, F32, &[]),
    op("embedding", Kind::Other, F32, &[]),
    op("experts", Kind::Other, F32, &[]),
    op(
        "gated",
        Kind::Other,
        &[Variant::F32, Variant::Packed, Variant::Coop16],
        &[
            ("plain", activations),
            ("coop16", gates),
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
    op(
        "linear",
        Kind::Product,
        LINEAR,
        &[
            ("tiled", halves),
            ("grouped", grouped_products),
            ("software", software),
            ("coop8", lanes),
            ("grouped_coop8", lanes),
            ("coop16", || each("GROUPED", &[0])),
            ("grouped_coop16", || each("GROUPED", &[1])),
        ],
    ),
    op(
        "lora",
        Kind::Adapter,
        &[Variant::F32, Variant::Plain, Variant::Coop16],
        &[
            ("software", software),
            ("coop16", || each("COLUMNS", &[1, 2, 3, 4])),
            ("coop16_project", adapter_products),
        ],
    ),
    op("matvec", Kind::Product, &[Variant::F32, Variant::Plain], &[("plain", matvecs)]),
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
        &[("plain", norms), ("coop16", norms_packed)],
    ),
    op("rope", Kind::Norm, F32, &[]),
    op("row_factors", Kind::Product, &[Variant::F16], &[]),
    op("row_status", Kind::Loss, &[Variant::F32, Variant::Packed], &[]),
    op("scale", Kind::Other, F32, &[]),
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

/// The file of `shaders/formats/` that reads weights of a format.
///
/// # Panics
/// Panics on a format without kernels, which models are never loaded with.
pub fn reader(format: GgmlType) -> &'static str {
    format.format().unwrap_or_else(|| panic!("{} has no kernels", format.name())).reader
}

fn each(name: &'static str, values: &[u32]) -> Vec<Sizes> {
    values.iter().map(|value| vec![(name, *value)]).collect()
}

fn activations() -> Vec<Sizes> {
    Activation::ALL.map(|activation| gated::sizes(activation).to_vec()).to_vec()
}

fn halves() -> Vec<Sizes> {
    each("HALF", &[0, 1])
}

fn grouped_products() -> Vec<Sizes> {
    [(0, 0), (1, 0), (0, 1)].map(|(half, masked)| vec![("HALF", half), ("MASKED", masked)]).to_vec()
}

fn adapter_products() -> Vec<Sizes> {
    [(1, 1), (1, 4), (2, 1), (3, 2)]
        .map(|(columns, down)| coop16_project::sizes(columns, down).to_vec())
        .to_vec()
}

fn matrices() -> Vec<Sizes> {
    each("MATRICES", &[0, 1])
}

fn lanes() -> Vec<Sizes> {
    each("LANES", &[8, 32])
}

/// Sizes of subgroups on software renderers; `HEAD4` and `SINKS` are attention's.
fn software() -> Vec<Sizes> {
    [(4, 0), (8, 1), (16, 0)]
        .map(|(n, sinks)| vec![("LANES", n), ("QUADS", n / 4), ("HEAD4", 16), ("SINKS", sinks)])
        .to_vec()
}

fn attention_tiled() -> Vec<Sizes> {
    let each = |half| {
        [(4, 0), (64, 1), (100, 0), (256, 0), (512, 0)]
            .map(|(size, sinks)| [&attention::sizes(size, half)[..], &[("SINKS", sinks)]].concat())
    };
    [each(false), each(true)].concat()
}

fn attention_coop8() -> Vec<Sizes> {
    let each = |lanes| {
        [(4, 0), (64, 1), (100, 0), (512, 0)].map(|(size, sinks)| {
            [&attention::coop8_sizes(size)[..], &[("LANES", lanes), ("SINKS", sinks)]].concat()
        })
    };
    [each(8), each(32)].concat()
}

fn attention_coop16() -> Vec<Sizes> {
    let of = |(size, matrices, sinks)| {
        [&attention::coop16::sizes(size)[..], &[("MATRICES", matrices), ("SINKS", sinks)]].concat()
    };
    [(32, 0, 1), (64, 1, 0), (64, 1, 1), (128, 0, 0), (256, 1, 0), (512, 1, 0)].map(of).to_vec()
}

fn attention_parts() -> Vec<Sizes> {
    [32, 64, 128, 512].map(|size| attention::coop16_backward::sizes(size).to_vec()).to_vec()
}

fn block_ends() -> Vec<Sizes> {
    let sizes = |shares: u32, deep: u32, groups: u32, identity: u32| {
        vec![
            ("SHARES", shares),
            ("DEEP", deep),
            ("THREADS", 256 * groups),
            ("GROUPED", u32::from(groups > 1)),
            ("IDENTITY", identity),
        ]
    };
    let alone = (1..=block_end::MAX_SHARES as u32).map(|shares| sizes(shares, 4 / shares.min(4), 1, 0));
    alone.chain([sizes(2, 1, 4, 0), sizes(2, 2, 1, 1)]).collect()
}

fn cached_gates() -> Vec<Sizes> {
    let [gelu, silu, oai] = Activation::ALL.map(gated::sizes);
    let sizes = |deep, parts, activation: [(&'static str, u32); 2]| {
        [&[("DEEP", deep), ("PARTS", parts), ("PARTED", u32::from(parts > 1))], &activation[..]].concat()
    };
    [(1, 1, gelu), (4, 1, gelu), (1, 4, gelu), (4, 1, silu), (1, 4, silu), (1, 4, oai)]
        .map(|(deep, parts, activation)| sizes(deep, parts, activation))
        .to_vec()
}

fn gates() -> Vec<Sizes> {
    let [gelu, silu, oai] = Activation::ALL.map(gated::sizes);
    let sizes = |(each, matrices, rounded, activation): (u32, u32, u32, [(&'static str, u32); 2])| {
        let sizes = [("EACH", each), ("THREADS", 256), ("MATRICES", matrices), ("ROUNDED", rounded)];
        [&sizes[..], &activation[..]].concat()
    };
    let packed = [(12, 1, 0, gelu), (21, 0, 1, gelu), (1, 1, 0, silu), (12, 0, 1, oai)];
    let rows = [(1, gelu), (6, gelu), (12, gelu), (21, gelu), (1, silu), (21, silu), (12, oai)];
    rows.map(|(each, activation)| (each, 0, 0, activation)).into_iter().chain(packed).map(sizes).collect()
}

fn deltas() -> Vec<Sizes> {
    [(4, true), (16, false), (100, false), (128, false), (128, true)]
        .map(|(size, carried)| delta::sizes(size, carried).to_vec())
        .to_vec()
}

fn coop16_deltas() -> Vec<Sizes> {
    [16, 32, 128].map(|size| delta::coop16::sizes(size).to_vec()).to_vec()
}

fn heads_forward() -> Vec<Sizes> {
    let rounded = |rounded| move |sizes: Sizes| [&sizes[..], &[("ROUNDED", rounded)]].concat();
    let fresh = heads_backward().into_iter().filter(|sizes| sizes.contains(&("MATRICES", 0)));
    heads_backward().into_iter().map(rounded(0)).chain(fresh.map(rounded(1))).collect()
}

fn heads_backward() -> Vec<Sizes> {
    [(1, 16, 0, 0), (8, 256, 0, 1), (20, 512, 0, 0), (8, 128, 1, 1), (8, 128, 1, 0)]
        .map(|(count, size, identity, matrices)| {
            let sizes = heads::coop16_backward::sizes(count, size);
            [&sizes[..], &[("IDENTITY", identity), ("MATRICES", matrices)]].concat()
        })
        .to_vec()
}

fn cached_heads() -> Vec<Sizes> {
    [(1, 1, 0), (4, 1, 0), (4, 0, 0), (1, 0, 1)]
        .map(|(deep, values, identity)| {
            vec![("DEEP", deep), ("NORMED_VALUES", values), ("IDENTITY", identity)]
        })
        .to_vec()
}

fn matvecs() -> Vec<Sizes> {
    let [gelu, silu, oai] = Activation::ALL.map(gated::sizes);
    [(0, 0, gelu), (0, 1, gelu), (1, 0, gelu), (1, 0, silu), (1, 0, oai)]
        .map(|(gated, alone, activation)| {
            [&[("GATED", gated), ("ALONE", alone), ("DEEP", 4)], &activation[..]].concat()
        })
        .to_vec()
}

/// Threads per workgroup, and whether each takes a row alone.
fn norms_of_rows() -> Vec<Sizes> {
    [(64, 0), (4, 1), (8, 1), (16, 1)]
        .map(|(threads, alone)| vec![("THREADS", threads), ("ALONE", alone)])
        .to_vec()
}

fn norms() -> Vec<Sizes> {
    [(64, 0, 0), (4, 1, 0), (8, 1, 0), (16, 1, 0), (64, 0, 1), (8, 1, 1)]
        .map(|(threads, alone, identity)| {
            vec![("THREADS", threads), ("ALONE", alone), ("IDENTITY", identity)]
        })
        .to_vec()
}

fn norms_packed() -> Vec<Sizes> {
    [(1, 0, 0), (6, 1, 0), (12, 0, 0), (21, 1, 0), (6, 0, 1), (21, 1, 1)]
        .map(|(each, matrices, adds)| vec![("EACH", each), ("MATRICES", matrices), ("ADDS", adds)])
        .to_vec()
}

fn norms_added() -> Vec<Sizes> {
    // EACH, MATRICES, ROUNDED, NORMED and IDENTITY.
    let packed = [[6, 1, 0, 0, 0], [21, 1, 0, 1, 0], [6, 1, 0, 0, 1]];
    let rows = [[1, 0, 0, 0, 0], [12, 0, 0, 1, 0], [12, 0, 0, 1, 1]];
    let rounded = [[6, 0, 1, 0, 0], [21, 0, 1, 1, 0], [12, 0, 1, 1, 1]];
    let names = ["EACH", "MATRICES", "ROUNDED", "NORMED", "IDENTITY"];
    let all = packed.into_iter().chain(rows).chain(rounded);
    all.map(|values| names.into_iter().zip(values).collect()).collect()
}

fn peaks() -> Vec<Sizes> {
    [(8, 8), (8, 32), (16, 32)].map(|(edge, lanes)| vec![("EDGE", edge), ("LANES", lanes)]).to_vec()
}
