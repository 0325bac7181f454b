//! The buffers of one pass, and the limits on sequence lengths.

use super::{applied, delta};
use crate::base::config::{Config, LayerConfig};
use crate::base::gguf::source::now;
use crate::gpu::{Gpu, GpuError, Staging};
use crate::memory::{ExpertActs, ExpertScratch, LayerWidths, Storages};
use crate::model::{Model, stream};
use crate::ops::Rows;
use crate::ops::Weight;
use crate::ops::argmax::{Argmax, Likeliest};
use crate::ops::cached_attention::Parts;
use crate::ops::lora::{Input, PerInput};
use crate::ops::matvec;
use crate::ops::pass::{Operands, Scratch};

/// Limits on sequence lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Maximum number of tokens in a sequence.
    pub context: usize,
    /// Maximum number of tokens in one pass. A longer prompt takes several.
    pub chunk: usize,
}

impl Lengths {
    /// Rows of a layer's cache. A sliding-window layer keeps its window, room for a pass, and as many rows again: this is how
    /// many tokens can be rewound ([`Decoder::rewind`]).
    pub(super) fn ring(&self, window: Option<usize>) -> usize {
        window.map_or(self.context, |w| self.context.min(w + 2 * self.chunk))
    }

    /// Bytes of one layer's cache for one sequence; 0 if it uses another layer's cache.
    pub(super) fn cache_bytes(&self, config: &Config, layer: usize) -> u64 {
        let l = &config.layers[layer];
        match l.kv_donor {
            Some(_) => 0,
            None if l.delta.is_some() => 0,
            None => (self.ring(l.window) * 2 * l.kv_heads * l.head_size * 4) as u64,
        }
    }
}

/// The longest context, at most `wanted`, whose cache fits the device's bindings.
pub fn longest_context(gpu: &Gpu, config: &Config, wanted: usize) -> usize {
    let full =
        config.layers.iter().filter(|l| l.kv_donor.is_none() && l.window.is_none() && l.delta.is_none());
    let row_bytes = full.map(|l| 2 * l.kv_heads * l.head_size * 4).max().unwrap_or(1);
    wanted.min(gpu.max_binding_bytes() as usize / row_bytes)
}

/// The buffers of one pass. All sequences of a workspace share them.
pub struct Workspace<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) model: &'a Model<'a>,
    pub(super) lengths: Lengths,
    pub(super) model_proj: Option<Weight>, // [L·P, D]: one product for all layers
    pub(super) ids: wgpu::Buffer,          // [chunk]
    pub(super) table: wgpu::Buffer,        // the ids' rows of the per-layer embeddings, in the file's format
    pub(super) stream: Rows,               // [chunk, D]
    pub(super) normed: Rows,               // [chunk, D]
    pub(super) per_layer: Rows,            // [chunk, L·P]
    pub(super) products: Rows,             // products of one input, and z [chunk, widest]
    pub(super) branch: Rows,               // per-layer branch of short passes, and z [8, D + R]
    pub(super) wide: Rows,                 // outputs of attention and gates [chunk, widest]
    pub(super) z: Rows,                    // for long passes: [chunk, Σ R]
    pub(super) scratch: Scratch,           // for long passes
    pub(super) experts: Option<(ExpertActs, ExpertScratch)>,
    pub(super) delta: Option<delta::Buffers>,
    bytes: u64,
    pub(super) parts: Parts,
    pub(super) logits: Rows, // [1, V]
    pub(super) argmax: Argmax,
    pub(super) logits_staging: Staging,
    pub(super) likeliest_staging: Staging,
}

impl<'a> Workspace<'a> {
    /// Allocates buffers for adapters of rank up to `rank`, over a base that is in memory.
    pub fn new(
        gpu: &'a Gpu,
        model: &'a Model<'a>,
        lengths: Lengths,
        rank: usize,
    ) -> Result<Workspace<'a>, GpuError> {
        now(Workspace::stream(gpu, model, lengths, rank))
    }

    /// Allocates buffers for adapters of rank up to `rank`, over any base.
    pub async fn stream(
        gpu: &'a Gpu,
        model: &'a Model<'a>,
        lengths: Lengths,
        rank: usize,
    ) -> Result<Workspace<'a>, GpuError> {
        // Longer than 60 lines: one line per buffer.
        assert!(lengths.context <= model.positions, "the rotary tables cover the context");
        let lengths = Lengths { chunk: lengths.chunk.clamp(1, lengths.context), ..lengths };
        let config = model.config();
        let (chunk, d, p) = (lengths.chunk, config.width, config.per_layer_width);
        let padded = applied::padded(gpu, rank);
        let z = 3 * padded;
        let widest = |of: &dyn Fn(&LayerConfig) -> usize| {
            config.layers.iter().map(of).max().expect("a model has layers")
        };
        let products = widest(&|l| {
            let queries = if l.output_gate { 2 * l.heads } else { l.heads };
            let heads = (queries + if l.kv_donor.is_none() { 2 * l.kv_heads } else { 0 }) * l.head_size;
            heads.max(2 * l.ffn_width).max(d).max(p)
        });
        let wide = widest(&|l| {
            (l.heads * l.head_size).max(l.ffn_width).max(p).max(l.delta.map_or(0, |net| net.values()))
        });
        let (heads, queries) = (widest(&|l| l.heads), widest(&|l| l.heads * l.head_size));
        let model_proj = match model.base.tensor("per_layer_model_proj") {
            Some(whole) => Some(stream::weight(gpu, model.base, &whole).await?),
            None => None,
        };
        let row_bytes = model.base.tensor("per_layer_token_embd").map_or(0, |m| m.row_bytes());
        let rows = |label: &str, width: usize| Rows::new(gpu, label, chunk, width);
        let tiled = gpu.kernels().reads_tiles() && chunk > matvec::MAX_ROWS;
        let operands = match tiled {
            true => Some(Operands::new(gpu, chunk, wide.max(d), 0, z)?),
            false => None,
        };
        let mut bytes = if tiled { Operands::bytes(chunk, wide.max(d), 0, z) } else { 0 };
        let mut experts = None;
        if let Some(shape) = config.layers.iter().find_map(|l| l.experts) {
            let storages = Storages { tiles: gpu.kernels().reads_tiles(), masked: false, heads: false };
            // The router and a shared expert's score read the same input.
            let members = |input| if shape.shared && input == Input::RouterNormed { 2 } else { 1 };
            let z = PerInput::new(|input| members(input) * padded);
            let widths = LayerWidths { width: d, z, ..LayerWidths::default() };
            let normed = rows("experts' input", d)?;
            bytes += ExpertActs::bytes(gpu, &shape, &widths, chunk)
                + ExpertScratch::bytes(gpu, storages, &shape, d, chunk, padded)
                + normed.buffer.size();
            experts = Some((
                ExpertActs::new(gpu, shape, &widths, chunk)?,
                ExpertScratch::new(gpu, storages, &shape, normed.into(), chunk, padded)?,
            ));
        }
        let delta = delta::Buffers::new(gpu, config, chunk, padded)?;
        bytes += delta.as_ref().map_or(0, delta::Buffers::bytes);
        Ok(Workspace {
            gpu,
            model,
            lengths,
            model_proj,
            ids: gpu.buffer("token ids", (chunk * 4) as u64)?,
            table: gpu.buffer("per-layer embedding rows", (chunk * row_bytes + 16) as u64)?,
            stream: rows("stream", d)?,
            normed: rows("normed", d)?,
            per_layer: rows("per-layer inputs", config.layers.len() * p)?,
            products: rows("products", products + z)?,
            branch: Rows::new(gpu, "per-layer branch", if p > 0 { matvec::MAX_ROWS } else { 0 }, d + z)?,
            wide: rows("attention and gates", wide)?,
            z: rows("z", z)?,
            scratch: Scratch::for_products(gpu, operands)?,
            experts,
            delta,
            bytes,
            parts: Parts::new(gpu, heads, queries)?,
            logits: Rows::new(gpu, "logits", 1, config.vocab)?,
            argmax: Argmax::new(gpu)?,
            logits_staging: gpu.staging((config.vocab * 4) as u64),
            likeliest_staging: gpu.staging(size_of::<Likeliest>() as u64),
        })
    }

    /// The limits that it was created with.
    pub fn lengths(&self) -> Lengths {
        self.lengths
    }

    /// Number of logits per token, `V`.
    pub fn vocab(&self) -> usize {
        self.model.config().vocab
    }

    /// The device.
    pub fn gpu(&self) -> &'a Gpu {
        self.gpu
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        let rows = [
            &self.stream,
            &self.normed,
            &self.per_layer,
            &self.products,
            &self.branch,
            &self.wide,
            &self.z,
            &self.logits,
        ];
        let rows: u64 = rows.iter().map(|r| r.buffer.size()).sum();
        let proj = self.model_proj.as_ref().map_or(0, Weight::bytes);
        rows + proj + self.bytes + self.table.size() + self.parts.bytes()
    }
}
