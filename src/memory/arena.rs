//! The buffers of a plan, and what one layer sees of them.

use std::ops::Range;

use super::alias::ScorePlace;
use super::experts::{ExpertActs, ExpertScratch};
use super::host_acts::{HostActs, Kind};
use super::plan::Plan;
use super::recompute::Kept;
use super::storage::{Role, Storage, Storages};
use super::table::{Entry, Own, Saved, Span, TABLE, TEMPS, Temp, TempEntry, lent, of};
use super::widths::LayerWidths;
use crate::gpu::{Gpu, GpuError, Recorder};
use crate::ops::Rows;
use crate::ops::act::Act;
use crate::ops::attention::coop16_backward::{self, ScoreScratch};
use crate::ops::linear::cuda::Panels;
use crate::ops::pass::{Operands, Scratch};

/// Some of a micro-batch's tokens.
#[derive(Clone, Copy)]
pub struct Chunk {
    /// The first of them.
    pub first: usize,
    /// Number of them.
    pub tokens: usize,
}

/// All buffers of a pass over at most `tokens` tokens.
pub struct Activations {
    /// Largest micro-batch that fits.
    pub tokens: usize,
    /// Scratch that ops share.
    pub scratch: Scratch,
    /// Gradient of the stream `[T, D]`.
    pub dhidden: Act,
    /// Scratch of the experts; `None` in dense models.
    pub experts: Option<ExpertScratch>,
    chunk: usize,
    stream: Rows, // [T, D]
    host: Option<HostActs>,
    layers: Vec<LayerBuffers>,
    storages: Storages,
    temps: Vec<Vec<Act>>, // by `Temp`, of each part of the heads where parts have their own
    dq: Rows,             // [T, H·K]
    dattn_q: Rows,        // [T, H·K]
}

struct LayerBuffers {
    widths: LayerWidths,
    kept: Kept,
    acts: Vec<Vec<Act>>, // by `Saved`, of each part of the heads where parts have their own
    experts: Vec<ExpertActs>, // by chunk; of recomputing layers one for all
    dkeys_values: Option<(Act, Act)>, // where the layer makes keys and values
}

/// The activations that one layer saves, of the tokens of a chunk.
pub struct LayerActs(Vec<Act>);

impl Chunk {
    /// The tokens.
    pub fn range(self) -> Range<usize> {
        self.first..self.first + self.tokens
    }
}

impl LayerActs {
    /// The activation that `of` gives for each name.
    pub fn new(of: impl FnMut(Saved) -> Act) -> LayerActs {
        LayerActs(TABLE.iter().map(|entry| entry.name).map(of).collect())
    }

    /// The embeddings' projection, which the per-layer input is made of, in the memory of [`Saved::InpGate`].
    pub fn projected_embeddings(&self) -> Act {
        self[Saved::InpGate].clone().finished_by_reader()
    }
}

impl std::ops::Index<Saved> for LayerActs {
    type Output = Act;

    fn index(&self, name: Saved) -> &Act {
        &self.0[name as usize]
    }
}

/// Scratch of a layer's backward, of the tokens of a chunk.
pub struct ScratchActs {
    temps: Vec<Act>,
    /// Gradient of the stream `[T, D]`.
    pub dhidden: Act,
    /// Gradient of a block's output, which its last product reads: in [`Temp::DStream`] where products read f32.
    pub doutput: Act,
    /// Gradient of the output of a feed-forward block beside experts: in [`Temp::DNormed`] where products read f32.
    pub doutput_beside_experts: Act,
    /// Gradient of the queries `[T, H·K]`.
    pub dq: Act,
    /// Gradient of attention's output `[T, H·K]`.
    pub dattention: Act,
    /// Gradient of the raw queries, which products read; in the memory of `dattention` where they read f32.
    pub dattn_q: Act,
}

impl std::ops::Index<Temp> for ScratchActs {
    type Output = Act;

    fn index(&self, name: Temp) -> &Act {
        &self.temps[name as usize]
    }
}

/// Allocates activations of the sizes of a plan.
struct Maker<'a> {
    gpu: &'a Gpu,
    plan: &'a Plan,
    widest: LayerWidths,
}

impl Maker<'_> {
    fn rows(&self, span: Span) -> usize {
        span.rows(self.plan.tokens, self.plan.chunk)
    }

    fn act(&self, label: &str, role: Role, rows: usize, width: usize) -> Result<Act, GpuError> {
        self.plan.storages.of(role).make(self.gpu, label, rows, width)
    }

    fn f32(&self, label: &str, width: usize) -> Result<Rows, GpuError> {
        Rows::new(self.gpu, label, if width == 0 { 0 } else { self.plan.tokens }, width)
    }

    /// The activations that layers share, by [`Saved`]; `None` where every layer has its own.
    fn shared(&self) -> Result<Vec<Option<Vec<Act>>>, GpuError> {
        let layers = || self.plan.layers.iter().zip(&self.plan.kept);
        let make = |entry: &Entry| {
            if layers().all(|(w, kept)| entry.is_own(w, *kept)) {
                return Ok(None);
            }
            let label = format!("recomputed {:?}", entry.name);
            let width = (entry.width)(&self.widest);
            let parts = if entry.name.is_by_part() { self.widest.parts } else { 1 };
            let each = (0..parts).map(|_| self.act(&label, entry.role, self.rows(entry.span), width));
            each.collect::<Result<Vec<Act>, GpuError>>().map(Some)
        };
        TABLE.iter().map(make).collect()
    }

    /// The activations of a layer, by [`Saved`].
    fn layer(
        &self,
        layer: usize,
        shared: &[Option<Vec<Act>>],
        host: Option<&HostActs>,
    ) -> Result<Vec<Vec<Act>>, GpuError> {
        let w = &self.plan.layers[layer];
        let make = |(entry, shared): (&Entry, &Option<Vec<Act>>)| {
            let width = (entry.width)(w);
            let is_own = entry.is_own(w, self.plan.kept[layer]);
            if let Some(place) = host.filter(|_| is_own).and_then(|host| host.place(entry.name, layer)) {
                return Ok(vec![place.reshaped(width)]);
            }
            match shared {
                Some(shared) if !is_own => {
                    let parts = if entry.name.is_by_part() { w.parts } else { 1 };
                    Ok(shared[..parts].iter().map(|act| act.reshaped(width)).collect())
                }
                _ => {
                    let Plan { tokens, chunk, storages, .. } = *self.plan;
                    let longest = self.gpu.max_binding_bytes();
                    let (count, rows) = entry.own_buffers(w, storages, [tokens, chunk], longest);
                    let label = format!("layer {layer} {:?}", entry.name);
                    (0..count).map(|_| self.act(&label, entry.role, rows, width)).collect()
                }
            }
        };
        TABLE.iter().zip(shared).map(make).collect()
    }

    /// The activations that leave the device.
    fn host(&self) -> Result<Option<HostActs>, GpuError> {
        let Plan { layers, kept, tokens, leaving, .. } = self.plan;
        let kind = |(name, leaves): &(Saved, Vec<bool>)| {
            let entry = of(*name);
            let rows = entry.span.own_rows(*tokens);
            let storage = self.plan.storages.of(entry.role);
            let bytes = |i: usize| match (
                leaves[i] && entry.is_own(&layers[i], kept[i]),
                (entry.width)(&layers[i]),
            ) {
                (false, _) | (_, 0) => Vec::new(),
                (true, width) => storage.buffer_bytes(rows, width),
            };
            let bytes: Vec<Vec<u64>> = (0..layers.len()).map(bytes).collect();
            let width = (entry.width)(&self.widest);
            let place = || self.act(&format!("{name:?} in turn"), entry.role, rows, width);
            Kind::new(self.gpu, *name, [place()?, place()?], &bytes)
        };
        let kinds = leaving.iter().map(kind).collect::<Result<Vec<_>, GpuError>>()?;
        Ok((!kinds.is_empty()).then(|| HostActs::new(kinds, layers.len())))
    }

    /// The buffers of backward, by [`Temp`].
    fn temps(&self, shared: &[Option<Vec<Act>>]) -> Result<Vec<Vec<Act>>, GpuError> {
        let make = |temp: &TempEntry| {
            let width = (temp.width)(&self.widest, self.plan.storages);
            // A recomputing layer's gated product is read for the last time before the gradient of its gate is written.
            if let (Temp::DGate, 1.., Some(gated)) = (temp.name, width, &shared[Saved::Gated as usize]) {
                return Ok(gated.clone());
            }
            let parts = if temp.name.is_by_part() { self.widest.parts } else { 1 };
            let rows = self.rows(temp.span);
            (0..parts).map(|_| self.act(&format!("{:?}", temp.name), temp.role, rows, width)).collect()
        };
        TEMPS.iter().map(make).collect()
    }

    /// Memory that attention's backward may borrow, in the order of [`super::alias::Lent`].
    fn lendable(
        &self,
        temps: &[Vec<Act>],
        shared: &[Option<Vec<Act>>],
        experts: Option<&ExpertScratch>,
    ) -> Vec<Rows> {
        let memory = |act: &Act| match act.tiles() {
            Some(tiles) => tiles.as_rows(self.widest.ffn),
            None => act.rows().clone(),
        };
        let temps = TEMPS.iter().zip(temps).filter(|(entry, _)| entry.lent).flat_map(|(_, acts)| acts);
        let temps = temps.map(memory);
        let shared = lent(self.plan.storages).iter().filter_map(|name| shared[*name as usize].as_ref());
        let shared = shared.flatten().map(memory);
        temps.chain(shared).chain(experts.into_iter().flat_map(ExpertScratch::spare)).collect()
    }

    /// Gradients of queries, of attention's output and of heads, and attention's scratch.
    fn attention(&self, free: &[Rows]) -> Result<([Rows; 3], Option<coop16_backward::Scratch>), GpuError> {
        let LayerWidths { queries, heads, .. } = self.widest;
        let lent = &self.plan.lent;
        let rows = |i: usize, label: &str| match lent.rows[i] {
            Some(lent) => Ok(free[lent].reshaped(queries)),
            None => self.f32(label, queries),
        };
        let gradients = [rows(0, "dq")?, rows(1, "dattention")?, rows(2, "dheads")?];
        if !self.plan.storages.heads {
            return Ok((gradients, None));
        }
        let scores = match lent.scores {
            ScorePlace::Two(lent, bytes) => ScoreScratch::within(lent.map(|i| &free[i]), [0, 0], bytes),
            ScorePlace::Behind(i, start, bytes) => {
                let half = bytes / 512 * 256;
                ScoreScratch::within([&free[i], &free[i]], [start, start + half], half)
            }
            ScorePlace::Own(bytes) => ScoreScratch::new(self.gpu, bytes)?,
        };
        let scratch = coop16_backward::Scratch::new(self.gpu, self.plan.tokens, queries, heads, scores)?;
        Ok((gradients, Some(scratch)))
    }

    /// The experts' activations of a layer, by chunk.
    fn experts(&self, layer: usize, shared: Option<&ExpertActs>) -> Result<Vec<ExpertActs>, GpuError> {
        let w = &self.plan.layers[layer];
        let Some(shape) = w.experts else { return Ok(Vec::new()) };
        if let Some(shared) = shared.filter(|_| self.plan.kept[layer].recomputes()) {
            return Ok(vec![shared.sharing(self.gpu, w)?]);
        }
        let chunks = 0..self.plan.tokens.div_ceil(self.plan.chunk);
        chunks.map(|_| ExpertActs::new(self.gpu, shape, w, self.plan.chunk)).collect()
    }

    /// Gradients of the keys and values that a layer makes: of its own, where later layers add to them too.
    fn dkeys_values(&self, layer: usize, temps: &[Vec<Act>]) -> Result<Option<(Act, Act)>, GpuError> {
        let w = &self.plan.layers[layer];
        let temp = |name: Temp| temps[name as usize][0].reshaped(w.own_keys);
        Ok(match (w.own_keys, w.shared_keys) {
            (0, _) => None,
            (_, 0) => Some((temp(Temp::DK), temp(Temp::DV))),
            (_, keys) => {
                Some((self.f32("key gradients", keys)?.into(), self.f32("value gradients", keys)?.into()))
            }
        })
    }
}

impl Activations {
    /// Makes every buffer of `plan`.
    pub fn new(gpu: &Gpu, plan: &Plan) -> Result<Activations, GpuError> {
        let widest = LayerWidths::widest(&plan.layers);
        let maker = Maker { gpu, plan, widest };
        let widest = &maker.widest;
        let shared = maker.shared()?;
        let temps = maker.temps(&shared)?;
        let recomputes = plan.kept.iter().any(|kept| kept.recomputes());
        let shared_experts = match widest.experts.filter(|_| recomputes) {
            Some(shape) => Some(ExpertActs::new(gpu, shape, widest, plan.chunk)?),
            None => None,
        };
        let host = maker.host()?;
        let mut layers = Vec::new();
        for (i, w) in plan.layers.iter().enumerate() {
            layers.push(LayerBuffers {
                widths: w.clone(),
                kept: plan.kept[i],
                acts: maker.layer(i, &shared, host.as_ref())?,
                experts: maker.experts(i, shared_experts.as_ref())?,
                dkeys_values: maker.dkeys_values(i, &temps)?,
            });
        }
        let experts = match &widest.experts {
            None => None,
            Some(shape) => {
                let normed = temps[Temp::DNormed as usize][0].clone();
                let rank = widest.experts_rank();
                Some(ExpertScratch::new(gpu, plan.storages, shape, normed, plan.chunk, rank)?)
            }
        };
        let free = maker.lendable(&temps, &shared, experts.as_ref());
        let ([dq, dattn_q, dheads], attention) = maker.attention(&free)?;
        let operands = match plan.shapes.operand {
            0 => None,
            operand => {
                let operands = Operands::new(gpu, plan.tokens, operand, operand, plan.shapes.u)?;
                let panels = plan.shapes.panels.map(|bytes| Panels::new(gpu, bytes)).transpose()?;
                Some(operands.with_panels(panels))
            }
        };
        let scratch = Scratch {
            u: maker.f32("u", plan.shapes.u)?,
            masked: maker.f32("masked input", plan.shapes.masked)?,
            operands,
            delta: temps[Temp::Delta as usize][0].rows().clone(),
            dheads,
            attention,
        };
        Ok(Activations {
            tokens: plan.tokens,
            scratch,
            dhidden: maker.f32("stream gradient", widest.width)?.into(),
            experts,
            chunk: plan.chunk,
            stream: maker.f32("stream", widest.width)?,
            host,
            layers,
            storages: plan.storages,
            temps,
            dq,
            dattn_q,
        })
    }

    /// The tokens of a micro-batch, in chunks.
    pub fn chunks(&self, tokens: usize) -> impl Iterator<Item = Chunk> + use<> {
        let size = self.chunk;
        (0..tokens).step_by(size).map(move |first| Chunk { first, tokens: size.min(tokens - first) })
    }

    /// The activations that layer `layer` saves of `chunk`. In backward (`again`), those that were kept are marked.
    pub fn layer(&self, layer: usize, chunk: Chunk, again: bool) -> LayerActs {
        self.layer_part(layer, 0, chunk, again)
    }

    /// Parts that the heads of layer `layer` are divided into.
    pub fn parts(&self, layer: usize) -> usize {
        self.layers[layer].widths.parts
    }

    /// [`Activations::layer`] of part `part` of the heads.
    pub fn layer_part(&self, layer: usize, part: usize, chunk: Chunk, again: bool) -> LayerActs {
        let buffers = &self.layers[layer];
        let view = |(entry, acts): (&Entry, &Vec<Act>)| {
            let is_own = entry.is_own(&buffers.widths, buffers.kept);
            let act = match entry.span {
                // Each chunk has a buffer.
                Span::Chunk if acts.len() > 1 => acts[chunk.first / self.chunk].clone(),
                Span::Chunk if !is_own => acts[0].clone(),
                _ if is_own || entry.span == Span::Tokens => of_part(acts, part).rows_from(chunk.first),
                _ => of_part(acts, part).clone(),
            };
            let act = self.with_staging(act, entry, &buffers.widths, chunk);
            let is_kept = is_own && matches!(entry.own, Own::From(least) if least < Kept::All);
            match again {
                true if is_kept => act.keep(),
                false if !is_own => act.pass_by(),
                _ => act,
            }
        };
        LayerActs(TABLE.iter().zip(&buffers.acts).map(view).collect())
    }

    /// `act` with the memory in which ops compute its values in f32, where it is stored as tiles: gradients have it at other times.
    fn with_staging(&self, act: Act, entry: &Entry, w: &LayerWidths, chunk: Chunk) -> Act {
        let temp = |name: Temp| self.temps[name as usize][0].rows();
        match entry.name {
            Saved::Input => act.with_staging(self.stream.below(chunk.first)),
            Saved::AttnQ => act.packed_by_reader(self.dq.reshaped(w.queries)).packed_by_product(),
            Saved::AttnK => act.packed_by_reader(self.dattn_q.reshaped(w.own_keys)).packed_by_product(),
            Saved::AttnV => {
                act.packed_by_reader(self.scratch.dheads.reshaped(w.own_values)).packed_by_product()
            }
            Saved::AttnOutput => {
                let act = act.packed_by_reader(temp(Temp::DStream).below(chunk.first));
                // The feed-forward block reads a chunk of the tokens.
                if chunk.tokens <= self.chunk { act.finished_by_reader().packed_by_product() } else { act }
            }
            Saved::FfnGate => act.packed_by_reader(temp(Temp::DGated).reshaped(w.ffn)).packed_by_product(),
            Saved::FfnUp => act.packed_by_reader(temp(Temp::UpStaging).reshaped(w.ffn)).packed_by_product(),
            Saved::Down if w.experts.is_some() => act.with_staging(temp(Temp::DownStaging).clone()),
            Saved::Down | Saved::Proj => {
                act.packed_by_reader(temp(Temp::DownStaging).clone()).finished_by_reader().packed_by_product()
            }
            Saved::AfterFfn => act.beside(temp(Temp::DNormed).below(chunk.first)),
            Saved::Attention => act.with_staging(self.dq.reshaped(w.queries)).for_rows(chunk.tokens),
            Saved::GatedAttention => {
                act.with_staging(temp(Temp::DGatedAttention).reshaped(w.gated())).for_rows(chunk.tokens)
            }
            _ if entry.role == Role::Heads => act.for_rows(chunk.tokens),
            _ => act,
        }
    }

    /// Whether backward computes what layer `layer` saves again.
    pub fn recomputes(&self, layer: usize) -> bool {
        self.layers[layer].kept.recomputes()
    }

    /// The input of layer `layer`, or behind the last one the model's output, from token `first` on. In backward, where it is
    /// computed `again`, it was kept.
    pub fn input(&self, layer: usize, first: usize, again: bool) -> Act {
        let act = match self.layers.get(layer) {
            Some(buffers) => {
                let input = &buffers.acts[Saved::Input as usize][0];
                input.rows_from(first).with_staging(self.stream.below(first))
            }
            None => self.stream.below(first).into(),
        };
        if again { act.keep() } else { act }
    }

    /// Whether any activation leaves the device between forward and backward.
    pub fn leave_device(&self) -> bool {
        self.host.is_some()
    }

    /// In the middle of the forward of layer `layer`, lets what the layer below saved leave the device, as far as it is to be in host memory.
    pub fn leave_below(&self, rec: &mut Recorder, layer: usize) {
        if let (Some(host), Some(below)) = (&self.host, layer.checked_sub(1)) {
            host.leave(rec, below);
        }
    }

    /// Notes that forward has run all layers.
    pub fn end_forward(&self) {
        if let Some(host) = &self.host {
            host.end_forward();
        }
    }

    /// In the middle of the backward of layer `layer`, copies what the layer below saved back to the device.
    pub fn fetch_below(&self, rec: &mut Recorder, layer: usize) {
        if let (Some(host), Some(below)) = (&self.host, layer.checked_sub(1)) {
            host.fetch(rec, below);
        }
    }

    /// The keys and values of layer `layer`, of a micro-batch of `tokens` tokens.
    pub fn keys_values(&self, layer: usize, tokens: usize) -> [Act; 2] {
        [Saved::K, Saved::V].map(|name| self.layers[layer].acts[name as usize][0].for_rows(tokens))
    }

    /// Gradients of the keys and values that layer `layer` makes `[T, G·K]`.
    pub fn dkeys_values(&self, layer: usize) -> &(Act, Act) {
        self.layers[layer].dkeys_values.as_ref().expect("a donor makes keys and values")
    }

    /// Whether later layers use the keys and values of layer `layer`.
    pub fn shares_keys(&self, layer: usize) -> bool {
        self.layers[layer].widths.shared_keys > 0
    }

    /// Sets the gradients of the keys and values of layer `layer` to zero, where it makes any.
    pub fn clear_dkeys_values(&self, rec: &mut Recorder, layer: usize, tokens: usize) {
        for act in self.layers[layer].dkeys_values.iter().flat_map(|(dk, dv)| [dk, dv]) {
            let rows = act.rows();
            rec.clear(&rows.buffer, (tokens * rows.stride * 4) as u64);
        }
    }

    /// The experts of a layer, of `chunk`; `None` in dense models.
    pub fn experts(&self, layer: usize, chunk: Chunk) -> Option<(&ExpertActs, &ExpertScratch)> {
        let layer = &self.layers[layer];
        let acts = layer.experts.get(if layer.kept.recomputes() { 0 } else { chunk.first / self.chunk })?;
        Some((acts, self.experts.as_ref()?))
    }

    /// The experts' activations of the first chunk, by layer that has any.
    pub fn first_experts(&self) -> impl Iterator<Item = &ExpertActs> {
        self.layers.iter().filter_map(|layer| layer.experts.first())
    }

    /// The activations of the experts of each layer that has some, by chunk of tokens.
    pub fn chunks_of_experts(&self) -> impl Iterator<Item = &[ExpertActs]> {
        self.layers.iter().map(|layer| &layer.experts[..]).filter(|chunks| !chunks.is_empty())
    }

    /// The scratch of the backward of layer `layer`, of `chunk`.
    pub fn backward_scratch(&self, layer: usize, chunk: Chunk) -> ScratchActs {
        self.backward_scratch_of(layer, 0, chunk)
    }

    /// [`Activations::backward_scratch`] of part `part` of the heads.
    pub fn backward_scratch_of(&self, layer: usize, part: usize, chunk: Chunk) -> ScratchActs {
        let w = &self.layers[layer].widths;
        let view = |(entry, acts): (&TempEntry, &Vec<Act>)| {
            let act = of_part(acts, part).reshaped((entry.width)(w, self.storages));
            match entry.name {
                Temp::DNormed | Temp::DGatedInput => act.finished_by_reader(),
                // Beside gate and up in f32, their kernel reads f32.
                Temp::DGated if self.storages.of(Role::Gate) == Storage::Blocks => act.in_halves(),
                _ => act,
            }
        };
        let temps: Vec<Act> = TEMPS.iter().zip(&self.temps).map(view).collect();
        let temp = |name: Temp| temps[name as usize].clone();
        let operand = |rows: Act| match (self.storages.of(Role::Block), &self.scratch.operands) {
            (Storage::Tiled, Some(operands)) => Act::tiled(operands.dy.for_rows(chunk.tokens), None),
            _ => rows,
        };
        let dattention: Act = self.dattn_q.reshaped(w.queries).into();
        let dhidden = self.dhidden.rows_from(chunk.first);
        ScratchActs {
            // Experts read it as it is.
            dhidden: if w.experts.is_some() { dhidden } else { dhidden.finished_by_reader() },
            doutput: operand(temp(Temp::DStream)),
            doutput_beside_experts: operand(temp(Temp::DNormed)),
            dq: self.dq.reshaped(w.queries).into(),
            dattn_q: operand(dattention.clone()),
            dattention,
            temps,
        }
    }
}

/// The activation of part `part` of the heads, or that of all parts.
fn of_part(acts: &[Act], part: usize) -> &Act {
    &acts[if acts.len() > 1 { part } else { 0 }]
}
