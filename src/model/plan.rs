//! The memory plan: every buffer's size before the first is made, and which layers keep their activations.

use super::coop_products::Packs;
use super::experts::{self, ExpertActivations, ExpertScratch};
use super::lending::Lent;
use super::{Model, Trainable, offload};
use crate::base::Base;
use crate::base::config::{Config, Experts};
use crate::data::batch::Capacity;
use crate::gpu::{Gpu, PARTIAL_SUMS};
use crate::ops::Weight;
use crate::ops::attention::coop16 as coop_attention;
use crate::ops::attention::coop16_backward as coop_attention_backward;
use crate::ops::attention::coop16_backward::Left;
use crate::ops::pack::packed_bytes;

/// Widths of one layer's buffers, in f32 per token.
#[derive(Clone, Debug, Default)]
pub(super) struct LayerWidths {
    pub width: usize,
    pub heads: usize,
    pub queries: usize,
    pub head_size: usize,
    pub own_keys: usize,   // G·K where the layer makes its own keys, else 0
    pub kept_keys: usize,  // the same where later layers use them too
    pub own_values: usize, // the same where it has a matrix for the values
    pub ffn: usize,
    pub experts: Option<Experts>,
    pub per_layer: usize,
    pub z: [usize; 9], // by `Input`
}

impl LayerWidths {
    pub fn max(&self, other: &LayerWidths) -> LayerWidths {
        let mut z = self.z;
        for (mine, theirs) in z.iter_mut().zip(other.z) {
            *mine = (*mine).max(theirs);
        }
        LayerWidths {
            width: self.width.max(other.width),
            heads: self.heads.max(other.heads),
            queries: self.queries.max(other.queries),
            head_size: self.head_size.max(other.head_size),
            own_keys: self.own_keys.max(other.own_keys),
            kept_keys: self.kept_keys.max(other.kept_keys),
            own_values: self.own_values.max(other.own_values),
            ffn: self.ffn.max(other.ffn),
            experts: self.experts.or(other.experts), // all that a model has are alike
            per_layer: self.per_layer.max(other.per_layer),
            z,
        }
    }

    /// f32 per token of what attention leaves behind. Its result, and keys and values that later layers use, are apart.
    fn attention(&self, packed: bool, packed_heads: bool) -> usize {
        let [z_attn, z_output, ..] = self.z;
        let queries = self.queries + if packed_heads { self.queries.div_ceil(2) } else { self.queries };
        let passing = if packed_heads { 1 } else { 2 } * (self.own_keys - self.kept_keys);
        let normed = if packed { self.width.div_ceil(2) } else { self.width };
        normed + 2 * self.width + queries + self.own_keys + self.own_values + passing + z_attn + z_output
    }

    /// f32 per token of what the feed-forward and the per-layer branch leave behind.
    fn feed_forward(&self, packed: bool) -> usize {
        let after_ffn = if packed { self.width + self.width.div_ceil(2) } else { self.width };
        let per_layer = if self.per_layer > 0 { after_ffn + 3 * self.per_layer + self.width } else { 0 };
        let ffn = if packed { 2 * self.ffn + self.ffn.div_ceil(2) } else { 3 * self.ffn };
        let normed = if packed { self.width.div_ceil(2) } else { self.width };
        normed + ffn + per_layer + self.z[2..7].iter().sum::<usize>()
    }

    /// Columns of `z` of the adapters of the router, of the experts' gate and up, and of their down.
    pub fn z_of_experts(&self) -> [usize; 3] {
        [self.z[6], self.z[7], self.z[8]]
    }

    /// Padded rank of the adapters of the experts; 0 where they have none.
    pub fn experts_rank(&self) -> usize {
        self.z[7].max(self.z[8])
    }
}

/// What a run will need, before anything is allocated.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Largest micro-batch, in tokens.
    pub tokens: usize,
    /// Tokens that pass through a feed-forward at a time.
    pub chunk: usize,
    /// Rows of logits that exist at a time.
    pub head_rows: usize,
    /// Bytes by purpose.
    pub bytes: Vec<(&'static str, u64)>,
    /// What each layer keeps for backward.
    pub kept: Vec<Kept>,
    /// The experts that stay in host memory.
    pub offloaded: Offloaded,
    pub(super) layers: Vec<LayerWidths>,
    pub(super) z_width: usize,
    pub(super) masked_width: usize,
    pub(super) packs_width: usize,    // 0 where products are computed in f32
    pub(super) packed_operands: bool, // whether what only products read is kept packed
    pub(super) packed_heads: bool,    // whether queries, keys and values are
    pub(super) lent: Lent,
}

/// What a layer keeps of its forward; backward computes the rest again. The choice itself changes no bit of the result; where it leaves
/// attention's backward other memory to work in, on cooperative matrices, sums over long passes round apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kept {
    /// Its input.
    Input,
    /// And what its feed-forward gives: a third of that block need not be computed again.
    Down,
    /// And what its attention gives.
    Attention,
    /// Everything.
    All,
}

impl Kept {
    /// Whether backward computes anything again.
    pub fn recomputes(self) -> bool {
        self != Kept::All
    }
}

/// What the recipe says about recomputation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recompute {
    /// Keep the activations of as many layers as this many bytes hold, the last ones first.
    Keep(u64),
    /// The same, so that the whole plan takes at most this many bytes.
    Within(u64),
    /// Every layer.
    Always,
    /// No layer.
    Never,
}

/// Which layers' experts may stay in host memory. The choice changes no bit of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Those of as few layers as [`Recompute::Within`] asks for, where recomputing every layer is not enough.
    Auto,
    /// All layers'.
    All,
    /// None.
    Never,
}

/// Experts that stay in host memory and are copied to the device layer by layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offloaded {
    /// Their layers.
    pub layers: Vec<usize>,
    /// Layers that have experts.
    pub of: usize,
    /// Bytes of host memory.
    pub bytes: u64,
    /// Bytes that a forward copies: a micro-batch of an evaluation, a token of a reply.
    pub forward: u64,
    /// Bytes that forward and backward of a micro-batch copy.
    pub training: u64,
}

impl Offloaded {
    fn new(gpu: &Gpu, base: &Base, layers: Vec<usize>, lowest: usize) -> Offloaded {
        let bytes = |layers: &mut dyn Iterator<Item = &usize>| -> u64 {
            layers.map(|&layer| offload::layer_bytes(gpu, base, layer)).sum()
        };
        let all = bytes(&mut layers.iter());
        let backward = bytes(&mut layers.iter().filter(|layer| **layer >= lowest));
        // The forward leaves the last one where the backward begins, and the backward the first, if it comes so far.
        let last = bytes(&mut layers.last().into_iter().filter(|layer| **layer >= lowest));
        let first = bytes(&mut layers.first().into_iter().filter(|layer| **layer >= lowest));
        let (forward, training) = match layers.len() {
            1 => (0, 0), // it has its place for itself
            _ => (all, all + backward - last - first),
        };
        Offloaded { of: with_experts(base).len(), bytes: all, forward, training, layers }
    }
}

/// Layers that have experts.
pub fn with_experts(base: &Base) -> Vec<usize> {
    let layers = base.config().layers.iter().enumerate();
    layers.filter(|(_, layer)| layer.experts.is_some()).map(|(i, _)| i).collect()
}

/// Upper bounds of the logits' chunk, unless one row alone is larger: more rows keep more of the device busy, and long passes
/// have room for them.
const HEAD_BYTES: [u64; 2] = [128 << 20, 256 << 20];
/// What a token with loss may take, between these.
const HEAD_BYTES_A_TOKEN: u64 = 32 << 10;

/// Chunks are not made smaller than this: by then other buffers take more.
const LEAST_CHUNK: usize = 512;

/// The passes that a plan is for.
#[derive(Clone, Copy, Debug)]
pub struct Passes {
    /// Their largest.
    pub capacity: Capacity,
    /// Whether adapters read inputs with dropout.
    pub masked: bool,
    /// What is recomputed.
    pub recompute: Recompute,
}

impl Plan {
    /// For a model that is on the device.
    pub fn new(gpu: &Gpu, model: &Model, adapter: &Trainable, passes: Passes) -> Plan {
        let offloaded = model.offloaded();
        let frozen = Frozen { base: model.base, bytes: model.bytes(), chunk: model.chunk, offloaded };
        Plan::of(gpu, &frozen, adapter, passes, LEAST_CHUNK)
    }

    /// The same before the model is on the device, where it will have rotary tables for `positions` positions: what is to stay in
    /// host memory is decided here, for [`Model::offloading`].
    pub fn ahead(
        gpu: &Gpu,
        base: &Base,
        positions: usize,
        adapter: &Trainable,
        passes: Passes,
        offload: Offload,
    ) -> Plan {
        let experts = with_experts(base);
        let plan = |offloaded: Vec<usize>, least_chunk: usize| {
            let bytes = device_bytes(base, positions, &offloaded);
            let frozen = Frozen { base, bytes, chunk: super::CHUNK, offloaded };
            Plan::of(gpu, &frozen, adapter, passes, least_chunk)
        };
        match (offload, passes.recompute) {
            (Offload::All, _) => plan(experts, LEAST_CHUNK),
            (Offload::Auto, Recompute::Within(limit)) => {
                // Experts that are copied cost less than chunks that are small.
                let counts = [super::CHUNK / 2, LEAST_CHUNK]
                    .into_iter()
                    .flat_map(|least| (0..=experts.len()).map(move |count| (count, least)));
                let mut plans = counts.map(|(count, least)| plan(offload::spread(&experts, count), least));
                let fits = plans.find(|plan| plan.total() <= limit);
                fits.unwrap_or_else(|| plan(experts.clone(), LEAST_CHUNK))
            }
            _ => plan(Vec::new(), LEAST_CHUNK),
        }
    }

    /// With the largest chunk, of `least` tokens or more, with which the plan fits, where there is a limit.
    fn of(gpu: &Gpu, model: &Frozen, adapter: &Trainable, passes: Passes, least: usize) -> Plan {
        let tokens = passes.capacity.tokens;
        let with_chunk = |chunk: usize| {
            Plan::with_chunk(gpu, model, adapter, passes, chunk.next_multiple_of(64).min(tokens))
        };
        let Recompute::Within(limit) = passes.recompute else { return with_chunk(model.chunk) };
        let mut chunk = model.chunk.min(tokens);
        loop {
            let plan = with_chunk(chunk);
            if plan.total() <= limit || chunk / 2 < least {
                return plan;
            }
            chunk /= 2;
        }
    }

    fn with_chunk(gpu: &Gpu, model: &Frozen, adapter: &Trainable, passes: Passes, chunk: usize) -> Plan {
        let Passes { capacity: Capacity { tokens, longest, loss_tokens, .. }, masked, recompute } = passes;
        let config = model.base.config();
        let layers: Vec<LayerWidths> = (0..config.layers.len()).map(|i| widths(config, adapter, i)).collect();
        // Dropout masks what products read, in f32.
        let packed_operands = gpu.cooperative() && !masked;
        let widest = layers.iter().fold(LayerWidths::default(), |widest, l| widest.max(l));
        let bytes = |floats: usize| (floats * tokens * 4) as u64;
        let chunk_bytes = |floats: usize| (floats * chunk * 4) as u64;
        // Columns over all tokens that take as much as `cols` over a chunk.
        let of_chunk = |cols: usize| (cols * chunk).div_ceil(tokens.max(1)).next_multiple_of(64);
        let packed_heads = gpu.cooperative() && layers.iter().all(|l| coop_attention::supports(l.head_size));
        let keys_and_values = |l: &LayerWidths| if packed_heads { 3 * l.kept_keys } else { 4 * l.kept_keys };
        let always: usize =
            layers.iter().map(|l| l.heads + keys_and_values(l)).sum::<usize>() + 2 * widest.width;
        let narrow = widest.width.max(widest.queries).max(widest.per_layer);
        let operand = narrow.max(of_chunk(widest.ffn));
        let masked_width = if masked { operand } else { 0 };
        let z_width = adapter.max_z_width();
        // The widest operands come packed, where they can.
        let packs_width = match (gpu.cooperative(), packed_operands) {
            (false, _) => 0,
            (true, true) => narrow,
            (true, false) => operand,
        };
        let packed_down = gpu.cooperative();
        let rows_bytes = |packed: bool, tokens: usize, width: usize| match packed {
            true => packed_bytes(tokens, width) + 4 * tokens as u64,
            false => (tokens * width * 4) as u64,
        };
        let inputs: u64 = layers.iter().map(|l| rows_bytes(packed_down, tokens, l.width)).sum();
        let wide = match packed_operands {
            true => packed_bytes(chunk, widest.ffn),
            false => chunk_bytes(widest.ffn),
        };
        let reach = |window: Option<usize>| window.map_or(tokens, |window| window.min(tokens));
        let least = config.layers.iter().map(|l| Left::least_bytes(l.heads, tokens, reach(l.window))).max();
        let least = if packed_heads { least.unwrap_or(0) } else { 0 };
        let lend = |recomputes: bool| {
            let mut sizes = vec![chunk_bytes(widest.ffn), wide, wide]; // dgeglu, dup and dgate
            sizes.extend([chunk_bytes(widest.ffn); 2].iter().filter(|_| recomputes)); // ffn_gate and ffn_up
            let of_experts = |shape| experts::buffers(gpu, shape, widest.width, chunk);
            sizes.extend(widest.experts.iter().flat_map(of_experts));
            Lent::new(&sizes, bytes(widest.queries), least, gpu.max_binding_bytes())
        };
        let scratch = 2 * widest.width + 4 * widest.own_keys + 2 * widest.heads + z_width + masked_width;
        let chunk_scratch = if packed_operands { 2 } else { 3 } * widest.ffn
            + 2 * widest.per_layer
            + if packed_down { widest.width } else { 0 };
        let row_bytes = (config.vocab.next_multiple_of(4) * 4) as u64;
        let head_bytes = (loss_tokens as u64 * HEAD_BYTES_A_TOKEN).clamp(HEAD_BYTES[0], HEAD_BYTES[1]);
        let head_rows = ((head_bytes / row_bytes) as usize).clamp(1, 65_535).min(loss_tokens.max(1));
        let packed = match packs_width {
            0 => 0,
            width => {
                let head = packed_bytes(head_rows, config.vocab) + packed_bytes(head_rows, config.width);
                Packs::bytes(tokens, width, z_width)
                    + coop_attention_backward::Scratch::bytes(tokens, widest.queries, widest.heads)
                    + head
            }
        };
        let table = model.base.tensor("per_layer_token_embd");
        // Those of the next micro-batch come while this one's are read.
        let fetched = table.map_or(0, |m| 2 * (tokens.min(config.vocab) * m.row_bytes()) as u64);
        let experts = |bytes: fn(&Gpu, &Experts, usize, usize, usize) -> u64, l: &LayerWidths, z: usize| {
            l.experts.map_or(0, |shape| bytes(gpu, &shape, l.width, chunk, z))
        };
        let expert_activations = |l: &LayerWidths| experts(ExpertActivations::bytes, l, l.z[7] + l.z[8]);
        let fixed = vec![
            ("frozen weights", model.bytes),
            ("experts from host memory, in turn", offload::device_bytes(gpu, model.base, &model.offloaded)),
            ("adapter, gradients and moments", adapter.bytes()),
            ("layer inputs, keys and values", bytes(always) + inputs),
            ("backward scratch", bytes(scratch) + chunk_bytes(chunk_scratch)),
            ("rows of experts", experts(ExpertScratch::bytes, &widest, widest.experts_rank())),
            ("logits, one chunk", head_rows as u64 * (row_bytes + 16 * config.width as u64)),
            ("per-layer embedding rows", fetched),
            ("packed operands", packed),
            ("sums of split products", if gpu.workgroups_to_fill() > 0 { PARTIAL_SUMS } else { 0 }),
        ];
        let down_bytes = |tokens: usize, l: &LayerWidths| rows_bytes(packed_down, tokens, l.width);
        let attention_bytes = |l: &LayerWidths| rows_bytes(packed_operands, tokens, l.queries);
        let inner = |l: &LayerWidths| {
            bytes(l.attention(packed_operands, packed_heads) + l.feed_forward(packed_operands))
        };
        let chunks = tokens.div_ceil(chunk.max(1)) as u64;
        let of_layer = |l: &LayerWidths| {
            let parts = down_bytes(tokens, l) + attention_bytes(l);
            inner(l) + parts + chunks * expert_activations(l)
        };
        let sizes: Vec<Sizes> = layers
            .iter()
            .zip(&config.layers)
            .map(|(l, c)| {
                let keys = c.window.map_or(longest / 2, |window| window.min(longest / 2));
                Sizes {
                    down: down_bytes(tokens, l),
                    attention: attention_bytes(l),
                    all: of_layer(l),
                    down_work: (tokens * l.width * l.ffn) as u64,
                    attention_work: ATTENTION_WORK * 2 * (tokens * l.queries * keys) as u64,
                }
            })
            .collect();
        let shared_widths = LayerWidths { kept_keys: 0, ..widest.clone() };
        // The gradient of a gate lies where a recomputing layer's GeGLU was.
        let dgate = chunk_bytes(if packed_operands { widest.ffn.div_ceil(2) } else { widest.ffn });
        let shared = bytes(shared_widths.attention(packed_operands, packed_heads))
            + chunk_bytes(widest.feed_forward(packed_operands))
            + expert_activations(&widest)
            - dgate;
        let own = |recomputes: bool| lend(recomputes).own(bytes(widest.queries));
        let room = |recomputes: bool| match recompute {
            Recompute::Keep(room) => room,
            Recompute::Within(limit) => {
                limit.saturating_sub(own(recomputes) + fixed.iter().map(|(_, b)| b).sum::<u64>())
            }
            Recompute::Always => 0,
            Recompute::Never => u64::MAX,
        };
        let scratch =
            Shared { all: shared, down: down_bytes(chunk, &widest), attention: attention_bytes(&widest) };
        let any_recomputes = |kept: &[Kept]| kept.iter().any(|kept| kept.recomputes());
        let mut kept = choose(&sizes, &scratch, room(true));
        if !any_recomputes(&kept) {
            // Then there is less to borrow.
            kept = choose(&sizes, &scratch, room(false));
        }
        let recomputes = any_recomputes(&kept);
        let lent = lend(recomputes);
        let bytes_kept = kept.iter().zip(&sizes).map(|(kept, sizes)| sizes.of(*kept));
        let mut all = fixed;
        all.push(("activations, kept", bytes_kept.sum()));
        all.push(("attention scratch, not borrowed", lent.own(bytes(widest.queries))));
        if recomputes {
            all.push(("activations, recomputed layer by layer", scratch.needed(&kept)));
        }
        Plan {
            tokens,
            chunk,
            head_rows,
            bytes: all,
            kept,
            offloaded: Offloaded::new(gpu, model.base, model.offloaded.clone(), adapter.lowest_layer()),
            layers,
            z_width,
            masked_width,
            packs_width,
            packed_operands,
            packed_heads,
            lent,
        }
    }

    /// Whether the inputs of layers and what feed-forwards give are kept packed.
    pub(super) fn packed_down(&self) -> bool {
        self.packs_width > 0
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.bytes.iter().map(|(_, b)| b).sum()
    }
}

/// Bytes of what a layer may keep.
#[derive(Clone, Copy)]
struct Sizes {
    down: u64,
    attention: u64,
    all: u64, // the others included
    /// Multiplications that each saves.
    down_work: u64,
    attention_work: u64,
}

/// Multiplications of a large product that take as long as one of attention's forward: 268 and 102 TFLOP/s on an H200, `bench e2b
/// --sequence 2048 --batch 4 --memory-limit 6 --loss-share 25`.
const ATTENTION_WORK: u64 = 2;

impl Sizes {
    fn of(&self, kept: Kept) -> u64 {
        match kept {
            Kept::Input => 0,
            Kept::Down => self.down,
            Kept::Attention => self.down + self.attention,
            Kept::All => self.all,
        }
    }
}

/// Bytes that recomputing layers share.
struct Shared {
    all: u64,
    down: u64,      // more, where a layer does not keep it
    attention: u64, // the same
}

impl Shared {
    fn needed(&self, kept: &[Kept]) -> u64 {
        let of = |level: Kept, bytes: u64| if kept.iter().any(|k| *k < level) { bytes } else { 0 };
        of(Kept::All, self.all) + of(Kept::Down, self.down) + of(Kept::Attention, self.attention)
    }
}

/// What each layer keeps, so that it fits into `room` where that is possible: first what feed-forwards and attention give, by what
/// they save for their size, then everything; of equal ones that of the last layer.
fn choose(layers: &[Sizes], shared: &Shared, room: u64) -> Vec<Kept> {
    if layers.iter().map(|l| l.all).sum::<u64>() <= room {
        return vec![Kept::All; layers.len()];
    }
    let ratio = |work: u64, bytes: u64| work as f64 / bytes.max(1) as f64;
    let mut turns: Vec<(f64, usize, Kept)> = Vec::new();
    for (i, l) in layers.iter().enumerate().rev() {
        let [down, attention] = [ratio(l.down_work, l.down), ratio(l.attention_work, l.attention)];
        // What attention gives is kept beside what the feed-forward gives, or both at once.
        let both = ratio(l.down_work + l.attention_work, l.down + l.attention);
        turns.extend([
            (down, i, Kept::Down),
            (if attention > down { both } else { attention }, i, Kept::Attention),
        ]);
    }
    turns.sort_by(|a, b| b.0.total_cmp(&a.0));
    turns.extend((0..layers.len()).rev().map(|i| (0.0, i, Kept::All)));
    let mut kept = vec![Kept::Input; layers.len()];
    for (_, i, more) in turns {
        let before = kept[i];
        kept[i] = before.max(more);
        let bytes: u64 = kept.iter().zip(layers).map(|(kept, sizes)| sizes.of(*kept)).sum();
        if bytes + shared.needed(&kept) > room {
            kept[i] = before;
        }
    }
    kept
}

/// What a plan asks of a model.
struct Frozen<'a> {
    base: &'a Base,
    bytes: u64, // without what lies in turn
    chunk: usize,
    offloaded: Vec<usize>,
}

/// Bytes that [`Model::bytes`] will be: every matrix but the per-layer embeddings and the experts of the layers `offloaded`, which
/// stay on the host, each in whole vec4s, and the rotary tables of both kinds of layers.
fn device_bytes(base: &Base, positions: usize, offloaded: &[usize]) -> u64 {
    let on_host: Vec<&str> =
        offloaded.iter().flat_map(|&layer| offload::matrices(base, layer)).map(|m| m.name).collect();
    let stays = |name: &str| name == "per_layer_token_embd" || on_host.contains(&name);
    let matrices = base.tensors().filter(|m| m.rows > 1 && !stays(m.name));
    let mut tables: Vec<usize> = base.config().layers.iter().map(|l| positions * l.head_size * 4).collect();
    tables.sort_unstable();
    tables.dedup();
    let tables = tables.into_iter().map(|bytes| bytes.next_multiple_of(16) as u64);
    matrices.map(|m| ((m.rows * m.row_bytes()) as u64).next_multiple_of(16)).chain(tables).sum()
}

fn widths(config: &Config, adapter: &Trainable, layer: usize) -> LayerWidths {
    let l = &config.layers[layer];
    let own_keys = if l.kv_donor.is_none() { l.kv_heads * l.head_size } else { 0 };
    let donor = config.layers.iter().any(|other| other.kv_donor == Some(layer));
    LayerWidths {
        width: config.width,
        kept_keys: if donor { own_keys } else { 0 },
        heads: l.heads.next_multiple_of(4),
        queries: l.heads * l.head_size,
        head_size: l.head_size,
        own_keys,
        own_values: if l.k_eq_v { 0 } else { own_keys },
        ffn: l.ffn_width,
        experts: l.experts,
        per_layer: config.per_layer_width,
        z: adapter.z_widths(layer),
    }
}

impl Model<'_> {
    /// Bytes on the device, without the places where offloaded experts lie in turn.
    pub fn bytes(&self) -> u64 {
        let mut matrices: Vec<&Weight> = vec![&self.token_embd];
        matrices.extend(&self.output);
        matrices.extend(self.per_layer.iter().flat_map(|p| &p.model_proj));
        let offloaded = self.offloaded();
        for (i, l) in self.layers.iter().enumerate() {
            matrices.extend([&l.attn_q, &l.attn_output, &l.ffn_gate, &l.ffn_up, &l.ffn_down]);
            matrices.extend(l.attn_k.iter().chain(&l.attn_v));
            matrices.extend(l.experts.iter().map(|e| e.router()));
            if !offloaded.contains(&i) {
                matrices.extend(l.experts.iter().flat_map(|e| e.matrices()));
            }
            matrices.extend(l.per_layer.iter().flat_map(|p| [&p.inp_gate, &p.proj]));
        }
        let mut tables: Vec<u64> = self.layers.iter().map(|l| l.rope.bytes()).collect();
        tables.sort_unstable();
        tables.dedup(); // layers of a kind share one table
        matrices.iter().map(|m| m.bytes()).sum::<u64>() + tables.iter().sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::Kept::{All, Attention, Down, Input};
    use super::{Shared, Sizes, choose};

    #[test]
    fn what_saves_most_for_its_size_is_kept_first() {
        // The second one has no window.
        let layer = |attention_work| Sizes { down: 3, attention: 5, all: 30, down_work: 12, attention_work };
        let kept =
            |layers: [Sizes; 3], room| choose(&layers, &Shared { all: 40, down: 2, attention: 4 }, room);
        let short = |room| kept([layer(5), layer(10), layer(5)], room);
        assert_eq!(short(90), [All; 3], "all fit without scratch");
        assert_eq!(short(89), [Attention, Attention, All]);
        assert_eq!(short(86), [Attention, Attention, All]);
        assert_eq!(short(85), [Attention; 3]);
        assert_eq!(short(64), [Attention; 3]);
        assert_eq!(short(63), [Down, Attention, Attention]);
        assert_eq!(short(58), [Down, Attention, Down]);
        assert_eq!(short(57), [Down; 3]);
        assert_eq!(short(53), [Down; 3]);
        assert_eq!(short(52), [Input, Down, Down]);
        assert_eq!(short(49), [Input, Input, Down]);
        assert_eq!(short(48), [Input; 3]);
        assert_eq!(short(0), [Input; 3]);
        // Where samples are long, attention over all of them costs more than feed-forwards.
        let long = |room| kept([layer(5), layer(100), layer(5)], room);
        assert_eq!(long(64), [Attention; 3]);
        assert_eq!(long(58), [Down, Attention, Down]);
        assert_eq!(long(57), [Input, Attention, Down]);
        assert_eq!(long(54), [Input, Attention, Input]);
        assert_eq!(long(53), [Down; 3], "no room for both");
    }
}
