//! One pass, written out in order: `forward.rs` without the activations for backward, with cached keys and values.

use super::adapter::Group;
use super::{Decoder, Tail};
use crate::gpu::{GpuError, Recorder};
use crate::memory::{ExpertActs, ExpertScratch};
use crate::model::Dense;
use crate::model::batch::ExpertLoras;
use crate::model::experts::{Beside, Experts};
use crate::model::offload::Way;
use crate::ops::Rows;
use crate::ops::Unfinished;
use crate::ops::Weight;
use crate::ops::act::Act;
use crate::ops::argmax::Likeliest;
use crate::ops::bias;
use crate::ops::block_end::{self, End, Next};
use crate::ops::cached_attention::CachedAttention;
use crate::ops::cached_gated;
use crate::ops::cached_heads;
use crate::ops::cached_heads::Heads;
use crate::ops::embedding;
use crate::ops::experts::shared;
use crate::ops::linear::Projection;
use crate::ops::linear::tiled::{self, LowRank};
use crate::ops::linear::with_adapter;
use crate::ops::lora::Input;
use crate::ops::matvec::integers::{self, Integers};
use crate::ops::matvec::{self, Down, Ended};
use crate::ops::output_gate;
use crate::ops::pass::Pass;
use crate::ops::rms_norm::{self, Norm};

impl<'a> Decoder<'a> {
    /// All layers for `rows` tokens, up to the output norm, of a model that is entirely on the device. Mirrors `forward.rs`.
    pub(super) fn pass(&self, rec: &mut Recorder<'a>, rows: usize) {
        self.embed(rec, rows);
        for layer in 0..self.w.model.layers.len() {
            self.mixer(rec, layer, rows);
            self.feed_forward(rec, layer, rows);
        }
    }

    /// Like [`Decoder::pass`], for any model. Parts of the pass run before `rec` is submitted.
    pub(super) async fn pass_fetching(&self, rec: &mut Recorder<'a>, rows: usize) -> Result<(), GpuError> {
        self.w.model.fetch_first(rec, Way::Around).await?;
        self.embed(rec, rows);
        for layer in 0..self.w.model.layers.len() {
            self.mixer(rec, layer, rows);
            self.w.model.fetch_after(rec, layer, Way::Around).await?;
            self.feed_forward(rec, layer, rows);
        }
        Ok(())
    }

    /// The embeddings, the per-layer inputs, and the first layer's norm.
    fn embed(&self, rec: &mut Recorder<'a>, rows: usize) {
        let (w, model) = (self.w, self.w.model);
        let factor = model.config().embedding_scale;
        embedding::forward(rec, &w.stream, &w.tokens, 1, &model.token_embd, 0, factor, rows);
        self.per_layer_inputs(rec, rows);
        rms_norm::plain::forward(rec, &w.normed, &w.stream, &model.layers[0].attn_norm, None, 1.0, rows);
    }

    /// Attention, a delta net or a short convolution, the residual sum, and the norm before the feed-forward block.
    fn mixer(&self, rec: &mut Recorder<'a>, layer: usize, rows: usize) {
        let lw = &self.w.model.layers[layer];
        match (&lw.delta, &lw.short_conv) {
            (Some(net), _) => self.delta_net(rec, layer, net, rows),
            (_, Some(conv)) => self.short_conv(rec, layer, conv, rows),
            _ => self.attention(rec, layer, rows),
        }
    }

    /// Attention with its cache, the residual sum, and the norm before the feed-forward block.
    fn attention(&self, rec: &mut Recorder<'a>, layer: usize, rows: usize) {
        let (w, config) = (self.w, self.w.model.config());
        let (l, lw) = (&config.layers[layer], &self.w.model.layers[layer]);
        let matrices = self.qkv(layer);
        let mut products = match &lw.latent {
            Some(latent) => self.of_latent(rec, layer, latent, rows),
            None => self.products(rec, layer, Input::AttnNormed, &w.normed, &matrices, rows),
        };
        let (mut q_norm, mut k_norm) = (&lw.attn_q_norm, lw.attn_k_norm.as_ref());
        let nothing = Norm::identity(l.head_size);
        if l.output_gate || l.qk_norm_of_rows {
            products = Unfinished::of(&self.add_terms(rec, products, &matrices, rows), None);
        }
        if l.qk_norm && l.qk_norm_of_rows {
            rms_norm::columns::in_place(rec, products.rows.all(), q_norm, rows);
            if let Some(k_norm) = k_norm {
                rms_norm::columns::in_place(rec, products.rows.from(q_norm.width), k_norm, rows);
            }
            (q_norm, k_norm) = (&nothing, k_norm.map(|_| &nothing));
        }
        let (cache, past, live) = (&self.cache(l.kv_donor.unwrap_or(layer)), self.past(), self.live(rows));
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
        cached_heads::forward(rec, &products, &shape, past, live);
        let products = products.rows;
        let shape = CachedAttention {
            heads,
            gated: l.output_gate,
            kv_heads,
            head_size,
            window: l.window,
            sinks: lw.sinks.as_ref(),
            softcap: l.score_softcap,
        };
        let mut attention = w.wide.reshaped(heads * head_size);
        let context = w.lengths.context;
        shape.forward(rec, &attention, &products, cache, past, context, &w.parts, live);
        if let (true, Some(buffers)) = (l.output_gate, &w.delta) {
            let gated = buffers.normed.reshaped(heads * head_size);
            let [y, x, both] = [&gated, &attention, &products].map(|rows| rows.clone().into());
            output_gate::forward(&mut self.long(rec, rows), &y, &x, &both, heads);
            attention = gated;
        }
        attention = self.without_zeros(rec, layer, attention, rows);

        let output = lw.attn_output.as_ref().expect("the layer has attention");
        let y = self.products(rec, layer, Input::Attention, &attention, &[output], rows);
        self.attention_end(rec, layer, &y, rows);
    }

    /// The matrices of queries, keys and values, those of latent vectors, or that of a short convolution's input; none where there is a delta net.
    pub(super) fn qkv(&self, layer: usize) -> Vec<&'a Weight> {
        let (l, lw) = (&self.w.model.config().layers[layer], &self.w.model.layers[layer]);
        if let Some(conv) = &lw.short_conv {
            return vec![&conv.in_proj];
        }
        if let Some(latent) = &lw.latent {
            return vec![latent.q_a.as_ref().map_or(&latent.q, |(q_a, _)| q_a), &latent.kv_a];
        }
        let own = lw.attn_k.iter().chain(&lw.attn_v).filter(|_| l.kv_donor.is_none());
        lw.attn_q.iter().chain(own).collect()
    }

    /// The residual sum after attention or what stands in its place, and the norm before the feed-forward block.
    pub(super) fn attention_end(&self, rec: &mut Recorder<'a>, layer: usize, y: &Unfinished, rows: usize) {
        let (w, lw) = (self.w, &self.w.model.layers[layer]);
        let readers: Vec<&Weight> = lw.dense.iter().flat_map(|dense| [&dense.gate, &dense.up]).collect();
        let integers = self.integers(layer, Input::FfnNormed, &readers, rows);
        let next = Some(Next { norm: &lw.ffn_norm, integers });
        let end = End { next, ..End::of(&lw.post_attention_norm) };
        block_end::forward(rec, &w.stream, &w.normed, y, end, rows);
    }

    /// The feed-forward block, the per-layer branch if there is one, and the next norm: that of the next layer or of the head.
    fn feed_forward(&self, rec: &mut Recorder<'a>, layer: usize, rows: usize) {
        let (w, model) = (self.w, self.w.model);
        let lw = &model.layers[layer];
        let (stream, normed) = (&w.stream, &w.normed);
        let after = model.layers.get(layer + 1).map_or(&model.output_norm, |next| &next.attn_norm);
        let readers = match layer + 1 < model.layers.len() {
            true => self.qkv(layer + 1),
            false => vec![model.head_matrix()],
        };
        let integers = self.integers(layer + 1, Input::AttnNormed, &readers, rows);
        let (next, scale) = (Some(Next { norm: after, integers }), lw.output_scale);

        let mut y = match &lw.dense {
            Some(dense) => self.dense(rec, layer, dense, rows),
            None => Unfinished::of(&w.products, None),
        };
        if let (Some(experts), Some((acts, scratch))) = (&lw.experts, &w.experts) {
            self.experts(rec, layer, experts, acts, scratch, rows);
            y = self.beside_experts(rec, experts, acts, lw.dense.as_ref(), y, rows);
        }
        let norm = &lw.post_ffw_norm;
        let last = End { scale, next, ..End::of(norm) };
        let Some(branch) = &lw.per_layer else {
            return block_end::forward(rec, stream, normed, &y, last, rows);
        };
        let mut end = None;
        let short = self.shares_inputs() && self.is_short(rows);
        match short && matvec::takes_ended(rows, norm, &branch.inp_gate) {
            true => end = Some(Ended { y: &y, norm, stream, after: normed }),
            false => block_end::forward(rec, stream, normed, &y, End::of(norm), rows),
        }
        let ended = end.is_some();
        let y = self.per_layer_branch(rec, layer, branch, end, rows);
        block_end::forward(rec, stream, normed, &y, End { norm: &branch.post_norm, ended, ..last }, rows);
    }

    /// The sum of the experts' output in `acts` and of that of a dense feed-forward block, `y`.
    fn beside_experts<'y>(
        &self,
        rec: &mut Recorder<'a>,
        experts: &Experts,
        acts: &ExpertActs,
        dense: Option<&Dense>,
        y: Unfinished<'y>,
        rows: usize,
    ) -> Unfinished<'y> {
        let normed = &self.w.normed;
        let (sum, output) = (acts.sum.rows(), acts.output.rows());
        let of_experts = match (&experts.beside, dense) {
            (Beside::Norms([first, second]), _) => {
                // The sum of the two norms starts at zero; the first one includes the adapter's term.
                rec.clear(&sum.buffer, (rows * sum.stride * 4) as u64);
                block_end::forward(rec, sum, normed, &y, End::of(first), rows);
                block_end::forward(rec, sum, normed, &Unfinished::of(output, None), End::of(second), rows);
                sum
            }
            (Beside::Gate(_), Some(dense)) => {
                let shared = self.add_terms(rec, y, &[&dense.down], rows).into();
                let p = &mut self.long(rec, rows);
                shared::forward(p, &acts.sum, &acts.output, &shared, &acts.shared_scores);
                sum
            }
            (Beside::Sum(norm), Some(_)) => {
                block_end::forward(rec, output, normed, &y, End::of(norm), rows);
                output
            }
            _ => output,
        };
        Unfinished::of(of_experts, None)
    }

    /// The dense feed-forward block, from `normed` to its output.
    fn dense(&self, rec: &mut Recorder<'a>, layer: usize, dense: &Dense, rows: usize) -> Unfinished<'_> {
        let w = self.w;
        let l = &w.model.config().layers[layer];
        let gated_product = w.wide.reshaped(l.ffn_width);
        let matrices = [&dense.gate, &dense.up];
        let gate = self.products(rec, layer, Input::FfnNormed, &w.normed, &matrices, rows);
        let value = gate.rows.from(l.ffn_width);
        let integers = self.integers(layer, Input::Gated, &[&dense.down], rows);
        cached_gated::forward(rec, &gated_product, &gate, value, l.activation, rows, integers);
        self.products(rec, layer, Input::Gated, &gated_product, &[&dense.down], rows)
    }

    /// The experts, from the stream to their output in `acts`.
    fn experts(
        &self,
        rec: &mut Recorder<'a>,
        layer: usize,
        experts: &Experts,
        acts: &ExpertActs,
        scratch: &ExpertScratch,
        rows: usize,
    ) {
        let group = self.adapter.as_ref().and_then(|a| a.group(layer, Input::RouterNormed));
        let loras = self.adapter.as_ref().map_or_else(ExpertLoras::default, |a| a.experts(layer));
        let short = self.is_short(rows);
        let score = |p: &mut Pass, scores: &[Projection], x: &Act| {
            let (x, z) = (x.rows().all(), acts.z.rows());
            if let Some(g) = group {
                tiled::forward(p.rec.now(), z.all(), x, &g.a.as_weight(), 1.0, None, rows);
            }
            for (i, (_, matrix, y)) in scores.iter().enumerate() {
                let y = y.rows().all();
                let term = group.map(|g| LowRank {
                    z: z.from(i * g.rank),
                    matrix: &g.b[i],
                    rank: g.rank,
                    scale: 1.0,
                });
                match term {
                    None if short => matvec::forward(p.rec.now(), y, x, 0, &[matrix], None, 1.0, None, rows),
                    term => tiled::forward(p.rec.now(), y, x, matrix, 1.0, term.as_ref(), rows),
                }
                if let Some(bias) = &matrix.bias {
                    bias::forward(p.rec.now(), y, bias, matrix.rows, rows);
                }
            }
        };
        let input = self.w.stream.clone().into();
        let p = &mut self.long(rec, rows);
        match short {
            true => experts.forward_short(p, &input, acts, scratch, loras, score),
            false => experts.forward_with(p, &input, acts, scratch, loras, score),
        }
    }

    /// Products of `x` with `matrices`. Their reader adds the adapter's term, but that of a long pass is added here.
    pub(super) fn products(
        &self,
        rec: &mut Recorder<'a>,
        layer: usize,
        input: Input,
        x: &Rows,
        matrices: &[&Weight],
        rows: usize,
    ) -> Unfinished<'_> {
        let group = self.adapter.as_ref().and_then(|a| a.group(layer, input));
        let width: usize = matrices.iter().map(|m| m.rows).sum();
        let y = self.w.products.reshaped(width + group.map_or(0, |g| g.a.rows));
        if !self.is_short(rows) {
            let z = self.w.z.reshaped(group.map_or(0, |g| g.a.rows));
            let adapter = group.map(Group::matrices);
            with_adapter::forward(&mut self.long(rec, rows), &y, x, matrices, adapter, &z);
            self.biases(rec, &y, matrices, rows);
            return Unfinished::of(&y, None);
        }
        let (down, view) = (group.map(|g| Down { a: &g.a, z_offset: width }), x.all());
        match self.integers(layer, input, matrices, rows) {
            Some(x) => matvec::forward_integers(rec, y.all(), view, x, matrices, down.as_ref(), None),
            None => matvec::forward(rec, y.all(), view, 0, matrices, down.as_ref(), 1.0, None, rows),
        }
        self.biases(rec, &y, matrices, rows);
        Unfinished::of(&y, group.map(|g| g.up(width)))
    }

    /// The integers of an input's only row, for matrices that want them. The first layer's normed input comes from the embeddings, which
    /// leave none.
    fn integers(&self, layer: usize, input: Input, readers: &[&Weight], rows: usize) -> Option<&'a Integers> {
        let [normed, gated] = self.w.integers.as_ref().filter(|_| rows == 1 && self.is_short(rows))?;
        let row = match input {
            Input::AttnNormed if layer > 0 => normed,
            Input::FfnNormed => normed,
            Input::Gated => gated,
            _ => return None,
        };
        integers::wants(self.w.gpu, readers).then_some(row)
    }

    /// Adds the frozen biases of `matrices` to their outputs, which lie side by side.
    pub(super) fn biases(&self, rec: &mut Recorder<'a>, y: &Rows, matrices: &[&Weight], rows: usize) {
        let mut column = 0;
        for matrix in matrices {
            if let Some(bias) = &matrix.bias {
                bias::forward(rec, y.from(column), bias, matrix.rows, rows);
            }
            column += matrix.rows;
        }
    }

    /// A pass over `rows` tokens with the ops of training.
    pub(super) fn long<'p>(&'p self, rec: &'p mut Recorder<'a>, rows: usize) -> Pass<'p, 'a> {
        Pass::new(rec, rows, &self.w.scratch)
    }

    /// Logits of row `row` of the pass, and the result that the host reads.
    pub(super) fn tail(&self, rec: &mut Recorder<'_>, row: usize, tail: Tail) {
        let (w, model) = (self.w, self.w.model);
        let (vocab, softcap) = (model.config().vocab, model.config().softcap);
        let (y, x) = (w.logits.all(), w.normed.all());
        let head = &[model.head_matrix()];
        // A pass of one token has its tail at row 0, a longer one has not.
        match self.integers(model.layers.len(), Input::AttnNormed, head, row + 1) {
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
