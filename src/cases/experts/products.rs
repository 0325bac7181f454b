//! Products of grouped rows with the matrices of experts.

use super::super::bench::Bench;
use super::super::block::Block;
use super::super::case::{Case, Needs, Once};
use super::super::inputs::{values, wide, widths};
use super::super::product::columns;
use super::{Grouped, OF_SELFTEST, experts, source, weight};
use crate::base::formats::GgmlType;
use crate::gpu::{GpuError, Recorder};
use crate::ops::Param;
use crate::ops::linear::cuda::grouped::{self as in_cuda, Input};
use crate::ops::linear::cuda::{Panels, product_bytes};
use crate::ops::linear::grouped::{self as linear, Columns, ExpertWeight, LowRank, Source};
use crate::ops::linear::grouped_coop16 as on_matrices;
use crate::ops::pack::{Packed, grouped as pack};
use crate::reference::linear as reference;

pub const CASES: [Case; 2] = [
    Case {
        op: "linear",
        name: "products of experts",
        needs: Needs::Any,
        variants: super::super::PRODUCTS,
        shapes: &Once(of_formats),
    },
    Case {
        op: "linear",
        name: "products of experts in CUDA",
        needs: Needs::Cuda,
        variants: super::super::CUDA,
        shapes: &Once(long),
    },
];

/// A product of grouped or gathered rows, forward or backward.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    ty: GgmlType,
    /// Experts, experts per token and tokens.
    experts: [usize; 3],
    k: usize,
    n: usize,
    /// Rank of the adapters; 0 without.
    rank: usize,
    /// Whether the weights lie in tiles of two experts.
    tiled: bool,
    /// Whether the rows are those of the tokens.
    gathered: bool,
    scale: f32,
    backward: bool,
    /// Whether the kernels are those of CUDA.
    in_cuda: bool,
}

/// Shapes of a format, forward and backward: all of those formats that experts have, and one of the others.
pub fn of_format(ty: GgmlType, in_cuda: bool) -> Vec<Shape> {
    let [small, middle, large] = widths(ty);
    let shape = |experts, k, n, rank| Shape {
        ty,
        experts,
        k,
        n,
        rank,
        tiled: false,
        gathered: true,
        scale: 1.0,
        backward: false,
        in_cuda,
    };
    let all = [
        shape([4, 2, 1], small, 68, 0),
        Shape { tiled: true, scale: 0.37, ..shape([5, 2, 90], large, 132, 16) },
        Shape { tiled: true, gathered: false, scale: -1.5, ..shape([3, 1, 150], middle, 200, 32) },
        Shape { gathered: false, ..shape([7, 3, 70], middle, 64, 0) },
        Shape { scale: 0.5, ..shape([5, 2, 700], middle, 264, 16) },
    ];
    let own = if matches!(ty, GgmlType::Q4_K | GgmlType::Q5_0) { &all[..] } else { &all[1..2] };
    own.iter().flat_map(|shape| [*shape, Shape { backward: true, ..*shape }]).collect()
}

/// Products of gathered tokens and of grouped rows, in formats that experts have.
fn of_formats(b: &mut Bench) -> Result<(), GpuError> {
    for ty in [GgmlType::Q4_K, GgmlType::Q5_0, GgmlType::Q6_K, GgmlType::Q8_0] {
        both_ways(b, ty, 68, false)?;
    }
    Ok(())
}

/// Products with panels of two experts at a time, and with more columns than one tile has.
fn long(b: &mut Bench) -> Result<(), GpuError> {
    both_ways(b, GgmlType::Q4_K, 200, true)
}

fn both_ways(b: &mut Bench, ty: GgmlType, n: usize, in_cuda: bool) -> Result<(), GpuError> {
    let (k, experts) = (columns(ty), OF_SELFTEST);
    let rank = 16;
    let (tiled, gathered, scale, backward) = (false, true, 0.5, false);
    let forward = Shape { ty, experts, k, n, rank, tiled, gathered, scale, backward, in_cuda };
    product(b, &forward)?;
    product(b, &Shape { gathered: false, scale: 1.0, backward: true, ..forward })
}

/// Columns from which on a second product takes its results: more than one tile.
const REST: usize = 128;

/// Operands of a product.
struct Given {
    g: Grouped,
    w: ExpertWeight,
    x: Block,
    /// `z` or `u`: zero in padding, as in models.
    z: Block,
    /// `B` or `A` of every expert, with the row of an expert at which it begins.
    matrix: Param,
    first_row: usize,
}

impl Shape {
    /// Inputs and outputs.
    fn sizes(&self) -> [usize; 2] {
        if self.backward { [self.n, self.k] } else { [self.k, self.n] }
    }

    fn thin(&self) -> usize {
        if self.rank == 0 { 16 } else { self.rank }
    }

    fn lora_scale(&self) -> f32 {
        if self.backward { 1.0 } else { 0.75 }
    }

    /// Operands on the device, and the expected rows that hold a choice.
    fn given(&self, b: &Bench, before: &[f32], g: Grouped) -> Result<(Given, Vec<f64>), GpuError> {
        let &Shape { experts: [count, used, tokens], k, n, rank, gathered, backward, .. } = self;
        let ([input, output], r) = (self.sizes(), self.thin());
        let (w, truth) = weight(b, self.ty, [count, n, k], self.tiled)?;
        // Rows of different size, none with a largest value in [½, 1).
        let size = |i: usize| if (i / input).is_multiple_of(2) { 0.25 } else { 2.0 };
        let height = if gathered { tokens } else { g.rows.len() };
        let x: Vec<f32> = values(1, height * input).iter().enumerate().map(|(i, x)| size(i) * x).collect();
        let z = g.rows(r, |choice| wide(&values(100 + choice as u64, r)));
        // B may hold other rows of every expert, before and after those that are used.
        let (first_row, held_rows) = if backward { (0, output) } else { (8, output + 12) };
        let matrix = values(3, count * r * held_rows);
        let expected = g.of_choices(|row, choice| {
            let e = g.routing.experts[choice];
            let from = if gathered { choice / used } else { row };
            let (x, w) = (wide(&x[from * input..][..input]), &truth[e * n * k..][..n * k]);
            let own = wide(&matrix[(e * held_rows + first_row) * r..][..r * output]);
            let z = wide(&z[row * r..][..r]);
            let (product, term) = match backward {
                true => (reference::backward(&x, w, k), reference::backward(&z, &own, output)),
                false => (reference::forward(&x, w, k), reference::forward(&z, &own, r)),
            };
            let terms = if rank > 0 { f64::from(self.lora_scale()) } else { 0.0 };
            let before = before[row * output..][..output]
                .iter()
                .map(|x| f64::from(u8::from(backward)) * f64::from(*x));
            let sums = product.iter().zip(term).map(|(y, t)| f64::from(self.scale) * y + terms * t);
            sums.zip(before).map(|(y, before)| y + before).collect()
        });
        let (x, z) = (b.input_within((4, 8), input, &x)?, b.input(r, &z)?);
        let matrix = b.param(if backward { output } else { r }, &matrix)?;
        Ok((Given { g, w, x, z, matrix, first_row }, expected))
    }
}

/// `y = scale·x·W_eᵀ + 0.75·z·B_eᵀ`, or `dx += scale·dy·W_e + u·A_e`, and the columns behind the first 128 once more.
///
/// # Errors
/// The device's error.
pub fn product(b: &mut Bench, shape: &Shape) -> Result<(), GpuError> {
    let &Shape { experts: [count, used, tokens], .. } = shape;
    let [_, output] = shape.sizes();
    let g = Grouped::new(b, experts(count, used), tokens)?;
    let before = values(4, g.rows.len() * output);
    let y = b.in_out_within((8, 4), output, &before)?;
    let rest = output.saturating_sub(REST);
    let before_rest: Vec<f32> =
        before.chunks(output).flat_map(|row| &row[output - rest..]).copied().collect();
    let y_rest = (rest > 0).then(|| b.in_out_within((4, 8), rest, &before_rest)).transpose()?;
    let (given, expected) = shape.given(b, &before, g)?;
    let to = || {
        let rest = y_rest.as_ref().map(|rest| Columns { y: rest.view(), first: REST });
        std::iter::once(Columns::all(y.view())).chain(rest)
    };
    match b.gpu.kernels().reads_tiles() {
        true => of_tiles(b, shape, &given, to)?,
        false => b.run(|rec| to().for_each(|to| of_rows(rec, shape, &given, to)))?,
    }
    let tolerance = b.operands();
    if let Some(y_rest) = &y_rest {
        let rest = expected.chunks(output).flat_map(|row| &row[REST..]).copied().collect();
        given.g.expect(b, &format!("{shape:?}, rest"), y_rest, rest, tolerance);
    }
    given.g.expect(b, &format!("{shape:?}"), &y, expected, tolerance);
    Ok(())
}

fn of_rows(rec: &mut Recorder, shape: &Shape, given: &Given, to: Columns) {
    let &Shape { experts: [.., tokens], rank, scale, gathered, backward, .. } = shape;
    let Given { g, w, x, z, matrix, first_row } = given;
    let (source, z) = (source(x, gathered), z.view());
    let term = LowRank { z, matrix, first_row: *first_row, rank, scale: shape.lora_scale() };
    let term = (rank > 0).then_some(&term);
    match backward {
        true => linear::backward(rec, to, source, w, scale, term, &g.groups, tokens, true),
        false => linear::forward(rec, to, source, w, scale, term, &g.groups, tokens),
    }
}

fn of_tiles<'a, T: Iterator<Item = Columns<'a>>>(
    b: &Bench,
    shape: &Shape,
    given: &Given,
    to: impl Fn() -> T,
) -> Result<(), GpuError> {
    let (&Shape { experts: [.., tokens], gathered, .. }, [input, _]) = (shape, shape.sizes());
    let Given { g, w, x, z, .. } = given;
    let (groups, r) = (&g.groups, shape.thin());
    let packed = Packed::new(b.gpu, "case", g.rows.len(), input)?;
    let thin = Packed::new(b.gpu, "case", g.rows.len(), r)?;
    let of_tokens = Packed::new(b.gpu, "case", tokens, input)?;
    let bytes = 2 * product_bytes(w.rows, w.weight.cols, 32);
    let panels = shape.in_cuda.then(|| Panels::new(b.gpu, bytes)).transpose()?;
    b.run(|rec| {
        pack::pack(rec, &packed, source(x, gathered), input, groups, tokens);
        pack::pack_alike(rec, &thin, Source::Rows(z.view()), r, groups, tokens, &packed);
        let mut x_tiles = Input { tiles: &packed, first_column: 0, of_tokens: false };
        for to in to() {
            one_of_tiles(rec, shape, given, to, x_tiles, &thin, panels.as_ref());
            // Products in CUDA take the columns behind the first 128 from the tokens' rows.
            if gathered && shape.in_cuda {
                of_tokens.pack(rec, x.view(), input, tokens);
                x_tiles = Input { tiles: &of_tokens, first_column: 0, of_tokens: true };
            }
        }
    })
}

/// A product of tiles on matrices of 16×16, or in CUDA with panels of two experts at a time; added, where it is backward.
fn one_of_tiles(
    rec: &mut Recorder,
    shape: &Shape,
    given: &Given,
    to: Columns,
    x: Input,
    z: &Packed,
    panels: Option<&Panels>,
) {
    let &Shape { experts: [.., tokens], rank, scale, backward, .. } = shape;
    let (Given { w, matrix, first_row, .. }, groups) = (given, &given.g.groups);
    let term = on_matrices::LowRank { z, matrix, first_row: *first_row, rank, scale: shape.lora_scale() };
    let term = (rank > 0).then_some(&term);
    let dy = (x.tiles, x.first_column);
    match (backward, panels) {
        (true, None) => on_matrices::backward(rec, to, dy, w, scale, term, groups, tokens, true),
        (false, None) => on_matrices::forward(rec, to, x.tiles, w, scale, term, groups, tokens),
        (true, Some(panels)) => in_cuda::backward(rec, panels, to, x, w, scale, term, groups, tokens, true),
        (false, Some(panels)) => in_cuda::forward(rec, panels, to, x, w, scale, term, groups, tokens),
    }
}
