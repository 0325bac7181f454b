//! Forward, straight through; `backward.rs` is the mirror of this file.

use super::activations::{Activations, Chunk, LayerActivations};
use super::plan::Kept;
use super::products::Products;
use super::trainable::{Input, Trainable};
use super::{Inputs, Model};
use crate::base::Module;
use crate::gpu::{GpuError, Recorder};
use crate::ops::Rows;
use crate::ops::attention::Attention;
use crate::ops::attention::coop16 as coop_attention;
use crate::ops::dropout::Mask;
use crate::ops::embedding;
use crate::ops::gated as geglu;
use crate::ops::gated::coop16 as coop_geglu;
use crate::ops::heads::coop16 as coop_heads;
use crate::ops::norm_add::coop16 as coop_residual;
use crate::ops::norm_add::coop16::Then;
use crate::ops::pack::Packed;
use crate::ops::rms_norm;
use crate::ops::rms_norm::Norm;
use crate::ops::rms_norm::coop16 as coop_norm;
use crate::ops::rope;
use crate::ops::scale;

/// The parts of a pass over one micro-batch.
pub(super) struct Pass<'a> {
    pub inputs: &'a Inputs,
    pub adapter: &'a Trainable,
    pub dropout: Option<Mask>,
}

impl<'b> Model<'b> {
    /// Runs `inputs` through all layers; the result is the last stream, the rest is kept for [`Model::backward`].
    pub async fn forward<'a>(
        &'a self,
        rec: &mut Recorder<'a>,
        inputs: &Inputs,
        adapter: &Trainable,
        acts: &Activations,
        dropout: Option<Mask>,
    ) -> Result<(), GpuError> {
        let pass = Pass { inputs, adapter, dropout };
        let factor = self.config().embedding_scale;
        embedding::forward(rec, acts.hidden(0), &inputs.ids, 0, &self.token_embd, 0, factor, inputs.tokens);
        acts.keep_embeddings(rec, inputs.tokens);
        for layer in 0..self.layers.len() {
            acts.restore_input(rec, layer, inputs.tokens);
            self.attention_forward(rec, &pass, acts, layer, false);
            self.fetch(rec, layer).await?;
            for chunk in acts.chunks(inputs.tokens) {
                let output = acts.hidden(layer + 1).below(chunk.first);
                self.feed_forward(rec, &pass, acts, layer, chunk, Some(&output));
            }
        }
        Ok(())
    }

    /// The first half of a layer, from `acts.layers[layer].input` to `attn_output`; `again` where it is recomputed.
    pub(super) fn attention_forward<'a>(
        &'a self,
        rec: &mut Recorder<'a>,
        pass: &Pass,
        acts: &Activations,
        layer: usize,
        again: bool,
    ) {
        let (w, l) = (&self.layers[layer], &self.config().layers[layer]);
        let (a, saved, t) = (&acts.layers[layer], &acts.layers[layer].attention, pass.inputs.tokens);
        let products = pass.products(acts, Chunk { first: 0, tokens: t });
        let group = |input| pass.adapter.group(layer, input);

        normed(rec, &saved.attn_normed, &a.input, &w.attn_norm, t);
        let mut outputs = vec![(Module::AttnQ, &w.attn_q, &saved.attn_q)];
        outputs.extend(w.attn_k.iter().map(|k| (Module::AttnK, k, &saved.attn_k)));
        outputs.extend(w.attn_v.iter().map(|v| (Module::AttnV, v, &saved.attn_v)));
        products.forward(rec, group(Input::AttnNormed), &saved.z_attn, &saved.attn_normed, &outputs);

        self.heads_forward(rec, pass, acts, layer);
        let attended = &acts.attended(layer, t);
        if !(again && a.kept() >= Kept::Attention) {
            let attention = self.attention(layer, pass.inputs);
            let donor = &acts.layers[l.kv_donor.unwrap_or(layer)];
            match self.operands(acts, layer, t) {
                Some(operands) => {
                    coop_attention::forward(rec, &attention, attended, &a.lse, operands.bind());
                }
                None => {
                    attention.forward(rec, attended, &a.lse, &saved.q, &donor.k, &donor.v);
                    let cols = w.attn_output.cols;
                    attended.packed.iter().for_each(|packed| packed.pack(rec, attended.all(), cols, t));
                }
            }
        }

        let outputs = [(Module::AttnOutput, &w.attn_output, &saved.attn_output)];
        products.forward(rec, group(Input::Attention), &saved.z_output, attended, &outputs);
    }

    /// Norms and rotary embeddings of the heads.
    fn heads_forward<'a>(&'a self, rec: &mut Recorder<'a>, pass: &Pass, acts: &Activations, layer: usize) {
        let (w, l) = (&self.layers[layer], &self.config().layers[layer]);
        let (a, saved, t) = (&acts.layers[layer], &acts.layers[layer].attention, pass.inputs.tokens);
        let positions = &pass.inputs.positions;
        let head =
            |rec: &mut Recorder<'a>, y: &Rows, x: &Rows, norm: &'a Norm, heads: usize, turned: bool| {
                if let Some(packed) = &y.packed {
                    let turn = turned.then_some((positions, &w.rope));
                    return coop_heads::forward(rec, &packed.for_rows(t), x, norm, turn, heads, t);
                }
                rms_norm::forward(rec, y, x, norm, None, 1.0, t * heads);
                if turned {
                    rope::forward(rec, y, positions, &w.rope, heads, t);
                }
            };
        head(rec, &saved.q, &saved.attn_q, &w.attn_q_norm, l.heads, true);
        if let Some(k_norm) = &w.attn_k_norm {
            head(rec, &a.k, &saved.attn_k, k_norm, l.kv_heads, true);
            head(rec, &a.v, a.raw_values(l.k_eq_v), &w.attn_v_norm, l.kv_heads, false);
        }
    }

    /// What attention on cooperative matrices reads.
    pub(super) fn operands(&self, acts: &Activations, layer: usize, tokens: usize) -> Option<Heads> {
        let donor = self.config().layers[layer].kv_donor.unwrap_or(layer);
        let packed = |rows: &Rows| Some(rows.packed.as_ref()?.for_rows(tokens));
        Some(Heads {
            q: packed(&acts.layers[layer].attention.q)?,
            k: packed(&acts.layers[donor].k)?,
            v: packed(&acts.layers[donor].v)?,
        })
    }

    /// The second half, for the tokens of `chunk`: from `attn_output` to `output`, or to what backward needs.
    pub(super) fn feed_forward<'a>(
        &'a self,
        rec: &mut Recorder<'a>,
        pass: &Pass,
        acts: &Activations,
        layer: usize,
        chunk: Chunk,
        output: Option<&Rows>,
    ) {
        let w = &self.layers[layer];
        let (a, t) = (&acts.layers[layer], chunk.tokens);
        let saved = &a.feed_forward(chunk);
        let after_attention = &a.attention.after_attention.below(chunk.first);
        let products = pass.products(acts, chunk);
        let group = |input| pass.adapter.group(layer, input);

        let (attn_output, stream) = (a.attention.attn_output.below(chunk.first), a.input.below(chunk.first));
        let (x, norm) = (&attn_output, &w.post_attention_norm);
        let next = saved.ffn_normed.packed.as_ref().map(|packed| (packed, Then::Norm(&w.ffn_norm)));
        residual(rec, Some(after_attention), next, x, norm, &stream, 1.0, t);
        if next.is_none() {
            rms_norm::forward(rec, &saved.ffn_normed, after_attention, &w.ffn_norm, None, 1.0, t);
        }
        let outputs =
            [(Module::FfnGate, &w.ffn_gate, &saved.ffn_gate), (Module::FfnUp, &w.ffn_up, &saved.ffn_up)];
        products.forward(rec, group(Input::FfnNormed), &saved.z_ffn, &saved.ffn_normed, &outputs);
        match &saved.geglu.packed {
            Some(packed) => coop_geglu::forward(rec, packed, &saved.ffn_gate, &saved.ffn_up, t),
            None => geglu::forward(rec, &saved.geglu, &saved.ffn_gate, &saved.ffn_up, t),
        }
        let down = acts.down(layer, chunk);
        if output.is_none() && a.kept() >= Kept::Down {
            products.project(rec, group(Input::Geglu), &saved.z_down, &saved.geglu, w.ffn_down.cols);
        } else {
            let outputs = [(Module::FfnDown, &w.ffn_down, &down)];
            products.forward(rec, group(Input::Geglu), &saved.z_down, &saved.geglu, &outputs);
            down.packed.iter().for_each(|packed| packed.pack(rec, down.all(), w.ffn_down.rows, t));
        }

        let mut ffn = &down;
        let experts = (&w.experts, acts.experts(layer, chunk), &acts.scratch.experts);
        if let (Some(w), Some(acts), Some(scratch)) = experts {
            let in_f32 = products.in_f32();
            let lora = pass.adapter.experts(layer, pass.dropout, chunk.first);
            w.forward(rec, after_attention, acts, scratch, lora, t, |rec, scores, x, router| {
                let outputs = [(Module::FfnGateInp, router, scores)];
                in_f32.forward(rec, group(Input::RouterNormed), &acts.z, x, &outputs);
            });
            down.packed.iter().for_each(|packed| packed.unpack(rec, down.all(), self.config().width, t));
            rms_norm::forward(rec, &scratch.normed, &down, &w.post_ffw_norm_1, None, 1.0, t);
            let beside = Some(&scratch.normed);
            rms_norm::forward(rec, &acts.sum, &acts.output, &w.post_ffw_norm_2, beside, 1.0, t);
            ffn = &acts.sum;
        }
        let kept = acts.next_input(layer, chunk.first);
        let kept = kept.as_ref().map(|kept| (kept, Then::Sum));
        // The layer above goes on from what is kept.
        let stream = output.filter(|_| kept.is_none());
        let Some(branch) = &w.per_layer else {
            if output.is_some() {
                let norm = &w.post_ffw_norm;
                residual(rec, stream, kept, ffn, norm, after_attention, w.output_scale, t);
            }
            return;
        };
        let operand = saved.after_ffn.packed.as_ref().map(|packed| (packed, Then::Sum));
        // What is computed again, only products read.
        let sum = (output.is_some() || operand.is_none()).then_some(&saved.after_ffn);
        residual(rec, sum, operand, ffn, &w.post_ffw_norm, after_attention, 1.0, t);
        self.per_layer_input(rec, pass, acts, layer, chunk);
        let outputs = [(Module::InpGate, &branch.inp_gate, &saved.inp_gate)];
        products.forward(rec, group(Input::AfterFfn), &saved.z_gate, &saved.after_ffn, &outputs);
        geglu::forward(rec, &saved.gated_input, &saved.inp_gate, &saved.per_layer_input, t);
        let outputs = [(Module::Proj, &branch.proj, &saved.proj)];
        products.forward(rec, group(Input::PerLayer), &saved.z_proj, &saved.gated_input, &outputs);
        if output.is_some() {
            let (x, norm) = (&saved.proj, &branch.post_norm);
            residual(rec, stream, kept, x, norm, &saved.after_ffn, w.output_scale, t);
        }
    }

    /// `(√P·table[token] + norm(D^-½·model_proj·embedding))/√2` of one layer; `gated_input` is scratch here.
    fn per_layer_input<'a>(
        &'a self,
        rec: &mut Recorder<'a>,
        pass: &Pass,
        acts: &Activations,
        layer: usize,
        chunk: Chunk,
    ) {
        let (Some(global), Some(rows)) = (&self.per_layer, &pass.inputs.per_layer) else { return };
        let (saved, Chunk { first, tokens: t }) = (&acts.layers[layer].feed_forward(chunk), chunk);
        let (d, p) = (self.config().width as f64, self.config().per_layer_width);
        let root_d = d.sqrt().recip() as f32;
        let projection = &global.model_proj[layer];
        let embeddings = acts.embeddings(first);
        pass.products(acts, chunk).frozen(rec, &saved.inp_gate, &embeddings, projection, root_d);
        rms_norm::forward(rec, &saved.gated_input, &saved.inp_gate, &global.proj_norm, None, 1.0, t);
        let root_p = (p as f64).sqrt() as f32;
        embedding::forward(rec, &saved.per_layer_input, &rows.ids, first, &rows.table, layer * p, root_p, t);
        scale::add(rec, &saved.per_layer_input, &saved.gated_input, std::f32::consts::FRAC_1_SQRT_2, t);
    }

    pub(super) fn attention<'a>(&self, layer: usize, inputs: &'a Inputs) -> Attention<'a> {
        let l = &self.config().layers[layer];
        let donor = &self.layers[l.kv_donor.unwrap_or(layer)];
        Attention {
            heads: l.heads,
            kv_heads: l.kv_heads,
            head_size: l.head_size,
            window: l.window,
            bounds: &inputs.bounds,
            rows: inputs.tokens,
            longest: inputs.longest,
            q_scale: self.layers[layer].attn_q_norm.scale,
            k_scale: donor.attn_k_norm.as_ref().expect("a donor makes keys").scale,
        }
    }
}

/// `y = norm(x)`, where nothing but products read it.
fn normed<'a>(rec: &mut Recorder<'a>, y: &Rows, x: &Rows, norm: &'a Norm, tokens: usize) {
    match &y.packed {
        Some(packed) => coop_norm::forward(rec, packed, x, norm, tokens),
        None => rms_norm::forward(rec, y, x, norm, None, 1.0, tokens),
    }
}

/// `y = scale·(stream + norm(x))`, and what comes next of it packed, where anything does. Without that, `y` is wanted, and `x` read in
/// f32, unpacked where it comes packed.
fn residual<'a>(
    rec: &mut Recorder<'a>,
    y: Option<&Rows>,
    next: Option<(&Packed, Then<'a>)>,
    x: &Rows,
    norm: &'a Norm,
    stream: &Rows,
    scale: f32,
    tokens: usize,
) {
    if let Some(next) = next {
        return coop_residual::forward(rec, y, next, x, norm, stream, scale, tokens);
    }
    x.packed.iter().for_each(|packed| packed.unpack(rec, x.all(), norm.width, tokens));
    let y = y.expect("nothing else comes of it");
    rms_norm::forward(rec, y, x, norm, Some(stream), scale, tokens);
}

/// Packed queries, keys and values of a layer.
pub(super) struct Heads {
    q: Packed,
    k: Packed,
    v: Packed,
}

impl Heads {
    pub(super) fn bind(&self) -> coop_attention::Operands<'_> {
        let Heads { q, k, v } = self;
        coop_attention::Operands { q, k, v }
    }
}

impl LayerActivations {
    /// What the values' norm reads: the raw keys where the layer has no matrix for values.
    pub(super) fn raw_values(&self, k_eq_v: bool) -> &Rows {
        if k_eq_v { &self.attention.attn_k } else { &self.attention.attn_v }
    }
}

impl<'a> Pass<'a> {
    pub(super) fn products(&self, acts: &'a Activations, chunk: Chunk) -> Products<'a> {
        Products {
            adapter: self.adapter,
            dropout: self.dropout,
            masked: &acts.scratch.masked,
            u: &acts.scratch.u,
            packs: acts.packs.as_ref().map(|packs| packs.for_rows(chunk.tokens)),
            first: chunk.first,
            rows: chunk.tokens,
        }
    }
}
