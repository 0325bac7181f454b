//! The memory plan: every buffer's size before the first is made, and which layers keep their activations.

use super::alias::Lent;
use super::experts::{ExpertActs, ExpertScratch};
use super::host_acts;
use super::logits::{self, LongPanels};
use super::offloaded::Offloaded;
use super::parts;
use super::passes::Passes;
use super::recompute::{Kept, LayerCosts, Recompute, Shared, choose};
use super::storage::Storages;
use super::table::{self, Entry, Own, Saved, Span, TABLE, TEMPS, Temp};
use super::widths::LayerWidths;
use crate::base::config::{Config, DeltaNet, Experts, LayerConfig};
use crate::data::batch::Capacity;
use crate::gpu::{Gpu, PARTIAL_SUMS};
use crate::ops::attention;
use crate::ops::attention::coop16_backward::{self, ScoreScratch};
use crate::ops::linear::cuda;
use crate::ops::lora::PerInput;
use crate::ops::pass::Operands;

/// Tokens that pass through a feed-forward block at a time. It does not depend on what layers keep, so that no plan changes the
/// order of a sum.
pub const CHUNK: usize = 8192;

/// Chunks are not made smaller than this: by then other buffers take more.
pub const LEAST_CHUNK: usize = 512;

/// Products of a large matrix that take as long as one of attention's forward with as many multiplications: 268 and 102 TFLOP/s
/// on an H200, `bench e2b --sequence 2048 --batch 4 --memory-limit 6 --loss-share 25`.
const ATTENTION_WORK: u64 = 2;

/// Multiplications that take as long as making one value of a panel: 58.7 million in 55 µs beside 300 TMAC/s on an H100.
const PANEL_WORK: u64 = 280;

/// Multiplications that take as long as copying a byte to the device: 300 TMAC/s beside 50 GB/s on an H100.
const COPY_WORK: u64 = 6000;

/// More columns than any row of a chunk has.
const WIDEST_ROW: usize = 131_071;

/// Bytes of an activation that no layer can keep.
const TOO_LARGE: u64 = 1 << 50;

/// The memory that a run will need, before anything is allocated.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Largest micro-batch, in tokens.
    pub tokens: usize,
    /// Tokens that pass through a feed-forward block at a time.
    pub chunk: usize,
    /// Rows of logits that exist at a time.
    pub head_rows: usize,
    /// Bytes by purpose.
    pub bytes: Vec<(&'static str, u64)>,
    /// The part of its forward that each layer keeps for backward.
    pub kept: Vec<Kept>,
    /// The contents of host memory.
    pub offloaded: Offloaded,
    /// Sequences that are generated at once.
    pub sequences: usize,
    /// Time that the memory limit costs, in multiplications: recomputed ones, and as many as take as long as the rest.
    pub cost: u64,
    /// The activations that leave the device, and in which layers.
    pub(crate) leaving: Vec<(Saved, Vec<bool>)>,
    pub(crate) layers: Vec<LayerWidths>,
    pub(crate) storages: Storages,
    pub(crate) shapes: Shapes,
    pub(crate) lent: Lent,
}

/// Shapes of the scratch that all layers share.
#[derive(Clone, Copy, Debug)]
pub struct Shapes {
    /// Columns of `u`.
    pub u: usize,
    /// Columns of an input under a dropout mask; 0 without dropout.
    pub masked: usize,
    /// Columns of an operand that is packed for a product; 0 where products read f32.
    pub operand: usize,
    /// Bytes of the panels of products that run in CUDA, where any does.
    pub panels: Option<u64>,
    /// Whether the output projection is one of these products.
    pub long_head: bool,
}

/// The model and the adapter, as far as a plan depends on them.
#[derive(Clone, Debug)]
pub struct Demand<'a> {
    /// The model's shape.
    pub config: &'a Config,
    /// Columns of `z` by layer and input.
    pub z: Vec<PerInput<usize>>,
    /// Columns of the widest `z` of tokens.
    pub u_width: usize,
    /// Bytes of the adapter with its gradients and moments.
    pub adapter: u64,
    /// Bytes of frozen weights on the device, without those in host memory.
    pub weights: u64,
    /// Bytes of the buffers in which matrices from host memory take turns.
    pub turns: u64,
    /// The contents of host memory.
    pub offloaded: Offloaded,
    /// Bytes of generating replies, which an evaluation needs beside the buffers of training.
    pub replies: u64,
    /// Bytes of a row of the per-layer embeddings; 0 where the model has none.
    pub per_layer_row: usize,
    /// Most tokens of a chunk, a multiple of 64.
    pub chunk: usize,
    /// Tokens below which chunks are not made smaller.
    pub least_chunk: usize,
    /// Parts into which heads are divided at least, where they divide: 1, and more in tests.
    pub least_parts: usize,
}

impl Plan {
    /// A plan with the largest chunk, of [`Demand::least_chunk`] tokens or more, with which it fits, where there is a limit. Logits are
    /// multiplied in CUDA where layers keep as much then, or where that takes little of the limit, and fits.
    pub fn of(gpu: &Gpu, demand: &Demand, passes: Passes) -> Plan {
        let tokens = passes.capacity.tokens;
        let with = |chunk: usize, long_head: Option<u64>| {
            Planner::new(gpu, demand, passes, chunk.next_multiple_of(64).min(tokens), long_head).plan()
        };
        let long = LongPanels::of(gpu, demand.config, passes);
        let mut chunk = bindable_chunk(gpu, demand, passes);
        let Recompute::Within(limit) = passes.recompute else { return with(chunk, long.worthwhile) };
        loop {
            let plain = with(chunk, None);
            let fits = |plan: &Plan| plan.total() <= limit;
            let with_long = |bytes: Option<u64>| Some(with(chunk, Some(bytes?))).filter(fits);
            let is_as_kept = |plan: &Plan| plan.kept == plain.kept;
            let as_kept = long.all.into_iter().find_map(|bytes| with_long(bytes).filter(is_as_kept));
            let plan = as_kept.or_else(|| with_long(long.worthwhile)).unwrap_or(plain);
            if plan.total() <= limit || chunk / 2 < demand.least_chunk {
                return plan;
            }
            chunk /= 2;
        }
    }

    /// Bytes of the whole plan.
    pub fn total(&self) -> u64 {
        self.bytes.iter().map(|(_, bytes)| bytes).sum()
    }
}

/// Tokens of a chunk, as many as [`Demand::chunk`] has unless a device has no buffers for their widest rows.
fn bindable_chunk(gpu: &Gpu, demand: &Demand, passes: Passes) -> usize {
    let tokens = passes.capacity.tokens;
    let fits = |chunk: usize| {
        let planner = Planner::new(gpu, demand, passes, chunk, None);
        planner.longest_of_chunk() <= gpu.max_binding_bytes()
    };
    let mut chunk = demand.chunk.min(tokens);
    // Most devices have buffers for any model's rows.
    if (chunk * WIDEST_ROW * 4) as u64 <= gpu.max_binding_bytes() {
        return chunk;
    }
    while chunk > 64 && !fits(chunk) {
        chunk = (chunk / 2).next_multiple_of(64);
    }
    chunk
}

/// One chunk size's plan in the making.
struct Planner<'a> {
    gpu: &'a Gpu,
    demand: &'a Demand<'a>,
    passes: Passes,
    chunk: usize,
    whole: Vec<LayerWidths>, // with all heads in one part
    layers: Vec<LayerWidths>,
    widest: LayerWidths,
    storages: Storages,
    shapes: Shapes,
    least_scores: u64,
}

impl<'a> Planner<'a> {
    fn new(
        gpu: &'a Gpu,
        demand: &'a Demand<'a>,
        passes: Passes,
        chunk: usize,
        long_head: Option<u64>,
    ) -> Planner<'a> {
        let config = demand.config;
        let tokens = passes.capacity.tokens;
        let each = demand.z.iter().enumerate();
        let whole: Vec<LayerWidths> = each.map(|(i, z)| LayerWidths::of(gpu, config, i, *z)).collect();
        let storages = Storages::new(gpu, config, passes.masked);
        let (layers, storages) = parts::divide(gpu, config, tokens, demand.least_parts, &whole, storages);
        let widest = LayerWidths::widest(&layers);
        let (tiles, heads) = (storages.tiles, storages.heads);
        // Columns over all tokens that take as much as `cols` over a chunk.
        let of_chunk = |cols: usize| (cols * chunk).div_ceil(tokens.max(1)).next_multiple_of(64);
        let mixers = widest.queries.max(widest.mixer_input()).max(widest.latent.widest());
        let staged = widest.staged.input.max(widest.staged.output);
        let narrow = widest.width.max(mixers).max(widest.per_layer).max(of_chunk(staged));
        let wide = narrow.max(of_chunk(widest.ffn));
        let widths = [widest.width, mixers.max(staged), widest.ffn];
        let head = long_head.unwrap_or(0);
        let panels = cuda::panel_bytes(gpu, tokens, widths, demand.u_width, head);
        let of_experts = widest.experts.as_ref().and_then(|shape| {
            let (rank, room) = (widest.experts_rank(), passes.recompute.memory() / 32);
            cuda::grouped::panel_bytes(gpu, chunk, shape, widest.width, rank, room)
        });
        let shapes = Shapes {
            u: demand.u_width,
            masked: if passes.masked { wide } else { 0 },
            operand: match (tiles, passes.masked) {
                (false, _) => 0,
                (true, false) => narrow, // the widest operands are stored as tiles
                (true, true) => wide,
            },
            panels: panels.max(of_experts),
            long_head: long_head.is_some(),
        };
        let reach = |l: &LayerConfig| l.window.map_or(tokens, |window| window.min(tokens));
        // CUDA's kernels keep scores in registers.
        let stored = config.layers.iter().zip(&layers);
        let stored =
            stored.filter(|(l, _)| heads && !attention::cuda::supports(gpu, l.head_size, l.score_softcap));
        let scores =
            stored.map(|(l, w)| ScoreScratch::least_bytes(l.heads / w.parts, tokens, reach(l))).max();
        let least_scores = scores.unwrap_or(0);
        Planner { gpu, demand, passes, chunk, whole, layers, widest, storages, shapes, least_scores }
    }

    fn plan(self) -> Plan {
        let tokens = self.passes.capacity.tokens;
        let sizes: Vec<LayerCosts> = (0..self.layers.len()).map(|i| self.sizes(i)).collect();
        let shared = Shared {
            all: self.shared(|own| matches!(own, Own::From(Kept::All) | Own::Keys))
                + self.experts(&self.widest)
                - self.temp_bytes(Temp::DGate),
            products: self.shared(|own| own == Own::From(Kept::Products)),
            down: self.shared(|own| own == Own::From(Kept::Down)),
            attention: self.shared(|own| own == Own::From(Kept::Attention)),
        };
        let queries = (tokens * self.widest.queries * 4) as u64;
        let mut fixed = self.fixed();
        let own = |least: Kept| self.lend(least).own(queries);
        let room = |least: Kept| match self.passes.recompute {
            Recompute::Keep(room) => room,
            Recompute::Within(limit) => {
                let own = own(least);
                limit.saturating_sub(own + fixed.iter().map(|(_, bytes)| bytes).sum::<u64>())
            }
            Recompute::Always => 0,
            Recompute::Never => u64::MAX,
        };
        let (mut kept, mut least) = (Vec::new(), Kept::Input);
        // The more every layer keeps, the less memory can be borrowed.
        for assumed in [Kept::Input, Kept::Products, Kept::All] {
            kept = choose(&sizes, &shared, room(assumed));
            least = kept.iter().copied().min().unwrap_or(Kept::All);
            if own(least) <= own(assumed) {
                break;
            }
        }
        let lent = self.lend(least);
        let mut offloaded = self.demand.offloaded.clone();
        offloaded.saves = self.copied(&kept);
        let cost = self.cost(&kept, &sizes, offloaded.training + offloaded.saves);
        let leaving = self.leaving();
        let bytes_kept = kept.iter().zip(&sizes).map(|(kept, sizes)| sizes.of(*kept));
        fixed.push(("activations, kept", bytes_kept.sum()));
        fixed.push(("attention scratch, not borrowed", lent.own(queries)));
        if least.recomputes() {
            fixed.push(("activations, recomputed layer by layer", shared.needed(&kept)));
        }
        Plan {
            tokens,
            chunk: self.chunk,
            head_rows: self.head_rows(),
            bytes: fixed,
            kept,
            offloaded,
            cost,
            sequences: self.passes.capacity.sequences.count,
            leaving,
            layers: self.layers,
            storages: self.storages,
            shapes: self.shapes,
            lent,
        }
    }

    /// Whether `name` of layer `layer` leaves the device.
    fn leaves(&self, name: Saved, layer: usize) -> bool {
        // Parts of the heads stay on the device.
        (self.layers[layer].parts == 1 || !name.is_by_part())
            && host_acts::leaves(self.demand.offloaded.on_host.saves, self.demand.config, name, layer)
    }

    /// The activations that leave the device, and in which layers.
    fn leaving(&self) -> Vec<(Saved, Vec<bool>)> {
        let names = host_acts::names(self.demand.offloaded.on_host.saves).iter();
        let layers = 0..self.layers.len();
        names.map(|&name| (name, layers.clone().map(|layer| self.leaves(name, layer)).collect())).collect()
    }

    /// Bytes of the places of activations that leave.
    fn places(&self) -> u64 {
        let names = host_acts::names(self.demand.offloaded.on_host.saves).iter();
        names.map(|name| host_acts::PLACES as u64 * self.own_bytes(table::of(*name), &self.widest)).sum()
    }

    /// Bytes of activations that a micro-batch copies to the host and back.
    fn copied(&self, kept: &[Kept]) -> u64 {
        let layers = self.layers.len().saturating_sub(host_acts::PLACES);
        let each = (0..layers).flat_map(|layer| {
            let own = TABLE.iter().filter(move |entry| entry.is_own(&self.layers[layer], kept[layer]));
            own.filter(move |entry| self.leaves(entry.name, layer))
                .map(move |entry| self.own_bytes(entry, &self.layers[layer]))
        });
        2 * each.sum::<u64>()
    }

    /// Time that a choice costs, in multiplications.
    fn cost(&self, kept: &[Kept], sizes: &[LayerCosts], copied: u64) -> u64 {
        let recomputed: u64 = kept.iter().zip(sizes).map(|(kept, sizes)| sizes.recomputed(*kept)).sum();
        let work: u64 = sizes.iter().map(|sizes| sizes.work).sum();
        let chunks = self.passes.capacity.tokens.div_ceil(self.chunk.max(1)) as u64;
        // Forward, backward, and forward again.
        let made = 3 * chunks * self.layers.iter().map(|w| (3 * w.width * w.ffn) as u64).sum::<u64>();
        let panels = if self.shapes.panels.is_some() { made * PANEL_WORK } else { 0 };
        let copies = copied * COPY_WORK;
        let hidden = (2 * work + recomputed) * 6 / 10;
        recomputed + panels + copies.saturating_sub(hidden) + copies / 20
    }

    /// Bytes by purpose that do not depend on what layers keep.
    fn fixed(&self) -> Vec<(&'static str, u64)> {
        let tokens = self.passes.capacity.tokens;
        let config = self.demand.config;
        let stream = (tokens * self.widest.width * 4) as u64;
        let always: u64 = (0..self.layers.len()).map(|layer| self.always(layer)).sum();
        let key_gradients: usize = self.layers.iter().map(|w| 2 * w.shared_keys).sum();
        let inputs = always + self.places() + 2 * stream + (tokens * key_gradients * 4) as u64;
        let scratch_columns = self.shapes.u + self.shapes.masked;
        let scratch = TEMPS.iter().map(|temp| self.temp_bytes(temp.name)).sum::<u64>()
            + (tokens * scratch_columns * 4) as u64;
        let experts = |shape: &Experts| {
            let (width, rank) = (self.widest.width, self.widest.experts_rank());
            ExpertScratch::bytes(self.gpu, self.storages, shape, width, self.chunk, rank)
        };
        let logits = (config.vocab.next_multiple_of(4) + 4 * config.width) * 4 * self.head_rows();
        let sums = if self.gpu.kernels().workgroups_to_fill() > 0 { PARTIAL_SUMS } else { 0 };
        // The next micro-batch's rows are uploaded while this one's are read.
        let per_layer_rows = 2 * tokens.min(config.vocab) * self.demand.per_layer_row;
        // As are the teacher's distributions.
        let teacher = 2 * self.passes.capacity.loss_tokens * self.passes.capacity.teacher;
        vec![
            ("frozen weights", self.demand.weights),
            ("matrices from host memory, in turn", self.demand.turns),
            ("adapter, gradients and moments", self.demand.adapter),
            ("layer inputs, keys and values", inputs),
            ("backward scratch", scratch),
            ("scratch of forward", self.shared(|own| own == Own::Never)),
            ("rows of experts", self.widest.experts.as_ref().map_or(0, experts)),
            ("logits, one chunk", logits as u64),
            ("per-layer embedding rows", per_layer_rows as u64),
            ("the teacher's log-probabilities", teacher as u64),
            ("packed operands", self.operands()),
            ("replies", self.demand.replies),
            ("sums of split products", sums),
        ]
    }

    /// Bytes of scratch for operands of products on 16×16 matrices, and of attention's backward there.
    fn operands(&self) -> u64 {
        if self.shapes.operand == 0 {
            return 0;
        }
        let tokens = self.passes.capacity.tokens;
        let operand = self.shapes.operand;
        let config = self.demand.config;
        let attention = match self.storages.heads {
            true => coop16_backward::Scratch::bytes(tokens, self.widest.queries, self.widest.heads),
            false => 0,
        };
        Operands::bytes(tokens, operand, operand, self.shapes.u)
            + self.shapes.panels.unwrap_or(0)
            + Operands::bytes(self.head_rows(), config.width, config.vocab, 0)
            + attention
    }

    /// Rows of logits that exist at a time.
    fn head_rows(&self) -> usize {
        let loss_tokens = self.passes.capacity.loss_tokens;
        let rows =
            logits::rows(self.demand.config.vocab, loss_tokens, self.storages.tiles, self.shapes.long_head);
        rows.min(logits::most_rows(self.gpu, self.demand.config.vocab))
    }

    fn rows(&self, span: Span) -> usize {
        span.rows(self.passes.capacity.tokens, self.chunk)
    }

    /// Bytes of one buffer of backward, or of those of all parts of the heads.
    fn temp_bytes(&self, name: Temp) -> u64 {
        let temp = &TEMPS[name as usize];
        let width = (temp.width)(&self.widest, self.storages);
        let parts = if name.is_by_part() { self.widest.parts as u64 } else { 1 };
        parts * self.storages.of(temp.role).bytes(self.rows(temp.span), width)
    }

    /// Bytes of the longest buffer of a chunk's tokens.
    fn longest_of_chunk(&self) -> u64 {
        let rows = |span: Span| if span == Span::Chunk { self.chunk } else { 0 };
        let saved = TABLE.iter().map(|entry| (entry.role, entry.span, (entry.width)(&self.widest)));
        let temps =
            TEMPS.iter().map(|temp| (temp.role, temp.span, (temp.width)(&self.widest, self.storages)));
        let bytes =
            |(role, span, width): (_, Span, usize)| self.storages.of(role).value_bytes(rows(span), width);
        let of_experts = |shape: &Experts| {
            let scratch =
                ExpertScratch::spare_bytes(self.gpu, self.storages, shape, self.widest.width, self.chunk);
            scratch.into_iter().max().max(Some(ExpertActs::longest(
                self.gpu,
                shape,
                &self.widest,
                self.chunk,
            )))
        };
        let experts = self.widest.experts.as_ref().and_then(of_experts);
        // Scratch of all tokens has room for a chunk in wider rows.
        let masked = (self.passes.capacity.tokens * self.shapes.masked * 4) as u64;
        saved.chain(temps).map(bytes).chain(experts).max().unwrap_or(0).max(masked)
    }

    /// Bytes of an activation of a layer of its own.
    fn own_bytes(&self, entry: &Entry, w: &LayerWidths) -> u64 {
        let (count, rows) = self.own_buffers(entry, w);
        count as u64 * self.storages.of(entry.role).bytes(rows, (entry.width)(w))
    }

    fn own_buffers(&self, entry: &Entry, w: &LayerWidths) -> (usize, usize) {
        let rows = [self.passes.capacity.tokens, self.chunk];
        entry.own_buffers(w, self.storages, rows, self.gpu.max_binding_bytes())
    }

    /// Whether the buffers of an activation of a layer of its own fit a binding; without recomputation they have to.
    fn is_bindable(&self, entry: &Entry, w: &LayerWidths) -> bool {
        let bytes = self.storages.of(entry.role).value_bytes(self.own_buffers(entry, w).1, (entry.width)(w));
        bytes <= self.gpu.max_binding_bytes() || self.passes.recompute == Recompute::Never
    }

    /// Bytes that a layer has for itself at every level.
    fn always(&self, layer: usize) -> u64 {
        let w = &self.layers[layer];
        let own =
            TABLE.iter().filter(|entry| entry.is_own(w, Kept::Input) && !self.leaves(entry.name, layer));
        own.map(|entry| self.own_bytes(entry, w)).sum()
    }

    /// Bytes of the experts' activations of a chunk of a layer.
    fn experts(&self, w: &LayerWidths) -> u64 {
        w.experts.as_ref().map_or(0, |shape| ExpertActs::bytes(self.gpu, shape, w, self.chunk))
    }

    /// Bytes of the shared activations of which `which` says yes.
    fn shared(&self, which: impl Fn(Own) -> bool) -> u64 {
        let entries = TABLE.iter().filter(|entry| which(entry.own));
        let bytes = |entry: &Entry| {
            let width = (entry.width)(&self.widest);
            let parts = if entry.name.is_by_part() { self.widest.parts as u64 } else { 1 };
            parts * self.storages.of(entry.role).bytes(self.rows(entry.span), width)
        };
        entries.map(bytes).sum()
    }

    /// Bytes and saved work of layer `layer` at each level.
    fn sizes(&self, layer: usize) -> LayerCosts {
        let Passes { capacity: Capacity { tokens, longest, .. }, .. } = self.passes;
        let (w, whole) = (&self.layers[layer], &self.whole[layer]);
        let own = |kept: Kept| -> u64 {
            let is_added = |entry: &&Entry| entry.is_own(w, kept) && !entry.is_own(w, Kept::Input);
            let stays = |entry: &&Entry| !self.leaves(entry.name, layer);
            let entries = TABLE.iter().filter(is_added).filter(stays);
            entries
                .map(|entry| if self.is_bindable(entry, w) { self.own_bytes(entry, w) } else { TOO_LARGE })
                .sum()
        };
        let down = own(Kept::Down);
        let chunks = tokens.div_ceil(self.chunk.max(1)) as u64;
        let window = self.demand.config.layers[layer].window;
        let keys = window.map_or(longest / 2, |window| window.min(longest / 2));
        LayerCosts {
            down,
            attention: own(Kept::Attention).saturating_sub(down),
            products: own(Kept::Products),
            all: own(Kept::All) + chunks * self.experts(w),
            work: work(whole, tokens) + ATTENTION_WORK * 2 * (tokens * whole.queries * keys) as u64,
            down_work: (tokens * w.width * w.ffn) as u64,
            attention_work: ATTENTION_WORK * 2 * (tokens * whole.queries * keys) as u64,
        }
    }

    /// Which memory attention's backward borrows, where every layer keeps `least` or more.
    fn lend(&self, least: Kept) -> Lent {
        let mut sizes: Vec<u64> = TEMPS
            .iter()
            .filter(|temp| temp.lent)
            .map(|temp| {
                let width = (temp.width)(&self.widest, self.storages);
                self.storages.of(temp.role).value_bytes(self.rows(temp.span), width)
            })
            .collect();
        let saved = |name: Saved| {
            let entry = table::of(name);
            self.storages.of(entry.role).value_bytes(self.rows(entry.span), (entry.width)(&self.widest))
        };
        let is_shared = |name: &&Saved| matches!(table::of(**name).own, Own::From(own) if least < own);
        sizes.extend(table::lent(self.storages).iter().filter(is_shared).map(|name| saved(*name)));
        let of_experts = |shape: &Experts| {
            ExpertScratch::spare_bytes(self.gpu, self.storages, shape, self.widest.width, self.chunk)
        };
        sizes.extend(self.widest.experts.iter().flat_map(of_experts));
        let queries = (self.passes.capacity.tokens * self.widest.queries * 4) as u64;
        Lent::new(&sizes, queries, self.least_scores, self.gpu.max_binding_bytes())
    }
}

/// Multiplications of the matrices of a layer's forward over `tokens` tokens.
fn work(w: &LayerWidths, tokens: usize) -> u64 {
    let mixer = w.queries + w.output_gates + w.own_keys + w.own_values + w.queries.max(w.gated());
    let delta = w.delta_width(DeltaNet::channels) + 2 * w.delta_width(DeltaNet::values);
    let latent = w.latent.query_rank + w.latent.both;
    let mixer = mixer.max(delta).max(4 * w.short_conv) + latent;
    let experts = w.experts.as_ref().map_or(0, |experts| 3 * experts.used * experts.width);
    (tokens * w.width * (mixer + 3 * w.ffn + experts + 2 * w.per_layer)) as u64
}
