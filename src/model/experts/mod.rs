//! The router and the experts beside the feed-forward block: weights, buffers, forward and backward.
//!
//! Scores are computed in f32 at every tier: what decides between experts must not depend on it.
//!
//! | name | shape | needed by |
//! |---|---|---|
//! | `groups` | see [`Groups`] | everything behind the router |
//! | `z` | `[T, R]` | adapter of the router |
//! | `z_gate_up`, `z_down` | `[rows, R]` | adapters of the experts |
//! | `gate_up` | `[rows, 2·F]` | GeGLU |
//! | `output` | `[T, D]` | norm behind the experts |
//! | `sum` | `[T, D]` | norm behind feed-forward block and experts |

mod loads;
mod lora;
mod short;

use super::Upload;
use super::offload::{self, HostExperts};
use crate::base::config;
use crate::gpu::{Gpu, GpuError, Recorder};
use crate::ops::Rows;
use crate::ops::Weight;
use crate::ops::experts::combine as expert_combine;
use crate::ops::experts::groups as expert_groups;
use crate::ops::experts::groups::Groups;
use crate::ops::experts::router;
use crate::ops::gated::grouped as expert_geglu;
use crate::ops::gated::grouped_coop16 as coop_expert_geglu;
use crate::ops::linear::grouped as expert_linear;
use crate::ops::linear::grouped::{Columns, ExpertWeight, Source};
use crate::ops::linear::grouped_coop16 as coop_expert_linear;
use crate::ops::lora::grouped as expert_lora;
use crate::ops::pack::grouped as expert_pack;
use crate::ops::pack::{Packed, packed_bytes};
use crate::ops::rms_norm::{self, Norm};

pub use loads::Loads;
pub(super) use lora::ExpertLora;
use lora::{coop_project, masked_back, project};

/// The weights of one layer's experts.
pub(super) struct Experts {
    router_norm: Norm, // its scale and 1/√D
    router: Weight,    // [E, D]
    /// `[E, 2·F, D]`, or gate and up `[E, F, D]` where the file has them apart.
    gate_up: Vec<ExpertWeight>,
    down: ExpertWeight, // [E, D, F]
    scales: Rows,       // [E]
    pub post_ffw_norm_1: Norm,
    pre_ffw_norm_2: Norm,
    pub post_ffw_norm_2: Norm,
}

/// What the forward of one layer's experts leaves behind.
#[derive(Clone)]
pub(super) struct ExpertActivations {
    pub groups: Groups,
    pub z: Rows,
    pub z_gate_up: Rows,
    pub z_down: Rows,
    pub gate_up: Rows,
    pub output: Rows,
    pub sum: Rows,
}

/// Scratch of one layer's experts; every layer uses the same.
pub(super) struct ExpertScratch {
    /// What the experts or their router read, or its gradient `[T, D]`.
    pub normed: Rows,
    scores: Rows,   // or their gradient [T, E]
    dweights: Rows, // [T, used]
    operand: Operand,
    wide: Rows, // results of products [rows, F, or some of D's columns]
    u: Rows,    // of the experts' adapters [rows, R]
}

/// What the products of experts read, `[rows, D or 2·F]`.
enum Operand {
    Plain(Rows),
    /// With room for `z` or `u` `[rows, R]`.
    Packed(Packed, Packed),
}

impl Experts {
    /// Uploads the experts of layer `layer`, or leaves their matrices to `offload`.
    pub async fn load<'b>(
        upload: &Upload<'_, 'b>,
        layer: usize,
        shape: &config::Experts,
        eps: f32,
        offload: Option<&mut HostExperts<'b>>,
    ) -> Result<Experts, GpuError> {
        let (gpu, base) = (upload.gpu, upload.base);
        let name = |last: &str| format!("blk.{layer}.{last}");
        let mut gate_up = Vec::new();
        match offload {
            Some(offload) => gate_up = offload.keep(gpu, base, layer, shape.count).await?,
            None => {
                for matrix in offload::matrices(base, layer) {
                    gate_up.push(ExpertWeight::stream(gpu, base, &matrix, shape.count).await?);
                }
            }
        }
        let down = gate_up.pop().expect("the base checked its tensors when it was opened");
        let scale = base.vector(&name("ffn_gate_inp.scale"));
        let root = (scale.len() as f64).sqrt();
        let router_norm: Vec<f32> = scale.iter().map(|s| (f64::from(*s) / root) as f32).collect();
        let scales = base.vector(&name("ffn_down_exps.scale"));
        let stride = scales.len().next_multiple_of(4);
        Ok(Experts {
            router_norm: Norm::new(gpu, "router norm", Some(&router_norm), router_norm.len(), eps)?,
            router: upload.matrix(&name("ffn_gate_inp")).await?,
            gate_up,
            down,
            scales: Rows {
                buffer: gpu.upload("scales of experts", &scales)?,
                stride,
                start: 0,
                packed: None,
            },
            post_ffw_norm_1: upload.norm(&name("post_ffw_norm_1"), eps)?,
            pre_ffw_norm_2: upload.norm(&name("pre_ffw_norm_2"), eps)?,
            post_ffw_norm_2: upload.norm(&name("post_ffw_norm_2"), eps)?,
        })
    }

    /// The router's matrix.
    pub fn router(&self) -> &Weight {
        &self.router
    }

    /// Every matrix of the experts themselves.
    pub fn matrices(&self) -> impl Iterator<Item = &Weight> {
        std::iter::once(&self.down.weight).chain(self.gate_up.iter().map(|w| &w.weight))
    }

    /// `acts.output` from the stream after attention, `[tokens, D]`, with the adapters of gate and up and of down. `score` makes the
    /// router's scores `[tokens, E]` from what it reads `[tokens, D]` and its matrix: the product and its adapter's.
    pub fn forward<'a>(
        &'a self,
        rec: &mut Recorder<'a>,
        stream: &Rows,
        acts: &ExpertActivations,
        scratch: &ExpertScratch,
        [lora_gate_up, lora_down]: [Option<ExpertLora>; 2],
        tokens: usize,
        score: impl FnOnce(&mut Recorder<'a>, &Rows, &Rows, &Weight),
    ) {
        let (groups, normed) = (&acts.groups, &scratch.normed);
        let (d, f) = (self.router.cols, groups.experts.width);
        self.route(rec, stream, groups, scratch, tokens, score);
        groups.sort(rec, tokens);

        rms_norm::forward(rec, normed, stream, &self.pre_ffw_norm_2, None, 1.0, tokens);
        let x = Source::Tokens(normed.all());
        match &scratch.operand {
            Operand::Plain(operand) => {
                project(rec, &acts.z_gate_up, x, lora_gate_up, groups, tokens);
                for (i, w) in self.gate_up.iter().enumerate() {
                    let y = Columns::all(acts.gate_up.from(i * f));
                    let term = lora_gate_up.map(|l| l.up(&acts.z_gate_up, i * f));
                    expert_linear::forward(rec, y, x, w, 1.0, term.as_ref(), groups, tokens);
                }
                let geglu = operand.narrowed(f);
                expert_geglu::forward(rec, &geglu, &acts.gate_up, groups, tokens);
                project(rec, &acts.z_down, Source::Rows(geglu.all()), lora_down, groups, tokens);
            }
            Operand::Packed(packed, thin) => {
                expert_pack::pack(rec, packed, x, d, groups, tokens);
                coop_project(rec, &acts.z_gate_up, [packed, thin], x, lora_gate_up, groups, tokens);
                for (i, w) in self.gate_up.iter().enumerate() {
                    let y = Columns::all(acts.gate_up.from(i * f));
                    let term = lora_gate_up.map(|l| l.coop_up(thin, i * f));
                    coop_expert_linear::forward(rec, y, packed, w, 1.0, term.as_ref(), groups, tokens);
                }
                coop_expert_geglu::forward(rec, packed, &acts.gate_up, groups, tokens);
                let geglu = scratch.wide.narrowed(f);
                if lora_down.is_some_and(|l| l.mask.is_some()) {
                    expert_geglu::forward(rec, &geglu, &acts.gate_up, groups, tokens);
                }
                let plain = Source::Rows(geglu.all());
                coop_project(rec, &acts.z_down, [packed, thin], plain, lora_down, groups, tokens);
            }
        }
        for (first, part) in scratch.parts(d) {
            let y = Columns { y: part.all(), first };
            match &scratch.operand {
                Operand::Plain(operand) => {
                    let x = operand.narrowed(f);
                    let x = Source::Rows(x.all());
                    let term = lora_down.map(|l| l.up(&acts.z_down, 0));
                    expert_linear::forward(rec, y, x, &self.down, 1.0, term.as_ref(), groups, tokens);
                }
                Operand::Packed(packed, thin) => {
                    let term = lora_down.map(|l| l.coop_up(thin, 0));
                    let term = term.as_ref();
                    coop_expert_linear::forward(rec, y, packed, &self.down, 1.0, term, groups, tokens);
                }
            }
            expert_combine::forward(rec, acts.output.from(first), &part, &self.scales, groups, tokens);
        }
    }

    /// The experts of each token and their weights, into `groups`; `stream` and `score` are those of [`Experts::forward`].
    fn route<'a>(
        &'a self,
        rec: &mut Recorder<'a>,
        stream: &Rows,
        groups: &Groups,
        scratch: &ExpertScratch,
        tokens: usize,
        score: impl FnOnce(&mut Recorder<'a>, &Rows, &Rows, &Weight),
    ) {
        let ExpertScratch { normed, scores, .. } = scratch;
        rms_norm::forward(rec, normed, stream, &self.router_norm, None, 1.0, tokens);
        score(rec, scores, normed, &self.router);
        router::forward(rec, groups, scores, tokens);
    }

    /// Adds to `dstream` what comes from the gradient of `acts.output`, which `scratch.normed` holds and which is lost, and to the
    /// gradients of the adapters.
    /// `score` is the mirror of forward's: from what the router has read, where it gets the gradient, and that of the scores.
    pub fn backward<'a>(
        &'a self,
        rec: &mut Recorder<'a>,
        dstream: &Rows,
        stream: &Rows,
        acts: &ExpertActivations,
        scratch: &ExpertScratch,
        [lora_gate_up, lora_down]: [Option<ExpertLora>; 2],
        tokens: usize,
        score: impl FnOnce(&mut Recorder<'a>, &Rows, &Rows, &Weight),
    ) {
        let (groups, gate_up, gradient) = (&acts.groups, &acts.gate_up, &scratch.normed);
        let (d, f) = (self.router.cols, groups.experts.width);
        let dy = Source::Tokens(gradient.all());
        let (dgeglu, dweights) = (scratch.wide.narrowed(f), &scratch.dweights);
        let inputs = [&dgeglu, gate_up, &self.scales];
        let to = Columns::all(dgeglu.all());
        if let Some(lora) = &lora_down {
            let geglu = &dgeglu; // made again where its gradient will be
            expert_geglu::forward(rec, geglu, gate_up, groups, tokens);
            let (u, b) = (&scratch.u.narrowed(lora.rank), lora.b_weight(groups));
            let z = Source::Rows(acts.z_down.all());
            expert_linear::backward(
                rec,
                Columns::all(u.all()),
                dy,
                &b,
                lora.scale,
                None,
                groups,
                tokens,
                false,
            );
            if let Some([da, db]) = lora.gradients {
                let (scales, geglu) = (Some(&self.scales), Source::Rows(geglu.all()));
                let u = Source::Rows(u.all());
                expert_lora::gradient(rec, db, dy, z, None, lora.scale, scales, groups, tokens);
                expert_lora::gradient(rec, da, u, geglu, lora.mask, 1.0, scales, groups, tokens);
            }
        }
        let u = &scratch.u.narrowed(lora_down.map_or(0, |l| l.rank));
        match &scratch.operand {
            Operand::Plain(operand) => {
                let term = lora_down.and_then(|l| l.back(u));
                expert_linear::backward(rec, to, dy, &self.down, 1.0, term.as_ref(), groups, tokens, false);
                masked_back(rec, to, u, lora_down, groups, tokens);
                expert_geglu::backward(rec, [&operand.narrowed(2 * f), dweights], inputs, groups, tokens);
            }
            Operand::Packed(packed, thin) => {
                expert_pack::pack(rec, packed, dy, d, groups, tokens);
                let term = lora_down.and_then(|l| {
                    let u = Source::Rows(u.all());
                    expert_pack::pack_alike(rec, thin, u, l.rank, groups, tokens, packed);
                    l.coop_back(thin)
                });
                let (dy, term) = ((packed, 0), term.as_ref());
                coop_expert_linear::backward(rec, to, dy, &self.down, 1.0, term, groups, tokens, false);
                masked_back(rec, to, u, lora_down, groups, tokens);
                coop_expert_geglu::backward(rec, (packed, dweights), inputs, groups, tokens);
            }
        }
        if let Some(lora) = &lora_gate_up {
            // What the experts have read, in the place of a gradient that is needed no longer.
            rms_norm::forward(rec, gradient, stream, &self.pre_ffw_norm_2, None, 1.0, tokens);
            let (x, z) = (Source::Tokens(gradient.all()), Source::Rows(acts.z_gate_up.all()));
            let (u, b) = (&scratch.u.narrowed(lora.rank), lora.b_weight(groups));
            let to = Columns::all(u.all());
            match &scratch.operand {
                Operand::Plain(operand) => {
                    let dgate_up = operand.narrowed(2 * f);
                    let dy = Source::Rows(dgate_up.all());
                    expert_linear::backward(rec, to, dy, &b, lora.scale, None, groups, tokens, false);
                    if let Some([_, db]) = lora.gradients {
                        expert_lora::gradient(rec, db, dy, z, None, lora.scale, None, groups, tokens);
                    }
                }
                Operand::Packed(packed, thin) => {
                    let dy = (packed, 0);
                    coop_expert_linear::backward(rec, to, dy, &b, lora.scale, None, groups, tokens, false);
                    if let Some([_, db]) = lora.gradients {
                        expert_lora::gradient_packed(rec, db, packed, z, lora.scale, groups, tokens);
                    }
                    let u = Source::Rows(u.all());
                    expert_pack::pack_alike(rec, thin, u, lora.rank, groups, tokens, packed);
                }
            }
            if let Some([da, _]) = lora.gradients {
                let u = Source::Rows(u.all());
                expert_lora::gradient(rec, da, u, x, lora.mask, 1.0, None, groups, tokens);
            }
        }
        let u = &scratch.u.narrowed(lora_gate_up.map_or(0, |l| l.rank));
        for (first, part) in scratch.parts(d) {
            let dx = Columns { y: part.all(), first };
            for (i, w) in self.gate_up.iter().enumerate() {
                let lora = lora_gate_up.filter(|_| i == 0);
                match &scratch.operand {
                    Operand::Plain(operand) => {
                        let dy = operand.narrowed(2 * f);
                        let dy = Source::Rows(dy.from(i * f));
                        let term = lora.and_then(|l| l.back(u));
                        expert_linear::backward(rec, dx, dy, w, 1.0, term.as_ref(), groups, tokens, i > 0);
                    }
                    Operand::Packed(packed, thin) => {
                        let (dy, term) = ((packed, i * f), lora.and_then(|l| l.coop_back(thin)));
                        let term = term.as_ref();
                        coop_expert_linear::backward(rec, dx, dy, w, 1.0, term, groups, tokens, i > 0);
                    }
                }
            }
            masked_back(rec, dx, u, lora_gate_up, groups, tokens);
            expert_combine::backward(rec, gradient.from(first), &part, groups, tokens);
        }
        rms_norm::backward(rec, dstream, gradient, stream, &self.pre_ffw_norm_2, tokens, Some(1.0));

        let dscores = &scratch.scores;
        router::backward(rec, dscores, dweights, groups, tokens);
        rms_norm::forward(rec, gradient, stream, &self.router_norm, None, 1.0, tokens);
        score(rec, dscores, gradient, &self.router);
        rms_norm::backward(rec, dstream, gradient, stream, &self.router_norm, tokens, Some(1.0));
    }
}

impl ExpertActivations {
    /// For passes over up to `tokens` tokens of width `d`, with columns of `z` for the adapters of the router, of gate and up, and
    /// of down.
    pub fn new(
        gpu: &Gpu,
        shape: config::Experts,
        d: usize,
        tokens: usize,
        [z, z_gate_up, z_down]: [usize; 3],
    ) -> Result<ExpertActivations, GpuError> {
        let rows = expert_groups::most_rows(gpu, &shape, tokens);
        Ok(ExpertActivations {
            groups: Groups::new(gpu, shape, tokens)?,
            z: Rows::new(gpu, "z of the router", if z > 0 { tokens } else { 0 }, z)?,
            z_gate_up: Rows::new(
                gpu,
                "z of experts' gate and up",
                if z_gate_up > 0 { rows } else { 0 },
                z_gate_up,
            )?,
            z_down: Rows::new(gpu, "z of experts' down", if z_down > 0 { rows } else { 0 }, z_down)?,
            gate_up: Rows::new(gpu, "experts' gate and up", rows, 2 * shape.width)?,
            output: Rows::new(gpu, "experts' output", tokens, d)?,
            sum: Rows::new(gpu, "feed-forward and experts", tokens, d)?,
        })
    }

    /// The same memory, each `z` in rows of its own width, with counts of its own, which the passes over other layers leave alone.
    pub fn sharing(
        &self,
        gpu: &Gpu,
        [z, z_gate_up, z_down]: [usize; 3],
    ) -> Result<ExpertActivations, GpuError> {
        let counts = Rows::new(gpu, "tokens of experts", 1, self.groups.experts.count)?;
        let groups = Groups { counts, ..self.groups.clone() };
        Ok(ExpertActivations {
            groups,
            z: self.z.narrowed(z),
            z_gate_up: self.z_gate_up.narrowed(z_gate_up),
            z_down: self.z_down.narrowed(z_down),
            ..self.clone()
        })
    }

    /// Bytes of [`ExpertActivations::new`] without the router's `z`; `z` are the columns of the experts'.
    pub fn bytes(gpu: &Gpu, shape: &config::Experts, d: usize, tokens: usize, z: usize) -> u64 {
        let rows = expert_groups::most_rows(gpu, shape, tokens);
        Groups::bytes(gpu, shape, tokens) + 4 * (rows * (2 * shape.width + z) + 2 * tokens * d) as u64
    }
}

impl ExpertScratch {
    /// For passes over up to `tokens` tokens with adapters of the experts of padded rank `rank`, 0 for none; `normed` is
    /// `[tokens, D]` and may be used between calls.
    pub fn new(
        gpu: &Gpu,
        shape: &config::Experts,
        normed: Rows,
        tokens: usize,
        rank: usize,
    ) -> Result<ExpertScratch, GpuError> {
        let d = normed.stride;
        let rows = expert_groups::most_rows(gpu, shape, tokens);
        let [wide, operand] = widths(shape, d);
        Ok(ExpertScratch {
            normed,
            scores: Rows::new(gpu, "experts' scores", tokens, shape.count)?,
            dweights: Rows::new(gpu, "gradients of experts' weights", 1, tokens * shape.used)?,
            operand: match gpu.cooperative() {
                true => Operand::Packed(
                    Packed::new(gpu, "packed operand of experts", rows, operand)?,
                    Packed::new(gpu, "packed z of experts", if rank > 0 { rows } else { 1 }, rank)?,
                ),
                false => Operand::Plain(Rows::new(gpu, "operand of experts", rows, 2 * shape.width)?),
            },
            wide: Rows::new(gpu, "products of experts", rows, wide)?,
            u: Rows::new(gpu, "u of experts", if rank > 0 { rows } else { 0 }, rank)?,
        })
    }

    /// The columns of a result of width `d` that are made at a time: the first of them, and where they go.
    fn parts(&self, d: usize) -> impl Iterator<Item = (usize, Rows)> {
        let part = part(d);
        (0..d).step_by(part).map(move |first| (first, self.wide.narrowed(part.min(d - first))))
    }

    /// Two buffers that may be used between calls.
    pub fn spare(&self) -> [Rows; 2] {
        let operand = match &self.operand {
            Operand::Plain(rows) => rows.clone(),
            Operand::Packed(packed, _) => packed.as_rows(4),
        };
        [self.wide.clone(), operand]
    }

    /// Bytes of [`ExpertScratch::new`] without `normed`.
    pub fn bytes(gpu: &Gpu, shape: &config::Experts, d: usize, tokens: usize, rank: usize) -> u64 {
        let rows = expert_groups::most_rows(gpu, shape, tokens);
        let factors = if gpu.cooperative() { rows } else { 0 };
        let thin = if gpu.cooperative() { packed_bytes(rows, rank) } else { 0 };
        let [wide, operand] = buffers(gpu, shape, d, tokens);
        let thin = if rank > 0 { thin + 4 * (rows * rank + factors) as u64 } else { 0 };
        wide + operand + thin + 4 * (factors + tokens * (shape.count.next_multiple_of(4) + shape.used)) as u64
    }
}

/// Bytes of the products' results and of their operands: the buffers of [`ExpertScratch::spare`].
pub(super) fn buffers(gpu: &Gpu, shape: &config::Experts, d: usize, tokens: usize) -> [u64; 2] {
    let rows = expert_groups::most_rows(gpu, shape, tokens);
    let [wide, operand] = widths(shape, d);
    let operand = match gpu.cooperative() {
        true => packed_bytes(rows, operand),
        false => 8 * (rows * shape.width) as u64,
    };
    [4 * (rows * wide) as u64, operand]
}

/// Of the results of products, and of their packed operands.
fn widths(shape: &config::Experts, d: usize) -> [usize; 2] {
    [part(d).max(shape.width), d.max(2 * shape.width)]
}

/// Columns of a result of width `d` that are made at a time: half of them, as rows of experts are many, in whole tiles.
fn part(d: usize) -> usize {
    d.div_ceil(2).next_multiple_of(128).min(d)
}
