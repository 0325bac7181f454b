//! The router and the experts, beside the dense feed-forward block or in its place: weights, forward and backward.
//!
//! Scores are computed by the kernels for f32 rows on every device: what decides between experts must not depend on it. The score
//! of a shared expert is one more row of the router's product.

mod few_tokens;
mod loads;
mod shared;

use super::batch::{Batch, ExpertLoras, Tokens};
use super::offload;
use super::upload::Upload;
use crate::base::Module;
use crate::base::config::{Activation, Gating};
use crate::gpu::{Gpu, GpuError};
use crate::memory::{ExpertActs, ExpertScratch};
use crate::ops::act::Act;
use crate::ops::experts::bias::Biases;
use crate::ops::experts::{combine, router};
use crate::ops::gated::{grouped as grouped_gated, grouped_coop16 as grouped_gated_coop16};
use crate::ops::linear::experts::{ExpertLora, Grouped, Operand};
use crate::ops::linear::grouped::{self, Columns, ExpertWeight, Source};
use crate::ops::linear::{Adapters, Projection};
use crate::ops::lora::{Input, grouped as grouped_lora};
use crate::ops::pass::Pass;
use crate::ops::rms_norm::{self, Norm};
use crate::ops::{Rows, Weight, linear};

pub use loads::Loads;
pub use shared::Beside;

/// The weights of one layer's experts.
pub(super) struct Experts {
    router_norm: Norm,       // where norms surround the experts: its scale and 1/√D
    router: Weight,          // [E, D]
    selection: Option<Rows>, // biases of the choice alone, where there are any [E]
    /// `[E, 2·F, D]`, or gate and up `[E, F, D]` where the file has them apart.
    gate_up: Vec<ExpertWeight>,
    down: ExpertWeight, // [E, D, F]
    /// Frozen biases of gate and up `[E, 2·F]`, and of down `[E, D]`, where there are any.
    biases: [Option<Biases>; 2],
    scales: Rows, // [E]
    activation: Activation,
    input_norm: Norm,
    pub beside: Beside,
}

impl Experts {
    /// Uploads the experts of layer `layer`.
    pub async fn load(upload: &Upload<'_, '_>, layer: usize) -> Result<Experts, GpuError> {
        let (gpu, base) = (upload.gpu, upload.base);
        let shape = &base.config().layers[layer];
        let experts = shape.experts.unwrap_or_default();
        let count = experts.count;
        let eps = base.config().rms_eps;
        let name = |last: &str| format!("blk.{layer}.{last}");
        let mut gate_up = Vec::new();
        for matrix in offload::experts(base, layer) {
            gate_up.push(upload.experts(&matrix, count).await?);
        }
        let down = gate_up.pop().expect("the base checked its tensors when it was opened");
        let has_norms = shape.has_expert_norms();
        let norm = |last: &str| upload.norm(&name(last), eps);
        let scales = match shape.expert_scales.as_slice() {
            [] => vec![experts.scale; count],
            scales => scales.iter().map(|scale| scale * experts.scale).collect(),
        };
        let stride = scales.len().next_multiple_of(4);
        Ok(Experts {
            activation: shape.activation,
            router_norm: match has_norms {
                true => scaled_router_norm(gpu, &base.vector(&name("ffn_gate_inp.scale")), eps)?,
                false => norm("ffn_norm")?,
            },
            router: upload.matrix(&name("ffn_gate_inp")).await?,
            selection: match experts.gating {
                Gating::Sigmoid => {
                    let values = base.vector(&name("exp_probs_b.bias"));
                    let stride = values.len().next_multiple_of(4);
                    Some(Rows { buffer: gpu.upload("biases of the choice", &values)?, stride, start: 0 })
                }
                _ => None,
            },
            gate_up,
            down,
            biases: [
                biases(upload, layer, Module::FfnGateUpExps)?,
                biases(upload, layer, Module::FfnDownExps)?,
            ],
            scales: Rows { buffer: gpu.upload("scales of experts", &scales)?, stride, start: 0 },
            input_norm: norm(if has_norms { "pre_ffw_norm_2" } else { "ffn_norm" })?,
            beside: match shape.has_shared_expert() {
                true if experts.ungated => Beside::Sum(Norm::identity(base.config().width)),
                true => Beside::Gate(upload.matrix(&name(Module::FfnGateInpShexp.gguf_name())).await?),
                false if has_norms => Beside::Norms([norm("post_ffw_norm_1")?, norm("post_ffw_norm_2")?]),
                false => Beside::Nothing,
            },
        })
    }

    /// The products of the router's input, in the order of [`Module::ALL`]: a shared expert's score in `shared`, where there is
    /// one, and the scores of the others in `router`.
    fn scores<'a>(&'a self, shared: &'a Act, router: &'a Act) -> Vec<Projection<'a>> {
        let gate = match &self.beside {
            Beside::Gate(gate) => Some((Module::FfnGateInpShexp, gate, shared)),
            _ => None,
        };
        gate.into_iter().chain([(Module::FfnGateInp, &self.router, router)]).collect()
    }

    /// `acts.output` from the stream after attention `[T, D]`.
    pub fn forward(
        &self,
        p: &mut Pass,
        tokens: &dyn Tokens,
        layer: usize,
        stream: &Act,
        acts: &ExpertActs,
        scratch: &ExpertScratch,
    ) {
        self.route(p, tokens.adapters(layer, Input::RouterNormed), stream, acts, scratch);
        let loras = tokens.expert_loras(layer, p.first);
        match p.is_short() {
            true => self.forward_short(p, stream, acts, scratch, loras),
            false => self.forward_grouped(p, stream, acts, scratch, loras),
        }
    }

    /// The experts over tokens that are sorted by expert, from the router's choices to `acts.output`.
    fn forward_grouped(
        &self,
        p: &mut Pass,
        stream: &Act,
        acts: &ExpertActs,
        scratch: &ExpertScratch,
        loras: ExpertLoras,
    ) {
        let groups = &acts.groups;
        let normed = &scratch.normed;
        let (d, f) = (self.router.cols, groups.experts.width);
        groups.sort(p.rec.now(), p.tokens);

        let products = scratch.grouped(groups);
        rms_norm::forward(p, normed, stream, &self.input_norm);
        let x = products.gather(p, Source::Tokens(normed.rows().all()), d, loras.gate_up.is_some());
        products.project(p, &acts.z_gate_up, x, loras.gate_up);
        for (i, w) in self.gate_up.iter().enumerate() {
            let y = Columns::all(acts.gate_up.from(i * f));
            products.forward(p, y, x, w, loras.gate_up.map(|lora| (lora, &acts.z_gate_up, i * f)));
        }
        let [gate_up_biases, down_biases] = &self.biases;
        if let Some(biases) = gate_up_biases {
            biases.add(p.rec.now(), &acts.gate_up, groups, p.tokens);
        }
        let rows = scratch.operand_rows(f);
        let gated = gated_forward(p, products, acts, &rows, self.activation, loras.down);
        products.project(p, &acts.z_down, gated, loras.down);
        for (first, part) in scratch.parts(d) {
            let y = Columns { y: part.all(), first };
            products.forward(p, y, gated, &self.down, loras.down.map(|lora| (lora, &acts.z_down, 0)));
            let output = acts.output.rows().from(first);
            combine::forward(p.rec.now(), output, &part, &self.scales, groups, p.tokens);
        }
        if let Some(biases) = down_biases {
            biases.add_summed(p.rec.now(), acts.output.rows(), &self.scales, groups, p.tokens);
        }
    }

    /// The experts of each token and their weights, into `acts.groups`.
    fn route(
        &self,
        p: &mut Pass,
        adapters: Adapters,
        stream: &Act,
        acts: &ExpertActs,
        scratch: &ExpertScratch,
    ) {
        let scores = if acts.groups.experts.keeps_scores() { &acts.scores } else { &scratch.scores };
        rms_norm::forward(p, &scratch.normed, stream, &self.router_norm);
        let outputs = self.scores(&acts.shared_scores, scores);
        linear::forward_rows(p, &outputs, &scratch.normed, adapters, &acts.z);
        router::forward(p.rec.now(), &acts.groups, scores.rows(), self.selection.as_ref(), p.tokens);
    }

    /// Adds to `dstream` the gradient that comes from that of `acts.output`, held in `scratch.normed`, which is overwritten, and from that
    /// of a shared expert's scores, and adds to the gradients of the adapters.
    pub fn backward(
        &self,
        p: &mut Pass,
        batch: &Batch,
        layer: usize,
        dstream: &Act,
        stream: &Act,
        acts: &ExpertActs,
        scratch: &ExpertScratch,
    ) {
        let loras = batch.expert_loras(layer, p.first);
        let gradient = &scratch.normed;
        self.down_backward(p, acts, scratch, loras.down);
        self.gate_up_backward(p, stream, acts, scratch, loras.gate_up);
        rms_norm::backward_add(p, dstream, gradient, stream, &self.input_norm, 1.0);

        let dscores = &scratch.scores;
        let (scores, dweights) = (acts.scores.rows(), &scratch.dweights);
        router::backward(p.rec.now(), dscores.rows(), dweights, scores, &acts.groups, p.tokens);
        rms_norm::forward(p, gradient, stream, &self.router_norm);
        // The products read the router's input before they write the gradient in its place.
        let gradients = self.scores(&scratch.dshared_scores, dscores);
        let lora = batch.lora(layer, Input::RouterNormed);
        linear::backward_rows(p, Some((gradient, false)), &gradients, gradient, lora, &acts.z);
        rms_norm::backward_add(p, dstream, gradient, stream, &self.router_norm, 1.0);
        p.rec.now(); // apart from the next norm
    }

    /// From the gradient of the experts' output in `scratch.normed` to that of gate and up, which is left in the operand of
    /// `scratch`, and of the choices' weights.
    fn down_backward(
        &self,
        p: &mut Pass,
        acts: &ExpertActs,
        scratch: &ExpertScratch,
        lora: Option<ExpertLora>,
    ) {
        let groups = &acts.groups;
        let (d, f) = (self.router.cols, groups.experts.width);
        let products = scratch.grouped(groups);
        let dy = Source::Tokens(scratch.normed.rows().all());
        let dgated = scratch.wide.reshaped(f);
        let u = &scratch.u.reshaped(lora.map_or(0, |lora| lora.rank));
        if let Some(lora) = lora {
            self.down_adapter_backward(p, acts, dy, &dgated, u, lora);
        }
        let dy = products.gather(p, dy, d, lora.is_some());
        let to = Columns::all(dgated.all());
        if let Some(lora) = lora {
            products.pack_thin(p.rec.now(), u, lora.rank, dy, p.tokens);
        }
        let lora = lora.map(|lora| (lora, u));
        products.backward(p, to, dy, &self.down, lora, false);
        products.masked_back(p, to, lora);
        let inputs = [&dgated, &acts.gate_up, &self.scales];
        let dweights = &scratch.dweights;
        match products.operand.tiles() {
            Some(tiles) => {
                let out = (tiles, dweights);
                grouped_gated_coop16::backward(p.rec.now(), out, inputs, self.activation, groups, p.tokens);
            }
            None => {
                let dgate_up = scratch.operand_rows(2 * f);
                let out = [&dgate_up, dweights];
                grouped_gated::backward(p.rec.now(), out, inputs, self.activation, groups, p.tokens);
            }
        }
        if let [_, Some(biases)] = &self.biases {
            let inputs = [scratch.normed.rows(), &self.scales];
            biases.backward(p.rec.now(), dweights, inputs, groups, p.tokens);
        }
    }

    /// Gradients of the adapters of down, and `u`; `gated` is scratch for what they have read.
    fn down_adapter_backward(
        &self,
        p: &mut Pass,
        acts: &ExpertActs,
        dy: Source,
        gated: &Rows,
        u: &Rows,
        lora: ExpertLora,
    ) {
        let groups = &acts.groups;
        let tokens = p.tokens;
        grouped_gated::forward(p.rec.now(), gated, &acts.gate_up, self.activation, groups, tokens);
        let b = lora.b_weight(groups);
        let to = Columns::all(u.all());
        grouped::backward(p.rec.now(), to, dy, &b, lora.scale, None, groups, tokens, false);
        let Some([da, db]) = lora.gradients else { return };
        let scales = Some(&self.scales);
        let z = Source::Rows(acts.z_down.all());
        grouped_lora::gradient(p.rec.now(), db, dy, z, None, lora.scale, scales, groups, tokens);
        let (u, gated) = (Source::Rows(u.all()), Source::Rows(gated.all()));
        grouped_lora::gradient(p.rec.now(), da, u, gated, lora.mask, 1.0, scales, groups, tokens);
    }

    /// From the gradient of gate and up in the operand of `scratch` to that of the experts' input, in `scratch.normed`.
    fn gate_up_backward(
        &self,
        p: &mut Pass,
        stream: &Act,
        acts: &ExpertActs,
        scratch: &ExpertScratch,
        lora: Option<ExpertLora>,
    ) {
        let groups = &acts.groups;
        let gradient = &scratch.normed;
        let (d, f) = (self.router.cols, groups.experts.width);
        let products = scratch.grouped(groups);
        let dgate_up = scratch.operand_rows(2 * f);
        let dy = products.operand(&dgate_up);
        let u = &scratch.u.reshaped(lora.map_or(0, |lora| lora.rank));
        if let Some(lora) = lora {
            // The experts' input, in the place of a gradient that is needed no longer.
            rms_norm::forward(p, gradient, stream, &self.input_norm);
            products.project_back(p, u, dy, &acts.z_gate_up, lora);
            if let Some([da, _]) = lora.gradients {
                let (u, x) = (Source::Rows(u.all()), Source::Tokens(gradient.rows().all()));
                grouped_lora::gradient(p.rec.now(), da, u, x, lora.mask, 1.0, None, groups, p.tokens);
            }
        }
        let lora = lora.map(|lora| (lora, u));
        for (first, part) in scratch.parts(d) {
            let dx = Columns { y: part.all(), first };
            for (i, w) in self.gate_up.iter().enumerate() {
                let lora = lora.filter(|_| i == 0);
                products.backward(p, dx, dy.columns_from(i * f), w, lora, i > 0);
            }
            products.masked_back(p, dx, lora);
            combine::backward(p.rec.now(), gradient.rows().from(first), &part, groups, p.tokens);
        }
    }
}

/// The biases of a module of the experts of layer `layer`.
fn biases(upload: &Upload, layer: usize, module: Module) -> Result<Option<Biases>, GpuError> {
    let Some(values) = upload.base.expert_biases(layer, module) else { return Ok(None) };
    let count = upload.base.config().layers[layer].experts.map_or(1, |experts| experts.count);
    let width = values.len() / count;
    Ok(Some(Biases::new(upload.gpu.upload("biases of experts", &values)?, width)))
}

/// The norm whose weights are the router's scale times `1/√D`.
fn scaled_router_norm(gpu: &Gpu, scale: &[f32], eps: f32) -> Result<Norm, GpuError> {
    let root = (scale.len() as f64).sqrt();
    let weights: Vec<f32> = scale.iter().map(|s| (f64::from(*s) / root) as f32).collect();
    Norm::new(gpu, "router norm", Some(&weights), weights.len(), eps)
}

/// The gated product of every expert as the operand of down; `rows` are its values in f32, where an adapter reads those.
fn gated_forward<'a>(
    p: &mut Pass,
    products: Grouped<'a>,
    acts: &ExpertActs,
    rows: &'a Rows,
    activation: Activation,
    lora: Option<ExpertLora>,
) -> Operand<'a> {
    let groups = products.groups;
    if let Some(tiles) = products.operand.tiles() {
        grouped_gated_coop16::forward(p.rec.now(), tiles, &acts.gate_up, activation, groups, p.tokens);
        if lora.is_some_and(|lora| lora.mask.is_some()) {
            grouped_gated::forward(p.rec.now(), rows, &acts.gate_up, activation, groups, p.tokens);
        }
    } else {
        grouped_gated::forward(p.rec.now(), rows, &acts.gate_up, activation, groups, p.tokens);
    }
    products.operand(rows)
}
