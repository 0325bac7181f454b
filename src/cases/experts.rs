//! Mixtures of experts: the router, rows grouped by expert, their products, gates and gradients, and the way back to tokens.

use super::bench::Bench;
use super::block::Block;
use super::inputs::{plus, values, wide};
use super::product::columns;
use super::tolerance::{F16, F32, Tolerance};
use crate::base::config::{Activation, Experts, Gating};
use crate::base::formats::{GgmlType, dequantize, random_blocks};
use crate::gpu::GpuError;
use crate::ops::Rows;
use crate::ops::experts::bias::Biases;
use crate::ops::experts::{combine, groups::Groups, router};
use crate::ops::gated::{grouped as gated, grouped_coop16 as gated_on_matrices};
use crate::ops::linear::cuda::grouped::{self as linear_in_cuda, Input};
use crate::ops::linear::cuda::{Panels, product_bytes};
use crate::ops::linear::grouped::{self as linear, Columns, ExpertWeight, LowRank, Source};
use crate::ops::linear::grouped_coop16 as linear_on_matrices;
use crate::ops::lora::grouped as lora;
use crate::ops::matvec::grouped as matvec;
use crate::ops::pack::{Packed, grouped as pack};
use crate::reference::{self, Routing};

/// Experts, and tokens: several tiles for some experts, padding in every last one.
const EXPERTS: Experts = Experts {
    count: 5,
    used: 2,
    width: 36,
    shared: false,
    gating: Gating::Chosen,
    ungated: false,
    scale: 1.0,
};
const TOKENS: usize = 90;
/// Rank of the adapters: what matrices of 16×16 take.
const RANK: usize = 16;

/// The router's choices on the device and in f64, and the rows that they are grouped in.
struct Grouped {
    groups: Groups,
    routing: Routing,
    scores: Block,
    tokens: usize,
    /// Choice of each row, `None` in padding.
    rows: Vec<Option<usize>>,
}

impl Grouped {
    fn new(b: &Bench, tokens: usize) -> Result<Grouped, GpuError> {
        Grouped::gated(b, tokens, Gating::Chosen)
    }

    fn gated(b: &Bench, tokens: usize, gating: Gating) -> Result<Grouped, GpuError> {
        let experts = Experts { gating, ..EXPERTS };
        let Experts { count, used, .. } = experts;
        let selection = values(2, count);
        let favour = |i: usize| 1.0 / (1 + i % count) as f32;
        let scores: Vec<f32> =
            values(1, tokens * count).iter().enumerate().map(|(i, s)| 2.0 * s + favour(i)).collect();
        let routing = reference::router::forward(&wide(&scores), &experts, &wide(&selection), None);
        let groups = Groups::new(b.gpu, experts, tokens + 3)?;
        let biases = b.input(count, &selection)?;
        let biases = (gating == Gating::Sigmoid).then_some(biases.rows());
        let scores = b.input(count, &scores)?;
        b.run(|rec| {
            router::forward(rec, &groups, scores.rows(), biases, tokens);
            groups.sort(rec, tokens);
        })?;
        let mut rows = Vec::new();
        for expert in 0..count {
            rows.extend((0..tokens * used).filter(|i| routing.experts[*i] == expert).map(Some));
            rows.resize(rows.len().next_multiple_of(groups.tile), None);
        }
        rows.resize(groups.most_rows(tokens), None);
        Ok(Grouped { groups, routing, scores, tokens, rows })
    }

    /// Rows in the order of the groups, `of(choice)` each; padding holds zeros.
    fn rows(&self, width: usize, of: impl Fn(usize) -> Vec<f64>) -> Vec<f32> {
        let row = |choice: &Option<usize>| choice.map_or(vec![0.0; width], &of);
        self.rows.iter().flat_map(row).map(|x| x as f32).collect()
    }

    /// Expected values of the rows that hold a choice.
    fn of_choices(&self, of: impl Fn(usize, usize) -> Vec<f64>) -> Vec<f64> {
        let choices = self.rows.iter().enumerate().filter_map(|(row, choice)| Some((row, (*choice)?)));
        choices.flat_map(|(row, choice)| of(row, choice)).collect()
    }

    fn expect(&self, b: &mut Bench, name: &str, block: &Block, values: Vec<f64>, tolerance: Tolerance) {
        b.expect_rows(name, block, |row| self.rows[row].is_some(), values, tolerance);
    }
}

/// Chosen experts and their weights, the gradient of the scores, and the order of the rows.
pub fn routers(b: &mut Bench) -> Result<(), GpuError> {
    router_of(b, Gating::Chosen)?;
    router_of(b, Gating::All)?;
    router_of(b, Gating::Sigmoid)
}

fn router_of(b: &mut Bench, gating: Gating) -> Result<(), GpuError> {
    let g = Grouped::gated(b, TOKENS, gating)?;
    let choices = TOKENS * EXPERTS.used;
    let dweights = values(2, choices);
    let expected = reference::router::backward(&wide(&dweights), &g.routing, EXPERTS.count);
    let (dweights, dscores) = (b.input(choices, &dweights)?, b.output(EXPERTS.count, TOKENS)?);
    let scores = g.scores.rows();
    b.run(|rec| router::backward(rec, dscores.rows(), dweights.rows(), scores, &g.groups, TOKENS))?;
    b.expect_bits("chosen experts", &g.groups.chosen.buffer, g.routing.experts.iter().map(|e| *e as u32));
    b.expect_start("weights of experts", &g.groups.weights.buffer, g.routing.weights.clone(), F32);
    b.expect("gradients of scores", &dscores, expected, F32);
    let mut places = vec![0; choices];
    for (row, choice) in g.rows.iter().enumerate() {
        choice.iter().for_each(|choice| places[*choice] = row as u32);
    }
    b.expect_bits("rows of choices", &g.groups.places.buffer, places);
    let count = |e: usize| g.routing.experts.iter().filter(|own| **own == e).count() as u32;
    b.expect_bits("tokens of experts", &g.groups.counts.buffer, (0..EXPERTS.count).map(count));
    Ok(())
}

/// A random matrix for every expert.
fn weight(b: &Bench, ty: GgmlType, n: usize, k: usize) -> Result<(ExpertWeight, Vec<f64>), GpuError> {
    let shape = [EXPERTS.count, n, k];
    let bytes = random_blocks(ty, shape.iter().product::<usize>() / ty.block_len(), 9);
    let truth = wide(&dequantize(ty, &bytes));
    Ok((ExpertWeight::upload(b.gpu, "case", ty, shape, &bytes)?, truth))
}

/// `y = 0.5·x·W_eᵀ + 0.75·z·B_eᵀ` of gathered tokens, and `dx = dy·W_e + u·A_e` of grouped rows, in formats that experts have.
pub fn products(b: &mut Bench) -> Result<(), GpuError> {
    for ty in [GgmlType::Q4_K, GgmlType::Q5_0, GgmlType::Q6_K, GgmlType::Q8_0] {
        let g = Grouped::new(b, TOKENS)?;
        product(b, &g, ty, false, false)?;
        product(b, &g, ty, true, false)?;
    }
    Ok(())
}

/// These products in CUDA, with panels of two experts at a time: forward reads the rows of the tokens.
pub fn in_cuda(b: &mut Bench) -> Result<(), GpuError> {
    let g = Grouped::new(b, TOKENS)?;
    product(b, &g, GgmlType::Q4_K, false, true)?;
    product(b, &g, GgmlType::Q4_K, true, true)
}

fn product(b: &mut Bench, g: &Grouped, ty: GgmlType, backward: bool, in_cuda: bool) -> Result<(), GpuError> {
    // Longer than 60 lines: the reference and both storages of one product.
    let (n, k) = (68, columns(ty));
    let (w, truth) = weight(b, ty, n, k)?;
    let (input, output) = if backward { (n, k) } else { (k, n) };
    let height = if backward { g.rows.len() } else { TOKENS };
    let x = values(1, height * input);
    let z = g.rows(RANK, |choice| wide(&values(100 + choice as u64, RANK)));
    let matrix = values(3, EXPERTS.count * RANK * output);
    let expected = g.of_choices(|row, choice| {
        let e = g.routing.experts[choice];
        let from = if backward { row } else { choice / EXPERTS.used };
        let x = wide(&x[from * input..][..input]);
        let (own, matrix) =
            (&truth[e * n * k..][..n * k], wide(&matrix[e * RANK * output..][..RANK * output]));
        let z = wide(&z[row * RANK..][..RANK]);
        let (product, term) = match backward {
            true => {
                (reference::linear::backward(&x, own, k), reference::linear::backward(&z, &matrix, output))
            }
            false => (reference::linear::forward(&x, own, k), reference::linear::forward(&z, &matrix, RANK)),
        };
        let (scale, lora_scale) = if backward { (1.0, 1.0) } else { (0.5, 0.75) };
        product.iter().zip(term).map(|(y, t)| scale * y + lora_scale * t).collect()
    });
    let (x, z) = (b.input_view(input, &x)?, b.input(RANK, &z)?);
    let matrix = b.param(if backward { output } else { RANK }, &matrix)?;
    let y = b.output_view(output, g.rows.len())?;
    let source = if backward { Source::Rows(x.view()) } else { Source::Tokens(x.view()) };
    let (groups, to) = (&g.groups, Columns::all(y.view()));
    if b.gpu.kernels().reads_tiles() {
        let packed = Packed::new(b.gpu, "case", g.rows.len(), input)?;
        let thin = Packed::new(b.gpu, "case", g.rows.len(), RANK)?;
        let of_tokens = Packed::new(b.gpu, "case", TOKENS, input)?;
        let panels = Panels::new(b.gpu, 2 * product_bytes(n, k, RANK))?;
        b.run(|rec| {
            pack::pack(rec, &packed, source, input, groups, TOKENS);
            pack::pack_alike(rec, &thin, Source::Rows(z.view()), RANK, groups, TOKENS, &packed);
            let term = |scale| linear_on_matrices::LowRank {
                z: &thin,
                matrix: &matrix,
                first_row: 0,
                rank: RANK,
                scale,
            };
            let (up, down) = (term(0.75), term(1.0));
            match (backward, in_cuda) {
                (true, true) => {
                    let dy = Input { tiles: &packed, first_column: 0, of_tokens: false };
                    let term = Some(&down);
                    linear_in_cuda::backward(rec, &panels, to, dy, &w, 1.0, term, groups, TOKENS, false);
                }
                (false, true) => {
                    of_tokens.pack(rec, x.view(), input, TOKENS);
                    let x = Input { tiles: &of_tokens, first_column: 0, of_tokens: true };
                    linear_in_cuda::forward(rec, &panels, to, x, &w, 0.5, Some(&up), groups, TOKENS);
                }
                (true, false) => linear_on_matrices::backward(
                    rec,
                    to,
                    (&packed, 0),
                    &w,
                    1.0,
                    Some(&down),
                    groups,
                    TOKENS,
                    false,
                ),
                (false, false) => {
                    linear_on_matrices::forward(rec, to, &packed, &w, 0.5, Some(&up), groups, TOKENS)
                }
            }
        })?;
    } else {
        b.run(|rec| {
            let term = |scale| LowRank { z: z.view(), matrix: &matrix, first_row: 0, rank: RANK, scale };
            match backward {
                true => linear::backward(rec, to, source, &w, 1.0, Some(&term(1.0)), groups, TOKENS, false),
                false => linear::forward(rec, to, source, &w, 0.5, Some(&term(0.75)), groups, TOKENS),
            }
        })?;
    }
    let name = format!("{}: {}", ty.name(), if backward { "dy·W" } else { "x·Wᵀ" });
    let tolerance = b.operands();
    g.expect(b, &name, &y, expected, tolerance);
    Ok(())
}

/// `dW_e += 0.75·Σ pᵀ·q` over the rows of each expert.
pub fn gradients(b: &mut Bench) -> Result<(), GpuError> {
    let g = Grouped::new(b, TOKENS)?;
    let (n, m) = (68, RANK);
    let (p, q) = (values(7, g.rows.len() * n), g.rows(m, |choice| wide(&values(100 + choice as u64, m))));
    let before = values(6, EXPERTS.count * n * m);
    let mut expected = wide(&before);
    for (row, choice) in g.rows.iter().enumerate().filter_map(|(row, choice)| Some((row, (*choice)?))) {
        let e = g.routing.experts[choice];
        for (i, p) in p[row * n..][..n].iter().enumerate() {
            for (j, q) in q[row * m..][..m].iter().enumerate() {
                expected[(e * n + i) * m + j] += 0.75 * f64::from(*p) * f64::from(*q);
            }
        }
    }
    let (p, q, dw) = (b.input_view(n, &p)?, b.input(m, &q)?, b.param(m, &before)?);
    b.run(|rec| {
        let (p, q) = (Source::Rows(p.view()), Source::Rows(q.view()));
        lora::gradient(rec, &dw, p, q, None, 0.75, None, &g.groups, TOKENS);
    })?;
    let tolerance = b.operands();
    b.expect_param("dW", &dw, expected, tolerance);
    Ok(())
}

/// Gates, the gradients of gates, ups and of the choices' weights, and sums over the choices of a token.
pub fn gates(b: &mut Bench) -> Result<(), GpuError> {
    let g = Grouped::new(b, TOKENS)?;
    let (f, activation, choices) = (EXPERTS.width, Activation::Gelu, TOKENS * EXPERTS.used);
    let (gate_up, dy, scales) =
        (values(2, choices * 2 * f), values(3, choices * f), values(5, EXPERTS.count));
    let of = |x: &[f32], width: usize, choice: usize| wide(&x[choice * width..][..width]);
    let halves = |choice: usize| {
        let mut gate = of(&gate_up, 2 * f, choice);
        let up = gate.split_off(f);
        (gate, up)
    };
    let scale = |choice: usize| f64::from(scales[g.routing.experts[choice]]);
    let y = |choice: usize| reference::gated::forward(&halves(choice).0, &halves(choice).1, activation);
    let dgate_up = |choice: usize| {
        let factor = g.routing.weights[choice] * scale(choice);
        let dy: Vec<f64> = of(&dy, f, choice).iter().map(|dy| factor * dy).collect();
        let (dgate, dup) = reference::gated::backward(&dy, &halves(choice).0, &halves(choice).1, activation);
        [dgate, dup].concat()
    };
    let dweight = |choice: usize| {
        scale(choice) * y(choice).iter().zip(of(&dy, f, choice)).map(|(y, dy)| y * dy).sum::<f64>()
    };
    let expected = [g.of_choices(|_, choice| y(choice)), g.of_choices(|_, choice| dgate_up(choice))];
    let dweights_expected: Vec<f64> = (0..choices).map(dweight).collect();
    let inputs = b.input(2 * f, &g.rows(2 * f, |choice| of(&gate_up, 2 * f, choice)))?;
    let dy_rows = b.input(f, &g.rows(f, |choice| of(&dy, f, choice)))?;
    let scale_rows = b.input(EXPERTS.count, &scales)?;
    let dweights = Rows::new(b.gpu, "case", 1, choices)?;
    let from = [dy_rows.rows(), inputs.rows(), scale_rows.rows()];
    let groups = &g.groups;
    let (out, back) = (b.output(f, g.rows.len())?, b.output(2 * f, g.rows.len())?);
    let packed_kernels = b.gpu.kernels().reads_tiles();
    if packed_kernels {
        let packed = Packed::new(b.gpu, "case", g.rows.len(), f)?;
        let packed_back = Packed::new(b.gpu, "case", g.rows.len(), 2 * f)?;
        b.run(|rec| {
            gated_on_matrices::forward(rec, &packed, inputs.rows(), activation, groups, TOKENS);
            gated_on_matrices::backward(rec, (&packed_back, &dweights), from, activation, groups, TOKENS);
            packed.unpack(rec, out.view(), f, g.rows.len());
            packed_back.unpack(rec, back.view(), 2 * f, g.rows.len());
        })?;
    } else {
        b.run(|rec| {
            gated::forward(rec, out.rows(), inputs.rows(), activation, groups, TOKENS);
            gated::backward(rec, [back.rows(), &dweights], from, activation, groups, TOKENS);
        })?;
    }
    let tolerance = if packed_kernels { F16 } else { F32 };
    let [y, dgate_up] = expected;
    g.expect(b, "y", &out, y, tolerance);
    g.expect(b, "dgate and dup", &back, dgate_up, tolerance);
    b.expect_start("gradients of weights", &dweights.buffer, dweights_expected, tolerance);
    combined(b, &g, &scales)
}

/// Sums over the choices of a token, with their weights and without.
fn combined(b: &mut Bench, g: &Grouped, scales: &[f32]) -> Result<(), GpuError> {
    let d = 24;
    let x = values(4, TOKENS * EXPERTS.used * d);
    let mut sums = [(); 2].map(|()| vec![0.0; TOKENS * d]);
    for choice in 0..TOKENS * EXPERTS.used {
        let weighted = g.routing.weights[choice] * f64::from(scales[g.routing.experts[choice]]);
        for i in 0..d {
            let (at, x) = (choice / EXPERTS.used * d + i, f64::from(x[choice * d + i]));
            sums[0][at] += weighted * x;
            sums[1][at] += x;
        }
    }
    let x = b.input(d, &g.rows(d, |choice| wide(&x[choice * d..][..d])))?;
    let scales = b.input(EXPERTS.count, scales)?;
    let (forward, backward) = (b.output(d, TOKENS)?, b.output(d, TOKENS)?);
    b.run(|rec| {
        combine::forward(rec, forward.view(), x.rows(), scales.rows(), &g.groups, TOKENS);
        combine::backward(rec, backward.view(), x.rows(), &g.groups, TOKENS);
    })?;
    let [weighted, plain] = sums;
    b.expect("weighted sums of experts", &forward, weighted, F32);
    b.expect("sums of experts", &backward, plain, F32);
    Ok(())
}

/// Biases of experts: of each row, summed over the choices of a token, and their part of the gradients of the choices' weights.
pub fn biases(b: &mut Bench) -> Result<(), GpuError> {
    let (g, d, choices) = (Grouped::new(b, TOKENS)?, 36, TOKENS * EXPERTS.used);
    let (held, scales) = (values(1, EXPERTS.count * d), values(5, EXPERTS.count));
    let (x, y, dy) = (values(2, choices * d), values(3, TOKENS * d), values(4, TOKENS * d));
    let before = values(6, choices);
    let bias = |choice: usize| wide(&held[g.routing.experts[choice] * d..][..d]);
    let scale = |choice: usize| f64::from(scales[g.routing.experts[choice]]);
    let each = |choice: usize| plus(&wide(&x[choice * d..][..d]), 1.0, &bias(choice));
    let (mut summed, mut dweights) = (wide(&y), wide(&before));
    for (choice, dweight) in dweights.iter_mut().enumerate() {
        let token = choice / EXPERTS.used;
        let own = bias(choice);
        for i in 0..d {
            summed[token * d + i] += g.routing.weights[choice] * scale(choice) * own[i];
            *dweight += scale(choice) * f64::from(dy[token * d + i]) * own[i];
        }
    }
    let rows = b.in_out(d, &g.rows(d, |choice| wide(&x[choice * d..][..d])))?;
    let (to, dy) = (b.in_out(d, &y)?, b.input(d, &dy)?);
    let scales = b.input(EXPERTS.count, &scales)?;
    let found = Rows { buffer: b.gpu.upload("case", &before)?, stride: choices, start: 0 };
    let biases = Biases::new(b.gpu.upload("case", &held)?, d);
    b.run(|rec| {
        biases.add(rec, rows.rows(), &g.groups, TOKENS);
        biases.add_summed(rec, to.rows(), scales.rows(), &g.groups, TOKENS);
        biases.backward(rec, &found, [dy.rows(), scales.rows()], &g.groups, TOKENS);
    })?;
    let expected = g.of_choices(|_, choice| each(choice));
    g.expect(b, "rows", &rows, expected, F32);
    b.expect("sums of tokens", &to, summed, F32);
    b.expect_start("gradients of weights", &found.buffer, dweights, F32);
    Ok(())
}

/// Products of a few tokens without groups, for each choice.
pub fn short_products(b: &mut Bench) -> Result<(), GpuError> {
    let (tokens, n, ty) = (3, 36, GgmlType::Q4_K);
    let (g, k) = (Grouped::new(b, tokens)?, columns(ty));
    let (w, truth) = weight(b, ty, n, k)?;
    let x = values(1, tokens * k);
    let one = |choice: usize| {
        let x = wide(&x[choice / EXPERTS.used * k..][..k]);
        reference::linear::forward(&x, &truth[g.routing.experts[choice] * n * k..][..n * k], k)
    };
    let expected = (0..g.tokens * EXPERTS.used).flat_map(one).collect();
    let (x, y) = (b.input_view(k, &x)?, b.output_view(n, tokens * EXPERTS.used)?);
    b.run(|rec| matvec::each(rec, y.view(), Source::Tokens(x.view()), &w, None, &g.groups, tokens))?;
    b.expect("y of each choice", &y, expected, F32);
    Ok(())
}
