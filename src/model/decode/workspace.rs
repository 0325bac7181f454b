//! The buffers of one pass, and how long sequences may get.

use super::applied;
use crate::base::config::{Config, LayerConfig};
use crate::base::gguf::source::now;
use crate::gpu::{Gpu, GpuError, Staging};
use crate::model::Model;
use crate::model::experts::{ExpertActivations, ExpertScratch};
use crate::ops::Rows;
use crate::ops::Weight;
use crate::ops::argmax::{Argmax, Likeliest};
use crate::ops::cached_attention::Parts;
use crate::ops::matvec;
use crate::ops::pack::{Packed, packed_bytes};

/// How long sequences may get, and how they are taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Most tokens in a sequence.
    pub context: usize,
    /// Most tokens in one pass: a longer prompt takes several.
    pub chunk: usize,
}

impl Lengths {
    /// Rows of a layer's cache. A sliding layer keeps its window, room for a pass, and as much again: so many tokens can
    /// be taken back ([`Decoder::rewind`]).
    pub(super) fn ring(&self, window: Option<usize>) -> usize {
        window.map_or(self.context, |w| self.context.min(w + 2 * self.chunk))
    }

    /// Bytes of the cache of one layer, for one sequence; 0 where it uses another layer's.
    pub(super) fn cache_bytes(&self, config: &Config, layer: usize) -> u64 {
        let l = &config.layers[layer];
        match l.kv_donor {
            Some(_) => 0,
            None => (self.ring(l.window) * 2 * l.kv_heads * l.head_size * 4) as u64,
        }
    }
}

/// The longest context whose cache fits the device's bindings, at most `wanted`.
pub fn longest_context(gpu: &Gpu, config: &Config, wanted: usize) -> usize {
    let full = config.layers.iter().filter(|l| l.kv_donor.is_none() && l.window.is_none());
    let row_bytes = full.map(|l| 2 * l.kv_heads * l.head_size * 4).max().unwrap_or(1);
    wanted.min(gpu.max_binding_bytes() as usize / row_bytes)
}

/// What every sequence uses in turn: the buffers of one pass. All sequences of a workspace take turns on one device.
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
    pub(super) products: Rows, // what the matrices that read one input make, and z [chunk, widest]
    pub(super) branch: Rows,   // what a short pass's per-layer branch adds, and z [8, D + R]
    pub(super) wide: Rows,     // what attention and gates make [chunk, widest]
    pub(super) z: Rows,        // of long passes [chunk, Σ R]
    pub(super) packed: Option<[Packed; 2]>, // inputs and z of long passes on cooperative matrices
    pub(super) experts: Option<(ExpertActivations, ExpertScratch)>,
    pub(super) parts: Parts,
    pub(super) logits: Rows, // [1, V]
    pub(super) argmax: Argmax,
    pub(super) logits_staging: Staging,
    pub(super) likeliest_staging: Staging,
}

impl<'a> Workspace<'a> {
    /// Buffers for passes with adapters of up to `rank`, over a base that is in memory.
    pub fn new(
        gpu: &'a Gpu,
        model: &'a Model<'a>,
        lengths: Lengths,
        rank: usize,
    ) -> Result<Workspace<'a>, GpuError> {
        now(Workspace::stream(gpu, model, lengths, rank))
    }

    /// The same over any base.
    pub async fn stream(
        gpu: &'a Gpu,
        model: &'a Model<'a>,
        lengths: Lengths,
        rank: usize,
    ) -> Result<Workspace<'a>, GpuError> {
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
            let heads = (l.heads + if l.kv_donor.is_none() { 2 * l.kv_heads } else { 0 }) * l.head_size;
            heads.max(2 * l.ffn_width).max(d).max(p)
        });
        let wide = widest(&|l| (l.heads * l.head_size).max(l.ffn_width).max(p));
        let (heads, queries) = (widest(&|l| l.heads), widest(&|l| l.heads * l.head_size));
        let model_proj = match model.base.tensor("per_layer_model_proj") {
            Some(whole) => Some(Weight::stream(gpu, model.base, &whole).await?),
            None => None,
        };
        let row_bytes = model.base.tensor("per_layer_token_embd").map_or(0, |m| m.row_bytes());
        let rows = |label: &str, width: usize| Rows::new(gpu, label, chunk, width);
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
            packed: match gpu.cooperative() && chunk > matvec::MAX_ROWS {
                true => Some([
                    Packed::new(gpu, "packed input", chunk, wide.max(d))?,
                    Packed::new(gpu, "packed z", chunk, z)?,
                ]),
                false => None,
            },
            experts: match config.layers.iter().find_map(|l| l.experts) {
                None => None,
                Some(shape) => Some((
                    ExpertActivations::new(gpu, shape, d, chunk, [padded; 3])?,
                    ExpertScratch::new(gpu, &shape, rows("experts' input", d)?, chunk, padded)?,
                )),
            },
            parts: Parts::new(gpu, heads, queries)?,
            logits: Rows::new(gpu, "logits", 1, config.vocab)?,
            argmax: Argmax::new(gpu)?,
            logits_staging: gpu.staging((config.vocab * 4) as u64),
            likeliest_staging: gpu.staging(size_of::<Likeliest>() as u64),
        })
    }

    /// The lengths that it was made for.
    pub fn lengths(&self) -> Lengths {
        self.lengths
    }

    /// Logits of a token, `V`.
    pub fn vocab(&self) -> usize {
        self.model.config().vocab
    }

    /// The device that it is on.
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
        let packed = match &self.packed {
            Some(_) => packed_bytes(self.lengths.chunk, self.wide.stride.max(self.stream.stride)),
            None => 0,
        };
        let experts = self.experts.as_ref().map_or(0, |(acts, _)| {
            let (shape, d) = (&acts.groups.experts, self.stream.stride);
            let (chunk, rank) = (self.lengths.chunk, acts.z.stride);
            ExpertActivations::bytes(self.gpu, shape, d, chunk, 2 * rank)
                + ExpertScratch::bytes(self.gpu, shape, d, chunk, rank)
                + (4 * self.lengths.chunk * d) as u64
        });
        rows + proj + experts + self.table.size() + self.parts.bytes() + packed
    }
}
