//! What forward saves for backward, and the scratch of both. From `ffn_normed` on, recomputing layers hold a chunk of the
//! tokens at a time.
//!
//! | name | shape | needed by |
//! |---|---|---|
//! | `input` | `[T, D]` | norm before attention; recomputation; of the first layer, the per-layer branch of all |
//! | `attn_normed`, `z_attn` | `[T, D]`, `[T, Σ R]` | adapters of q, k, v |
//! | `attn_q`, `attn_k`, `attn_v` | `[T, H·K]`, `[T, G·K]` | norms of the heads |
//! | `q`, `k`, `v`, `attention`, `lse` | `[T, H·K]`, `[T, G·K]`, `[T, H]` | attention; `k` and `v` by sharing layers too; `lse` by recomputation; recomputing layers may keep `attention` |
//! | `z_output`, `attn_output` | `[T, R]`, `[T, D]` | adapter; norm after attention |
//! | `after_attention` | `[T, D]` | norm before the feed-forward |
//! | `ffn_normed`, `z_ffn` | `[T, D]`, `[T, Σ R]` | adapters of gate and up |
//! | `ffn_gate`, `ffn_up`, `geglu`, `z_down` | `[T, F]`, `[T, R]` | GeGLU; adapter of down |
//! | `down` | `[T, D]` | norm after the feed-forward; recomputing layers may keep it |
//! | `experts` | see [`super::experts`] | router and experts, where the layer has any |
//! | `after_ffn`, `z_gate` | `[T, D]`, `[T, R]` | per-layer branch: adapter of inp_gate |
//! | `per_layer_input`, `inp_gate`, `gated_input`, `z_proj`, `proj` | `[T, P]`, `[T, R]`, `[T, D]` | per-layer branch |

use super::coop_products::Packs;
use super::experts::{ExpertActivations, ExpertScratch, Loads};
use super::lending::LentLeft;
use super::plan::{Kept, LayerWidths, Plan};
use crate::base::config::Experts;
use crate::gpu::{Gpu, GpuError, Recorder};
use crate::ops::Rows;
use crate::ops::attention::coop16_backward as coop_attention_backward;
use crate::ops::attention::coop16_backward::Left;
use crate::ops::pack::Packed;

/// What one layer's forward leaves behind. `attention` and `feed_forward` of recomputing layers are the same memory.
pub(super) struct LayerActivations {
    pub input: Rows, // the layer's own, or the stream's where it is kept packed
    kept_input: Option<Packed>,
    pub k: Rows,
    pub v: Rows,
    pub lse: Rows,
    pub attention: AttentionActivations,
    feed_forward: FeedForwardActivations,
    attended: Rows,
    down: Rows,
    experts: Vec<ExpertActivations>, // by chunk; of recomputing layers one for all
    kept: Kept,
}

/// What attention leaves behind, for all tokens.
#[derive(Clone)]
pub(super) struct AttentionActivations {
    pub attn_normed: Rows,
    pub z_attn: Rows,
    pub attn_q: Rows,
    pub attn_k: Rows,
    pub attn_v: Rows,
    pub q: Rows,
    pub z_output: Rows,
    pub attn_output: Rows,
    pub after_attention: Rows,
}

/// What the feed-forward and the per-layer branch leave behind: for a chunk of the tokens, or for all of them.
#[derive(Clone)]
pub(super) struct FeedForwardActivations {
    pub ffn_normed: Rows,
    pub z_ffn: Rows,
    pub ffn_gate: Rows,
    pub ffn_up: Rows,
    pub geglu: Rows,
    pub z_down: Rows,
    pub after_ffn: Rows,
    pub z_gate: Rows,
    pub per_layer_input: Rows,
    pub inp_gate: Rows,
    pub gated_input: Rows,
    pub z_proj: Rows,
    pub proj: Rows,
}

/// Some of a micro-batch's tokens.
#[derive(Clone, Copy)]
pub(super) struct Chunk {
    pub first: usize,
    pub tokens: usize,
}

/// Scratch of one layer's backward, every layer uses the same; C are the tokens of a chunk.
pub(super) struct Scratch {
    pub dstream: Rows,   // gradient of a norm's input or output [T, D]
    pub dnormed: Rows,   // [T, D]
    pub dgate: Rows,     // [C, F]
    pub dup: Rows,       // [C, F]
    pub dgeglu: Rows,    // [C, F]
    pub ffn_down: Rows,  // `down` of a chunk in f32, where it is kept packed [C, D]
    pub dq: Rows,        // [T, H·K]; before that, the output of attention in f32, where it is kept packed
    pub dattn_q: Rows,   // [T, H·K]; before that, the gradient of the attention's output
    pub dheads: Rows,    // gradients of keys or values by query head [T, H·K]
    pub dattn_k: Rows,   // [T, G·K]
    pub dattn_v: Rows,   // [T, G·K]
    pub delta: Rows,     // [T, H, 2]
    pub dgated: Rows,    // [C, P]
    pub dinp_gate: Rows, // [C, P]
    pub u: Rows,         // [T, Σ R]
    pub masked: Rows,    // [T, widest] or [C, widest], with dropout
    pub experts: Option<ExpertScratch>,
}

/// All buffers of a pass over at most `tokens` tokens.
pub struct Activations {
    /// Largest micro-batch that fits.
    pub tokens: usize,
    chunk: usize,
    pub(super) layers: Vec<LayerActivations>,
    pub(super) output: Rows, // of the last layer [T, D]; the stream, where inputs are kept packed
    pub(super) dhidden: Rows, // gradient of the stream [T, D]
    pub(super) dkv: Vec<Option<(Rows, Rows)>>, // gradients of keys and values that some layer made [T, G·K]
    pub(super) kept_keys: Vec<bool>, // by layer: whether later ones use its keys and values; the others share `dkv`
    pub(super) scratch: Scratch,
    pub(super) packs: Option<Packs>,
    pub(super) coop_attention: Option<coop_attention_backward::Scratch>,
}

impl Activations {
    /// Makes every buffer of `plan`.
    pub fn new(gpu: &Gpu, plan: &Plan) -> Result<Activations, GpuError> {
        let make = Maker {
            gpu,
            tokens: plan.tokens,
            packed: plan.packed_operands,
            packed_heads: plan.packed_heads,
            packed_down: plan.packed_down(),
        };
        let make_chunk = Maker { tokens: plan.chunk, ..make };
        let widest = plan.layers.iter().fold(LayerWidths::default(), |widest, l| widest.max(l));
        let shared = match plan.kept.iter().any(|kept| kept.recomputes()) {
            true => Some((
                make.attention("recomputed", &widest)?,
                make_chunk.feed_forward("recomputed", &widest)?,
            )),
            false => None,
        };
        let any_below = |level: Kept| plan.kept.iter().any(|kept| *kept < level);
        let shared_down = match any_below(Kept::Down) {
            true => Some(make_chunk.output("recomputed down", widest.width)?),
            false => None,
        };
        let shared_attended = match any_below(Kept::Attention) {
            true => Some(make.operand("recomputed attention", widest.queries)?),
            false => None,
        };
        let dgeglu = make_chunk.rows("dgeglu", widest.ffn)?;
        let dup = make_chunk.operand("dup", widest.ffn)?;
        // A recomputing layer's GeGLU is read for the last time before the gradient of its gate is written.
        let dgate = match &shared {
            Some((_, feed_forward)) => feed_forward.geglu.clone(),
            None => make_chunk.operand("dgate", widest.ffn)?,
        };
        let shared_experts = shared.as_ref().and(widest.experts);
        let shared_experts = shared_experts.map(|shape| make_chunk.experts(shape, &widest)).transpose()?;
        let keys_and_values = |keys: usize| Ok((make.heads("keys", keys)?, make.heads("values", keys)?));
        let gradients =
            |keys: usize| Ok((make.rows("key gradients", keys)?, make.rows("value gradients", keys)?));
        let shared_kv: (Rows, Rows) = keys_and_values(if shared.is_some() { widest.own_keys } else { 0 })?;
        let shared_dkv: (Rows, Rows) = gradients(widest.own_keys)?;
        let narrowed = |(k, v): &(Rows, Rows), keys: usize| (k.narrowed(keys), v.narrowed(keys));
        let stream = make.rows("stream", widest.width)?;
        let mut layers = Vec::new();
        let mut dkv = Vec::new();
        for (i, w) in plan.layers.iter().enumerate() {
            let recomputes = plan.kept[i].recomputes();
            let (attention, feed_forward) = match (&shared, recomputes) {
                (Some((attention, feed_forward)), true) => (attention.narrowed(w), feed_forward.narrowed(w)),
                _ => {
                    (make.attention(&format!("layer {i}"), w)?, make.feed_forward(&format!("layer {i}"), w)?)
                }
            };
            let down = match (&shared_down, plan.kept[i]) {
                (Some(shared), Kept::Input) => shared.clone(),
                _ => make.output(&format!("layer {i} down"), w.width)?,
            };
            let attended = match &shared_attended {
                Some(shared) if plan.kept[i] < Kept::Attention => shared.narrowed(w.queries),
                _ => make.operand(&format!("layer {i} attention"), w.queries)?,
            };
            let (k, v) = match recomputes && w.kept_keys == 0 {
                true => narrowed(&shared_kv, w.own_keys),
                false => keys_and_values(w.own_keys)?,
            };
            let experts = match (w.experts, &shared_experts) {
                (None, _) => Vec::new(),
                (Some(_), Some(shared)) if recomputes => vec![shared.sharing(gpu, w.z_of_experts())?],
                (Some(shape), _) => {
                    let chunks = 0..plan.tokens.div_ceil(plan.chunk);
                    chunks.map(|_| make_chunk.experts(shape, w)).collect::<Result<_, _>>()?
                }
            };
            let (input, kept_input) = match plan.packed_down() {
                true => (stream.clone(), Some(Packed::new(gpu, "layer input", plan.tokens, w.width)?)),
                false => (make.rows("layer input", w.width)?, None),
            };
            layers.push(LayerActivations {
                input,
                kept_input,
                k,
                v,
                lse: make.rows("lse", w.heads)?,
                attention,
                feed_forward,
                attended,
                down,
                experts,
                kept: plan.kept[i],
            });
            dkv.push(match (w.own_keys, w.kept_keys) {
                (0, _) => None,
                (keys, 0) => Some(narrowed(&shared_dkv, keys)),
                (keys, _) => Some(gradients(keys)?),
            });
        }
        let dnormed = make.rows("dnormed", widest.width)?;
        let experts = match &widest.experts {
            None => None,
            Some(shape) => {
                Some(ExpertScratch::new(gpu, shape, dnormed.clone(), plan.chunk, widest.experts_rank())?)
            }
        };
        // In the order of the plan.
        let mut free = vec![dgeglu.clone(), dup.as_f32(widest.ffn), dgate.as_f32(widest.ffn)];
        free.extend(shared.iter().flat_map(|(_, f)| [f.ffn_gate.clone(), f.ffn_up.clone()]));
        free.extend(experts.iter().flat_map(ExpertScratch::spare));
        let queries = |i: usize, label: &str| match plan.lent.rows[i] {
            Some(lent) => Ok(free[lent].narrowed(widest.queries)),
            None => make.rows(label, widest.queries),
        };
        let [dq, dattn_q, dheads] = [queries(0, "dq")?, queries(1, "dattn_q")?, queries(2, "dheads")?];
        let coop_attention = match plan.packed_heads {
            false => None,
            true => {
                let left = match plan.lent.left {
                    LentLeft::Two(lent, bytes) => Left::within(lent.map(|i| &free[i]), [0, 0], bytes),
                    LentLeft::Behind(i, start, bytes) => {
                        let half = bytes / 512 * 256;
                        Left::within([&free[i], &free[i]], [start, start + half], half)
                    }
                    LentLeft::Own(bytes) => Left::new(gpu, bytes)?,
                };
                let (queries, heads) = (widest.queries, widest.heads);
                Some(coop_attention_backward::Scratch::new(gpu, plan.tokens, queries, heads, left)?)
            }
        };
        Ok(Activations {
            tokens: plan.tokens,
            chunk: plan.chunk,
            layers,
            output: stream,
            dhidden: make.rows("stream gradient", widest.width)?,
            dkv,
            kept_keys: plan.layers.iter().map(|w| w.kept_keys > 0).collect(),
            scratch: Scratch {
                dstream: make.rows("dstream", widest.width)?,
                dnormed,
                dgate,
                dup,
                dgeglu,
                ffn_down: make_chunk.rows("ffn_down", if plan.packed_down() { widest.width } else { 0 })?,
                dq,
                dattn_q,
                dheads,
                dattn_k: make.rows("dattn_k", widest.own_keys)?,
                dattn_v: make.rows("dattn_v", widest.own_keys)?,
                delta: make.rows("delta", 2 * widest.heads)?,
                dgated: make_chunk.rows("dgated", widest.per_layer)?,
                dinp_gate: make_chunk.rows("dinp_gate", widest.per_layer)?,
                u: make.rows("u", plan.z_width)?,
                masked: make.rows("masked input", plan.masked_width)?,
                experts,
            },
            packs: match plan.packs_width {
                0 => None,
                width => Some(Packs::new(gpu, plan.tokens, width, plan.z_width)?),
            },
            coop_attention,
        })
    }

    /// The tokens of a micro-batch, in chunks.
    pub(super) fn chunks(&self, tokens: usize) -> impl Iterator<Item = Chunk> {
        let size = self.chunk;
        (0..tokens).step_by(size).map(move |first| Chunk { first, tokens: size.min(tokens - first) })
    }

    /// What the experts of a layer leave behind of `chunk`, or where it is computed; `None` in dense models.
    pub(super) fn experts(&self, layer: usize, chunk: Chunk) -> Option<&ExpertActivations> {
        let layer = &self.layers[layer];
        layer.experts.get(if layer.kept.recomputes() { 0 } else { chunk.first / self.chunk })
    }

    /// What the feed-forward of a layer gives of `chunk`. Where it is kept packed, what lies there in f32 is scratch of every layer.
    pub(super) fn down(&self, layer: usize, chunk: Chunk) -> Rows {
        let layer = &self.layers[layer];
        let down = match layer.kept {
            Kept::Input => layer.down.clone(),
            _ => layer.down.below(chunk.first),
        };
        match down.packed {
            Some(packed) => Rows { packed: Some(packed), ..self.scratch.ffn_down.clone() },
            None => down,
        }
    }

    /// What the attention of a layer gives to `tokens` tokens. Where it is kept packed, what lies there in f32 is scratch of every layer,
    /// for attention in f32 and its backward.
    pub(super) fn attended(&self, layer: usize, tokens: usize) -> Rows {
        let attended = &self.layers[layer].attended;
        match &attended.packed {
            Some(packed) => {
                let packed = Some(packed.for_rows(tokens));
                Rows { packed, ..self.scratch.dq.narrowed(attended.stride) }
            }
            None => attended.clone(),
        }
    }

    /// How the router spread the choices of some chunk of the last pass; `None` in dense models.
    pub async fn expert_loads(&self, gpu: &Gpu) -> Result<Option<Loads>, GpuError> {
        Loads::read(gpu, self.layers.iter().filter_map(|l| l.experts.first())).await
    }

    /// Sets the gradients of the keys and values of layer `layer` to zero, where it makes any.
    pub(super) fn clear_dkv(&self, rec: &mut Recorder, layer: usize, tokens: usize) {
        for rows in self.dkv[layer].iter().flat_map(|(dk, dv)| [dk, dv]) {
            rec.clear(&rows.buffer, (tokens * rows.stride * 4) as u64);
        }
    }

    /// Keeps the embeddings, where they are kept apart: in f16 with a factor for each row.
    pub(super) fn keep_embeddings(&self, rec: &mut Recorder, tokens: usize) {
        if let Some(kept) = &self.layers[0].kept_input {
            kept.pack(rec, self.output.all(), self.output.stride, tokens);
        }
    }

    /// Where the input of the layer above `layer` is kept from token `first` on, if that is apart.
    pub(super) fn next_input(&self, layer: usize, first: usize) -> Option<Packed> {
        Some(self.layers.get(layer + 1)?.kept_input.as_ref()?.below(first))
    }

    /// Makes the input of layer `layer` the stream, where it is kept apart: forward goes on from what is kept, so that no bit
    /// depends on what is computed again. Compilers may drop a rounding that is undone at once; what was stored they cannot.
    pub(super) fn restore_input(&self, rec: &mut Recorder, layer: usize, tokens: usize) {
        if let Some(kept) = &self.layers[layer].kept_input {
            kept.unpack(rec, self.output.all(), self.output.stride, tokens);
        }
    }

    /// The embeddings from token `first` on, as products read them.
    pub(super) fn embeddings(&self, first: usize) -> Rows {
        let LayerActivations { input, kept_input, .. } = &self.layers[0];
        Rows { packed: kept_input.as_ref().map(|kept| kept.below(first)), ..input.below(first) }
    }

    /// The stream after layer `layer - 1`: the embeddings for 0, the model's output for `L`.
    pub(super) fn hidden(&self, layer: usize) -> &Rows {
        self.layers.get(layer).map_or(&self.output, |l| &l.input)
    }
}

impl LayerActivations {
    /// What is kept of `chunk`, or where it is computed.
    pub(super) fn feed_forward(&self, chunk: Chunk) -> FeedForwardActivations {
        match self.kept.recomputes() {
            true => self.feed_forward.clone(),
            false => self.feed_forward.below(chunk.first),
        }
    }

    /// What backward finds.
    pub(super) fn kept(&self) -> Kept {
        self.kept
    }
}

#[derive(Clone, Copy)]
struct Maker<'a> {
    gpu: &'a Gpu,
    tokens: usize,
    packed: bool,
    packed_heads: bool,
    packed_down: bool,
}

impl Maker<'_> {
    /// Rows that nothing but products read.
    fn operand(&self, label: &str, width: usize) -> Result<Rows, GpuError> {
        match self.packed {
            true => Rows::new_packed(self.gpu, label, self.tokens, width),
            false => self.rows(label, width),
        }
    }

    /// Rows that products read and something else.
    fn both(&self, label: &str, width: usize) -> Result<Rows, GpuError> {
        let packed = self.packed.then(|| Packed::new(self.gpu, label, self.tokens, width)).transpose()?;
        Ok(Rows { packed, ..self.rows(label, width)? })
    }

    /// What the feed-forward gives: in f16 where products round what they read to that as well, at every choice of what to keep.
    fn output(&self, label: &str, width: usize) -> Result<Rows, GpuError> {
        match self.packed_down {
            true => Rows::new_packed(self.gpu, label, self.tokens, width),
            false => self.rows(label, width),
        }
    }

    /// Heads as attention reads them.
    fn heads(&self, label: &str, width: usize) -> Result<Rows, GpuError> {
        match self.packed_heads && width > 0 {
            true => Rows::new_packed(self.gpu, label, self.tokens, width),
            false => self.rows(label, width),
        }
    }

    fn rows(&self, label: &str, width: usize) -> Result<Rows, GpuError> {
        Rows::new(self.gpu, label, if width == 0 { 0 } else { self.tokens }, width)
    }

    fn attention(&self, label: &str, w: &LayerWidths) -> Result<AttentionActivations, GpuError> {
        let rows = |name: &str, width: usize| self.rows(&format!("{label} {name}"), width);
        Ok(AttentionActivations {
            attn_normed: self.operand(&format!("{label} attn_normed"), w.width)?,
            z_attn: rows("z_attn", w.z[0])?,
            attn_q: rows("attn_q", w.queries)?,
            attn_k: rows("attn_k", w.own_keys)?,
            attn_v: rows("attn_v", w.own_values)?,
            q: self.heads(&format!("{label} q"), w.queries)?,
            z_output: rows("z_output", w.z[1])?,
            attn_output: rows("attn_output", w.width)?,
            after_attention: rows("after_attention", w.width)?,
        })
    }

    fn experts(&self, shape: Experts, w: &LayerWidths) -> Result<ExpertActivations, GpuError> {
        ExpertActivations::new(self.gpu, shape, w.width, self.tokens, w.z_of_experts())
    }

    fn feed_forward(&self, label: &str, w: &LayerWidths) -> Result<FeedForwardActivations, GpuError> {
        let rows = |name: &str, width: usize| self.rows(&format!("{label} {name}"), width);
        Ok(FeedForwardActivations {
            ffn_normed: self.operand(&format!("{label} ffn_normed"), w.width)?,
            z_ffn: rows("z_ffn", w.z[2])?,
            ffn_gate: rows("ffn_gate", w.ffn)?,
            ffn_up: rows("ffn_up", w.ffn)?,
            geglu: self.operand(&format!("{label} geglu"), w.ffn)?,
            z_down: rows("z_down", w.z[3])?,
            after_ffn: match w.per_layer {
                0 => rows("after_ffn", 0)?,
                _ => self.both(&format!("{label} after_ffn"), w.width)?,
            },
            z_gate: rows("z_gate", w.z[4])?,
            per_layer_input: rows("per_layer_input", w.per_layer)?,
            inp_gate: rows("inp_gate", w.per_layer)?,
            gated_input: rows("gated_input", w.per_layer)?,
            z_proj: rows("z_proj", w.z[5])?,
            proj: rows("proj", if w.per_layer > 0 { w.width } else { 0 })?,
        })
    }
}

impl Rows {
    /// The same memory with narrower rows.
    pub(super) fn narrowed(&self, width: usize) -> Rows {
        Rows { stride: width.next_multiple_of(4), ..self.clone() }
    }

    /// The same memory as rows of f32.
    fn as_f32(&self, width: usize) -> Rows {
        self.packed.as_ref().map_or_else(|| self.narrowed(width), |packed| packed.as_rows(width))
    }
}

impl AttentionActivations {
    /// The same memory, laid out for a layer of these widths.
    fn narrowed(&self, w: &LayerWidths) -> AttentionActivations {
        AttentionActivations {
            z_attn: self.z_attn.narrowed(w.z[0]),
            attn_q: self.attn_q.narrowed(w.queries),
            attn_k: self.attn_k.narrowed(w.own_keys),
            attn_v: self.attn_v.narrowed(w.own_values),
            q: self.q.narrowed(w.queries),
            z_output: self.z_output.narrowed(w.z[1]),
            ..self.clone()
        }
    }
}

impl FeedForwardActivations {
    /// The same memory, laid out for a layer of these widths.
    fn narrowed(&self, w: &LayerWidths) -> FeedForwardActivations {
        FeedForwardActivations {
            z_ffn: self.z_ffn.narrowed(w.z[2]),
            ffn_gate: self.ffn_gate.narrowed(w.ffn),
            ffn_up: self.ffn_up.narrowed(w.ffn),
            geglu: self.geglu.narrowed(w.ffn),
            z_down: self.z_down.narrowed(w.z[3]),
            z_gate: self.z_gate.narrowed(w.z[4]),
            z_proj: self.z_proj.narrowed(w.z[5]),
            ..self.clone()
        }
    }

    fn below(&self, first: usize) -> FeedForwardActivations {
        FeedForwardActivations {
            ffn_normed: self.ffn_normed.below(first),
            z_ffn: self.z_ffn.below(first),
            ffn_gate: self.ffn_gate.below(first),
            ffn_up: self.ffn_up.below(first),
            geglu: self.geglu.below(first),
            z_down: self.z_down.below(first),
            after_ffn: self.after_ffn.below(first),
            z_gate: self.z_gate.below(first),
            per_layer_input: self.per_layer_input.below(first),
            inp_gate: self.inp_gate.below(first),
            gated_input: self.gated_input.below(first),
            z_proj: self.z_proj.below(first),
            proj: self.proj.below(first),
        }
    }
}
