//! The router and the experts beside the feed-forward block: weights, buffers, forward and backward.
//!
//! Scores are computed in f32 at every tier: what decides between experts must not depend on it.
//!
//! | name | shape | needed by |
//! |---|---|---|
//! | `groups` | see [`Groups`] | everything behind the router |
//! | `z` | `[T, R]` | adapter of the router |
//! | `gate_up` | `[rows, 2·F]` | GeGLU |
//! | `output` | `[T, D]` | norm behind the experts |
//! | `sum` | `[T, D]` | norm behind feed-forward block and experts |

use super::Upload;
use crate::config;
use crate::gpu::{Gpu, GpuError, Recorder};
use crate::ops::expert_groups::{self, Groups};
use crate::ops::expert_linear::{self, Columns, ExpertWeight, Source};
use crate::ops::pack::{Packed, packed_bytes};
use crate::ops::rms_norm::{self, Norm};
use crate::ops::{
    Rows, Weight, coop_expert_geglu, coop_expert_linear, expert_combine, expert_geglu, expert_pack, router,
};

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
}

/// What the products of experts read, `[rows, D or 2·F]`.
enum Operand {
    Plain(Rows),
    Packed(Packed),
}

impl Experts {
    /// Uploads the experts of layer `layer`.
    pub async fn load(
        upload: &Upload<'_>,
        layer: usize,
        shape: &config::Experts,
        eps: f32,
    ) -> Result<Experts, GpuError> {
        let (gpu, base) = (upload.gpu, upload.base);
        let name = |last: &str| format!("blk.{layer}.{last}");
        let matrix = async |name: &str| -> Result<Option<ExpertWeight>, GpuError> {
            let Some(matrix) = base.tensor(name) else { return Ok(None) };
            ExpertWeight::stream(gpu, base, &matrix, shape.count).await.map(Some)
        };
        let mut gate_up = Vec::new();
        for name in ["ffn_gate_up_exps", "ffn_gate_exps", "ffn_up_exps"].map(name) {
            gate_up.extend(matrix(&name).await?);
        }
        let scale = base.vector(&name("ffn_gate_inp.scale"));
        let root = (scale.len() as f64).sqrt();
        let router_norm: Vec<f32> = scale.iter().map(|s| (f64::from(*s) / root) as f32).collect();
        let scales = base.vector(&name("ffn_down_exps.scale"));
        let stride = scales.len().next_multiple_of(4);
        Ok(Experts {
            router_norm: Norm::new(gpu, "router norm", Some(&router_norm), router_norm.len(), eps)?,
            router: upload.matrix(&name("ffn_gate_inp")).await?,
            gate_up,
            down: matrix(&name("ffn_down_exps"))
                .await?
                .expect("the base checked its tensors when it was opened"),
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

    /// Every matrix.
    pub fn matrices(&self) -> impl Iterator<Item = &Weight> {
        [&self.router, &self.down.weight].into_iter().chain(self.gate_up.iter().map(|w| &w.weight))
    }

    /// `acts.output` from the stream after attention, `[tokens, D]`. `score` makes the router's scores `[tokens, E]` from what
    /// it reads `[tokens, D]` and its matrix: the product and its adapter's.
    pub fn forward<'a>(
        &'a self,
        rec: &mut Recorder<'a>,
        stream: &Rows,
        acts: &ExpertActivations,
        scratch: &ExpertScratch,
        tokens: usize,
        score: impl FnOnce(&mut Recorder<'a>, &Rows, &Rows, &Weight),
    ) {
        let (groups, normed, scores) = (&acts.groups, &scratch.normed, &scratch.scores);
        let (d, f) = (self.router.cols, groups.experts.width);
        rms_norm::forward(rec, normed, stream, &self.router_norm, None, 1.0, tokens);
        score(rec, scores, normed, &self.router);
        router::forward(rec, groups, scores, tokens);
        groups.sort(rec, tokens);

        rms_norm::forward(rec, normed, stream, &self.pre_ffw_norm_2, None, 1.0, tokens);
        let x = Source::Tokens(normed.all());
        match &scratch.operand {
            Operand::Plain(operand) => {
                for (i, w) in self.gate_up.iter().enumerate() {
                    let y = Columns::all(acts.gate_up.from(i * f));
                    expert_linear::forward(rec, y, x, w, 1.0, None, groups, tokens);
                }
                expert_geglu::forward(rec, &operand.narrowed(f), &acts.gate_up, groups, tokens);
            }
            Operand::Packed(packed) => {
                expert_pack::pack(rec, packed, x, d, groups, tokens);
                for (i, w) in self.gate_up.iter().enumerate() {
                    let y = Columns::all(acts.gate_up.from(i * f));
                    coop_expert_linear::forward(rec, y, packed, w, 1.0, None, groups, tokens);
                }
                coop_expert_geglu::forward(rec, packed, &acts.gate_up, groups, tokens);
            }
        }
        for (first, part) in scratch.parts(d) {
            let y = Columns { y: part.all(), first };
            match &scratch.operand {
                Operand::Plain(operand) => {
                    let x = operand.narrowed(f);
                    let x = Source::Rows(x.all());
                    expert_linear::forward(rec, y, x, &self.down, 1.0, None, groups, tokens);
                }
                Operand::Packed(packed) => {
                    coop_expert_linear::forward(rec, y, packed, &self.down, 1.0, None, groups, tokens);
                }
            }
            expert_combine::forward(rec, acts.output.from(first), &part, &self.scales, groups, tokens);
        }
    }

    /// Adds to `dstream` what comes from the gradient of `acts.output`, which `scratch.normed` holds and which is lost.
    /// `score` is the mirror of forward's: from what the router has read, where it gets the gradient, and that of the scores.
    pub fn backward<'a>(
        &'a self,
        rec: &mut Recorder<'a>,
        dstream: &Rows,
        stream: &Rows,
        acts: &ExpertActivations,
        scratch: &ExpertScratch,
        tokens: usize,
        score: impl FnOnce(&mut Recorder<'a>, &Rows, &Rows, &Weight),
    ) {
        let (groups, gate_up, gradient) = (&acts.groups, &acts.gate_up, &scratch.normed);
        let (d, f) = (self.router.cols, groups.experts.width);
        let dy = Source::Tokens(gradient.all());
        let (dgeglu, dweights) = (scratch.wide.narrowed(f), &scratch.dweights);
        let inputs = [&dgeglu, gate_up, &self.scales];
        let to = Columns::all(dgeglu.all());
        match &scratch.operand {
            Operand::Plain(operand) => {
                expert_linear::backward(rec, to, dy, &self.down, 1.0, None, groups, tokens, false);
                expert_geglu::backward(rec, [&operand.narrowed(2 * f), dweights], inputs, groups, tokens);
            }
            Operand::Packed(packed) => {
                expert_pack::pack(rec, packed, dy, d, groups, tokens);
                let dy = (packed, 0);
                coop_expert_linear::backward(rec, to, dy, &self.down, 1.0, None, groups, tokens, false);
                coop_expert_geglu::backward(rec, (packed, dweights), inputs, groups, tokens);
            }
        }
        for (first, part) in scratch.parts(d) {
            let dx = Columns { y: part.all(), first };
            for (i, w) in self.gate_up.iter().enumerate() {
                match &scratch.operand {
                    Operand::Plain(operand) => {
                        let dy = operand.narrowed(2 * f);
                        let dy = Source::Rows(dy.from(i * f));
                        expert_linear::backward(rec, dx, dy, w, 1.0, None, groups, tokens, i > 0);
                    }
                    Operand::Packed(packed) => {
                        let dy = (packed, i * f);
                        coop_expert_linear::backward(rec, dx, dy, w, 1.0, None, groups, tokens, i > 0);
                    }
                }
            }
            expert_combine::backward(rec, gradient.from(first), &part, groups, tokens);
        }
        rms_norm::backward(rec, dstream, gradient, stream, &self.pre_ffw_norm_2, tokens, true);

        let dscores = &scratch.scores;
        router::backward(rec, dscores, dweights, groups, tokens);
        rms_norm::forward(rec, gradient, stream, &self.router_norm, None, 1.0, tokens);
        score(rec, dscores, gradient, &self.router);
        rms_norm::backward(rec, dstream, gradient, stream, &self.router_norm, tokens, true);
    }
}

impl ExpertActivations {
    /// For passes over up to `tokens` tokens of width `d`, with `z` columns of the router's adapter.
    pub fn new(
        gpu: &Gpu,
        shape: config::Experts,
        d: usize,
        tokens: usize,
        z: usize,
    ) -> Result<ExpertActivations, GpuError> {
        let rows = expert_groups::most_rows(gpu, &shape, tokens);
        Ok(ExpertActivations {
            groups: Groups::new(gpu, shape, tokens)?,
            z: Rows::new(gpu, "z of the router", if z > 0 { tokens } else { 0 }, z)?,
            gate_up: Rows::new(gpu, "experts' gate and up", rows, 2 * shape.width)?,
            output: Rows::new(gpu, "experts' output", tokens, d)?,
            sum: Rows::new(gpu, "feed-forward and experts", tokens, d)?,
        })
    }

    /// The same memory, `z` in rows of its own width, with counts of its own, which the passes over other layers leave alone.
    pub fn sharing(&self, gpu: &Gpu, z: usize) -> Result<ExpertActivations, GpuError> {
        let counts = Rows::new(gpu, "tokens of experts", 1, self.groups.experts.count)?;
        let groups = Groups { counts, ..self.groups.clone() };
        Ok(ExpertActivations { groups, z: self.z.narrowed(z), ..self.clone() })
    }

    /// Bytes of [`ExpertActivations::new`] without `z`.
    pub fn bytes(gpu: &Gpu, shape: &config::Experts, d: usize, tokens: usize) -> u64 {
        let rows = expert_groups::most_rows(gpu, shape, tokens);
        Groups::bytes(gpu, shape, tokens) + 4 * (rows * 2 * shape.width + 2 * tokens * d) as u64
    }
}

impl ExpertScratch {
    /// For passes over up to `tokens` tokens; `normed` is `[tokens, D]` and may be used between calls.
    pub fn new(
        gpu: &Gpu,
        shape: &config::Experts,
        normed: Rows,
        tokens: usize,
    ) -> Result<ExpertScratch, GpuError> {
        let d = normed.stride;
        let rows = expert_groups::most_rows(gpu, shape, tokens);
        let [wide, operand] = widths(shape, d);
        Ok(ExpertScratch {
            normed,
            scores: Rows::new(gpu, "experts' scores", tokens, shape.count)?,
            dweights: Rows::new(gpu, "gradients of experts' weights", 1, tokens * shape.used)?,
            operand: match gpu.cooperative() {
                true => Operand::Packed(Packed::new(gpu, "packed operand of experts", rows, operand)?),
                false => Operand::Plain(Rows::new(gpu, "operand of experts", rows, 2 * shape.width)?),
            },
            wide: Rows::new(gpu, "products of experts", rows, wide)?,
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
            Operand::Packed(packed) => packed.as_rows(4),
        };
        [self.wide.clone(), operand]
    }

    /// Bytes of [`ExpertScratch::new`] without `normed`.
    pub fn bytes(gpu: &Gpu, shape: &config::Experts, d: usize, tokens: usize) -> u64 {
        let factors = if gpu.cooperative() { expert_groups::most_rows(gpu, shape, tokens) } else { 0 };
        let [wide, operand] = buffers(gpu, shape, d, tokens);
        wide + operand + 4 * (factors + tokens * (shape.count.next_multiple_of(4) + shape.used)) as u64
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

/// How many choices of the last pass fell on each expert, by layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Loads(Vec<Vec<u32>>);

impl Loads {
    /// Of layers that have experts; `None` in dense models.
    pub(super) async fn read<'a>(
        gpu: &Gpu,
        layers: impl Iterator<Item = &'a ExpertActivations>,
    ) -> Result<Option<Loads>, GpuError> {
        let mut loads = Vec::new();
        for acts in layers {
            loads.push(gpu.read(&acts.groups.counts.buffer, acts.groups.experts.count).await?);
        }
        Ok((!loads.is_empty()).then_some(Loads(loads)))
    }

    /// By layer, the choices of each expert.
    pub fn layers(&self) -> &[Vec<u32>] {
        &self.0
    }

    /// Largest share of a layer's choices that one expert took.
    pub fn busiest(&self) -> f64 {
        let share = |layer: &Vec<u32>| {
            let most = layer.iter().max().copied().unwrap_or(0);
            f64::from(most) / f64::from(layer.iter().sum::<u32>().max(1))
        };
        self.0.iter().map(share).fold(0.0, f64::max)
    }

    /// Share of all layers' experts that worked on no token.
    pub fn idle(&self) -> f64 {
        let all: usize = self.0.iter().map(Vec::len).sum();
        self.0.iter().flatten().filter(|count| **count == 0).count() as f64 / all as f64
    }
}

#[cfg(test)]
mod tests {
    use super::Loads;

    #[test]
    fn loads_in_two_figures() {
        // 5 of 10 in the second layer; 3 of 8 experts have none.
        let loads = Loads(vec![vec![3, 3, 0, 4], vec![5, 0, 0, 5]]);
        assert_eq!((loads.busiest(), loads.idle()), (0.5, 0.375));
    }
}
