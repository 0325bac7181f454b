//! The buffers of one pass.

use super::delta;
use super::latent;
use super::lengths::Lengths;
use super::sizes::Sizes;
use super::step::{STEP, Step};
use crate::base::config::{Config, Experts};
use crate::base::formats::planes;
use crate::base::gguf::source::now;
use crate::gpu::{Gpu, GpuError, Staging};
use crate::memory::{ExpertActs, ExpertScratch, LayerWidths};
use crate::model::{Model, stream};
use crate::ops::Rows;
use crate::ops::Weight;
use crate::ops::argmax::{Argmax, Likeliest};
use crate::ops::cached_attention::Parts;
use crate::ops::matvec::integers::Integers;
use crate::ops::pass::{Operands, Scratch};

/// Most tokens of a prompt in one pass: enough to keep a device busy.
pub const CHUNK: usize = 512;

/// The longest context, at most `wanted`, whose cache fits the device's bindings.
pub fn longest_context(gpu: &Gpu, config: &Config, wanted: usize) -> usize {
    let full =
        config.layers.iter().filter(|l| l.kv_donor.is_none() && l.window.is_none() && l.has_attention());
    let row_bytes = full.map(|l| 2 * l.kv_heads * l.head_size * 4).max().unwrap_or(1);
    wanted.min(gpu.max_binding_bytes() as usize / row_bytes)
}

/// The buffers of one pass. All sequences of a workspace share them.
pub struct Workspace<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) model: &'a Model<'a>,
    pub(super) lengths: Lengths,
    pub(super) model_proj: Option<Weight>, // [L·P, D]: one product for all layers
    pub(super) tokens: wgpu::Buffer,       // number of tokens before the pass, and its ids [1 + chunk]
    pub(super) table: wgpu::Buffer,        // the ids' rows of the per-layer embeddings, in the file's format
    pub(super) stream: Rows,               // [chunk, D]
    pub(super) normed: Rows,               // [chunk, D]
    pub(super) integers: Option<[Integers; 2]>, // of one token: normed [D], and outputs of gates [widest]
    pub(super) per_layer: Rows,            // [chunk, L·P]
    pub(super) products: Rows,             // products of one input, and z [chunk, widest]
    pub(super) branch: Rows,               // per-layer branch of short passes, and z [8, D + R]
    pub(super) wide: Rows,                 // outputs of attention and gates [chunk, widest]
    pub(super) z: Rows,                    // for long passes: [chunk, Σ R]
    pub(super) scratch: Scratch,           // for long passes
    pub(super) experts: Option<(ExpertActs, ExpertScratch)>,
    pub(super) delta: Option<delta::Buffers>,
    pub(super) latent: Option<latent::Buffers>,
    bytes: u64, // of `scratch`, `experts`, `delta` and `latent`
    pub(super) parts: Parts,
    pub(super) logits: Rows, // [1, V]
    pub(super) argmax: Argmax,
    pub(super) logits_staging: Staging,
    pub(super) likeliest_staging: Staging,
    step: Option<Step>,
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

    /// [`Workspace::stream`] for `count` sequences at once, [`super::Sequences`]: at most [`STEP`].
    pub async fn for_sequences(
        gpu: &'a Gpu,
        model: &'a Model<'a>,
        lengths: Lengths,
        rank: usize,
        count: usize,
    ) -> Result<Workspace<'a>, GpuError> {
        let step = Step::new(gpu, model.config(), count)?;
        Ok(Workspace { step: Some(step), ..Workspace::with_rows(gpu, model, lengths, rank, STEP).await? })
    }

    /// Allocates buffers for adapters of rank up to `rank`, over any base.
    pub async fn stream(
        gpu: &'a Gpu,
        model: &'a Model<'a>,
        lengths: Lengths,
        rank: usize,
    ) -> Result<Workspace<'a>, GpuError> {
        Workspace::with_rows(gpu, model, lengths, rank, 1).await
    }

    async fn with_rows(
        gpu: &'a Gpu,
        model: &'a Model<'a>,
        lengths: Lengths,
        rank: usize,
        least: usize,
    ) -> Result<Workspace<'a>, GpuError> {
        assert!(lengths.context <= model.positions, "the rotary tables cover the context");
        let config = model.config();
        let sizes = Sizes::new(gpu, config, lengths, rank, least);
        let (chunk, d, p, z) = (sizes.lengths.chunk, config.width, config.per_layer_width, sizes.z());
        let model_proj = match model.base.tensor("per_layer_model_proj") {
            Some(whole) => Some(stream::weight(gpu, model.base, &whole).await?),
            None => None,
        };
        let table = model.base.tensor("per_layer_token_embd").map_or(0, |m| m.planes_bytes(chunk));
        let rows = |label: &str, width: usize| Rows::new(gpu, label, chunk, width);
        let operands = sizes.packs.then(|| Operands::new(gpu, chunk, sizes.wide.max(d), 0, z)).transpose()?;
        let experts = |(shape, widths): &(Experts, LayerWidths)| -> Result<_, GpuError> {
            let (acts, normed) = (ExpertActs::new(gpu, *shape, widths, chunk)?, rows("experts' input", d)?);
            let scratch = ExpertScratch::new(gpu, sizes.storages, shape, normed.into(), chunk, sizes.rank)?;
            Ok((acts, scratch))
        };
        let experts = sizes.experts.as_ref().map(experts).transpose()?;
        let delta = delta::Buffers::new(gpu, config, chunk, sizes.rank)?;
        let latent = latent::Buffers::new(gpu, config, chunk)?;
        let mixers =
            delta.as_ref().map_or(0, delta::Buffers::bytes) + latent::Buffers::bytes_of(config, chunk);
        let integers = sizes.integers(gpu, config).map(|[normed, gated]| -> Result<_, GpuError> {
            Ok([Integers::new(gpu, normed)?, Integers::new(gpu, gated)?])
        });
        let integers = integers.transpose()?;
        Ok(Workspace {
            gpu,
            model,
            lengths: sizes.lengths,
            model_proj,
            tokens: gpu.buffer("tokens", ((1 + chunk) * 4) as u64)?,
            table: gpu.buffer("per-layer embedding rows", (table + 16) as u64)?,
            stream: rows("stream", d)?,
            normed: rows("normed", d)?,
            integers,
            per_layer: rows("per-layer inputs", config.layers.len() * p)?,
            products: rows("products", sizes.products + z)?,
            branch: Rows::new(gpu, "per-layer branch", sizes.branch_rows, d + z)?,
            wide: rows("attention and gates", sizes.wide)?,
            z: rows("z", z)?,
            scratch: Scratch::for_products(gpu, operands)?,
            experts,
            delta,
            latent,
            bytes: sizes.operands(d) + sizes.experts(gpu, d) + mixers,
            parts: Parts::new(gpu, sizes.queries[0], sizes.queries[1])?,
            logits: Rows::new(gpu, "logits", 1, config.vocab)?,
            argmax: Argmax::new(gpu)?,
            logits_staging: gpu.staging((config.vocab * 4) as u64),
            likeliest_staging: gpu.staging(size_of::<Likeliest>() as u64),
            step: None,
        })
    }

    /// Sequences that it was created for; 0 if for one alone.
    pub fn sequences(&self) -> usize {
        self.step.as_ref().map_or(0, |step| step.count)
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

    /// Writes the inputs of a pass: tokens that follow `past` others, and their rows of the per-layer embeddings.
    pub(super) async fn write_tokens(&self, past: u32, ids: &[u32]) -> Result<(), GpuError> {
        self.gpu.write(&self.tokens, &[&[past], ids].concat());
        if let Some(table) = self.model.base.tensor("per_layer_token_embd") {
            let rows = self.model.base.read_rows(&table, ids).await.map_err(GpuError::read)?;
            self.gpu.write(&self.table, &planes::to_planes(table.ty, ids.len(), &rows));
        }
        Ok(())
    }

    /// The buffers of a step of several sequences.
    pub(super) fn step(&self) -> &Step {
        self.step.as_ref().expect("the workspace is for several sequences")
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
        let integers: u64 = self.integers.iter().flatten().map(Integers::bytes).sum();
        let step = self.step.as_ref().map_or(0, Step::bytes);
        step + rows + integers + proj + self.bytes + self.table.size() + self.parts.bytes()
    }
}
