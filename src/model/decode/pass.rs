//! One pass through the layers of `model/forward.rs`, with cached keys and values.

use super::tokens::Walk;
use super::{Decoder, Tail};
use crate::base::gguf::source::now;
use crate::gpu::{GpuError, Recorder};
use crate::memory::{LayerActs, Saved};
use crate::model::batch::Tokens;
use crate::model::forward::raw_queries;
use crate::model::latent::without_zeros;
use crate::model::offload::Way;
use crate::ops::argmax::Likeliest;
use crate::ops::cached_attention::CachedAttention;
use crate::ops::cached_heads::{self, Heads};
use crate::ops::pass::{Decoding, Pass};
use crate::ops::rms_norm::{self, Norm};
use crate::ops::{Tile, Weight, embedding, linear, matvec, output_gate, per_layer};

impl<'a> Decoder<'a> {
    /// All layers for `rows` tokens, up to the output norm, of a model that is entirely on the device.
    pub(super) fn pass(&self, rec: &mut Recorder<'a>, rows: usize) {
        now(self.through(rec, rows, false)).expect("nothing is fetched");
    }

    /// Like [`Decoder::pass`], for any model. Parts of the pass run before `rec` is submitted.
    pub(super) async fn pass_fetching(&self, rec: &mut Recorder<'a>, rows: usize) -> Result<(), GpuError> {
        self.through(rec, rows, true).await
    }

    async fn through(&self, rec: &mut Recorder<'a>, rows: usize, fetches: bool) -> Result<(), GpuError> {
        let model = self.w.model;
        if fetches {
            model.fetch_first(rec, Way::Around).await?;
        }
        let p = &mut self.over(rec, rows, self.is_short(rows));
        let walk = &Walk { decoder: self, rows };
        self.embed(p);
        for layer in 0..model.layers.len() {
            model.attention_forward(p, walk, layer);
            if fetches {
                model.fetch_after(p.rec.for_copies(), layer, Way::Around).await?;
            }
            model.feed_forward(p, walk, layer, walk.all());
        }
        let layers = model.layers.len();
        rms_norm::forward(p, &walk.normed(layers), &walk.input(layers, 0), &model.output_norm);
        Ok(())
    }

    /// The embeddings, and the per-layer inputs.
    fn embed(&self, p: &mut Pass) {
        let (w, model) = (self.w, self.w.model);
        let factor = model.config().embedding_scale;
        embedding::forward(p.rec.now(), &w.stream, &w.tokens, 1, &model.token_embd, 0, factor, p.tokens);
        self.per_layer_inputs(p);
    }

    /// `(√P·table[token] + norm(D^-½·model_proj·embedding))/√2` of all layers.
    fn per_layer_inputs(&self, p: &mut Pass) {
        let (w, model) = (self.w, self.w.model);
        let (Some(global), Some(projection)) = (&model.per_layer, &w.model_proj) else { return };
        let factor = (model.config().width as f64).sqrt().recip() as f32;
        linear::frozen(p, &w.per_layer.clone().into(), &w.stream.clone().into(), projection, factor);
        let of_file = model.base.tensor("per_layer_token_embd").expect("such models have the table");
        let tile = Tile { first_row: 0, rows: p.tokens, buffer: w.table.clone(), range: None };
        let (rows, cols) = (p.tokens, of_file.cols);
        let table = Weight { ty: of_file.ty, rows, cols, tiles: vec![tile], bias: None };
        per_layer::forward(p.rec.now(), &w.per_layer, &table, &global.proj_norm);
    }

    /// A pass over `rows` tokens whose products take the kernels for a few rows if `short`.
    pub(super) fn over<'p>(&'p self, rec: &'p mut Recorder<'a>, rows: usize, short: bool) -> Pass<'p, 'a> {
        let decoding = Some(Decoding { short, normed: &self.w.normed });
        Pass { decoding, ..Pass::new(rec, rows, &self.w.scratch) }
    }

    /// Logits of row `row` of the pass, and the result that the host reads.
    pub(super) fn tail(&self, rec: &mut Recorder<'_>, row: usize, tail: Tail) {
        let (w, model) = (self.w, self.w.model);
        let (vocab, softcap) = (model.config().vocab, model.config().softcap);
        let (y, x) = (w.logits.all(), w.normed.all());
        let head = &[model.head_matrix()];
        // A pass of one token has its tail at row 0, a longer one has not.
        match (Walk { decoder: self, rows: row + 1 }).integers(0, head) {
            Some(integers) => matvec::forward_integers(rec, y, x, integers, head, None, softcap),
            None => matvec::forward(rec, y, x, row, head, None, 1.0, softcap, 1),
        }
        match tail {
            Tail::Logits => rec.copy(&w.logits.buffer, &w.logits_staging, (vocab * 4) as u64),
            Tail::Likeliest => {
                w.argmax.forward(rec, &w.logits, vocab);
                rec.copy(&w.argmax.result, &w.likeliest_staging, size_of::<Likeliest>() as u64);
            }
        }
    }
}

impl Walk<'_, '_> {
    /// Attention with its cache.
    pub(super) fn attention(&self, p: &mut Pass, layer: usize, a: &LayerActs) {
        let (d, w, rows) = (self.decoder, self.decoder.w, self.rows);
        let (l, lw) = (&w.model.config().layers[layer], &w.model.layers[layer]);
        let products = match &lw.latent {
            Some(latent) => self.of_latent(p, layer, latent, a),
            None => a[raw_queries(l)].clone(),
        };
        let (mut q_norm, mut k_norm) = (&lw.attn_q_norm, lw.attn_k_norm.as_ref());
        let nothing = Norm::identity(l.head_size);
        if l.output_gate || l.qk_norm_of_rows {
            p.rec.now(); // the adapter's terms are added first
        }
        if l.qk_norm && l.qk_norm_of_rows {
            rms_norm::columns::in_place(p.rec.now(), products.view(), q_norm, rows);
            if let Some(k_norm) = k_norm {
                rms_norm::columns::in_place(p.rec.now(), a[Saved::AttnK].view(), k_norm, rows);
            }
            (q_norm, k_norm) = (&nothing, k_norm.map(|_| &nothing));
        }
        let cache = &d.cache(l.kv_donor.unwrap_or(layer));
        let (past, live) = (d.past(), d.live(rows));
        let (heads, kv_heads, head_size) = (l.heads, l.kv_heads, l.head_size);
        let shape = Heads {
            heads,
            kv_heads,
            head_size,
            gated: l.output_gate,
            k_eq_v: l.k_eq_v,
            q_norm,
            kv_norms: k_norm.map(|k_norm| [k_norm, &lw.attn_v_norm]),
            cache,
            tables: lw.rope.as_ref().expect("the layer has attention").each_ref(),
        };
        cached_heads::of_pass(p, &products, &shape, past, live);
        let shape = CachedAttention {
            heads,
            gated: l.output_gate,
            kv_heads,
            head_size,
            window: l.window,
            sinks: lw.sinks.as_ref(),
            softcap: l.score_softcap,
        };
        let (result, context) = (&a[Saved::Attention], w.lengths.context);
        let rec = p.rec.now();
        shape.forward(rec, result.rows(), products.rows(), cache, past, context, &w.parts, live);
        if l.output_gate {
            output_gate::forward(p, &a[Saved::GatedAttention], result, &products, heads);
        }
        without_zeros(p, l, a);
    }
}
