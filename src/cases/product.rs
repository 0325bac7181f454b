//! Products with weights and an adapter's term: shapes, operands and results, for kernels on rows, on tiles and in CUDA.

use super::bench::Bench;
use super::block::Margins;
use super::inputs::{level, plus, rows, scaled, values, wide, widths};
use super::step::Step;
use super::weight;
use crate::base::formats::GgmlType;
use crate::gpu::GpuError;
use crate::ops::Weight;
use crate::reference::linear;

/// Rows of a matrix: an odd number.
pub const ROWS: usize = 71;

/// Columns of a matrix: whole blocks of the format, an odd number of them, more than one step of a sum.
pub fn columns(ty: GgmlType) -> usize {
    match ty.block_len() {
        1 => 100,
        32 => 3 * 32,
        _ => 256,
    }
}

/// Tokens of the self-test: more than a tile of rows.
pub const TOKENS: usize = 67;
/// Factor of the adapter's term, forward.
pub const LORA_SCALE: f32 = 0.75;

/// A product with weights `[N, K]`, forward or backward.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Format of the weights.
    pub ty: GgmlType,
    /// `T`.
    pub tokens: usize,
    /// `K`.
    pub k: usize,
    /// `N`.
    pub n: usize,
    /// Rank of the adapter's term; 0 without one.
    pub rank: usize,
    /// Whether the weights lie in pieces.
    pub tiled: bool,
    /// Factor of the product.
    pub scale: f32,
    /// Margins of `x` and `dx`, and of `y` and `dy`, in rows of f32.
    pub margins: [Margins; 2],
    /// Whether `dx` is added to.
    pub accumulate: bool,
    /// Whether operands in f16 have rows from 2^-40 to 2^40.
    pub spread: bool,
}

impl Shape {
    /// Two margins of 4 columns, and an adapter.
    pub const fn of_selftest(ty: GgmlType, [n, k]: [usize; 2], rank: usize) -> Shape {
        let (margins, tokens) = ([(4, 4); 2], TOKENS);
        Shape { ty, tokens, k, n, rank, tiled: false, scale: 0.5, margins, accumulate: false, spread: false }
    }

    const fn plain(ty: GgmlType, tokens: usize, k: usize, n: usize, rank: usize) -> Shape {
        Shape {
            tokens,
            scale: 1.0,
            margins: [(0, 0); 2],
            spread: true,
            ..Shape::of_selftest(ty, [n, k], rank)
        }
    }

    /// The widest product of a step, without an adapter.
    pub const fn of_step(ty: GgmlType, step: &Step) -> Shape {
        Shape { spread: false, ..Shape::plain(ty, step.tokens, step.width, step.ffn, 0) }
    }

    /// Floating-point operations of the product, one way.
    pub fn operations(&self) -> f64 {
        (2 * self.tokens * self.k * self.n) as f64
    }

    const fn margins(self, of_x: Margins, of_y: Margins) -> Shape {
        Shape { margins: [of_x, of_y], ..self }
    }

    const fn scaled(self, scale: f32) -> Shape {
        Shape { scale, ..self }
    }

    const fn in_pieces(self) -> Shape {
        Shape { tiled: true, ..self }
    }

    /// Columns of the adapter's thin operand, which is there without an adapter, too.
    pub fn thin(&self) -> usize {
        if self.rank == 0 { 16 } else { self.rank }
    }

    fn rows(&self, b: &Bench, seed: u64, width: usize) -> Vec<f32> {
        rows(seed, self.tokens, width, self.is_spread(b))
    }

    fn is_spread(&self, b: &Bench) -> bool {
        self.spread && b.gpu.kernels().half_operands()
    }

    /// Factor of a row's results, with which all rows are of about the same size.
    pub fn level(&self, b: &Bench) -> impl Fn(usize) -> f64 + use<> {
        let spread = self.is_spread(b);
        move |row| if spread { level(row) } else { 1.0 }
    }
}

/// Every second of them is added to, backward.
fn every_second_added<const N: usize>(shapes: [Shape; N]) -> [Shape; N] {
    let mut i = 0;
    shapes.map(|shape| {
        i += 1;
        Shape { accumulate: i % 2 == 0, ..shape }
    })
}

/// Shapes for kernels on rows: one token and several blocks of 64 tokens; `N` below, above and between multiples of 64 and of 4; views.
pub fn of_rows(ty: GgmlType) -> [Shape; 7] {
    let [small, middle, large] = widths(ty);
    let shape = |tokens, k, n, rank| Shape::plain(ty, tokens, k, n, rank);
    every_second_added([
        shape(1, small, 68, 0),
        shape(1, large, 131, 4).in_pieces(),
        shape(7, middle, 200, 4).in_pieces().scaled(0.37).margins((4, 0), (8, 12)),
        shape(65, large, 130, 12).in_pieces().scaled(-1.5).margins((8, 4), (0, 4)),
        shape(130, small, 7, 12).margins((0, 8), (4, 0)),
        shape(65, middle, 4, 0).scaled(0.5).margins((12, 0), (4, 4)),
        shape(7, large, 192, 16).in_pieces(),
    ])
}

/// A head: outputs are no multiple of 4, so that zeros are written to the row's padding.
pub fn head(ty: GgmlType) -> Shape {
    Shape::plain(ty, 7, widths(ty)[1], 1003, 0).in_pieces()
}

/// Shapes for kernels on matrices of 16×16.
pub fn of_tiles(ty: GgmlType) -> [Shape; 5] {
    let [small, middle, large] = widths(ty);
    let shape = |tokens, k, n, rank| Shape::plain(ty, tokens, k, n, rank);
    every_second_added([
        shape(1, small, 68, 0),
        shape(33, large, 131, 16).in_pieces(),
        shape(129, middle, 200, 32).in_pieces().scaled(0.37),
        shape(130, large, 330, 16).scaled(-1.5),
        shape(300, middle, 516, 16),
    ])
}

/// Shapes for CUDA's kernels.
pub fn of_cuda(ty: GgmlType) -> [Shape; 5] {
    let [small, middle, large] = widths(ty);
    let shape = |tokens, k, n, rank| Shape::plain(ty, tokens, k, n, rank);
    every_second_added([
        shape(1, small, 68, 0),
        shape(33, large, 131, 16),
        shape(256, middle, 200, 32),
        shape(257, large, 330, 80),
        shape(515, middle, 516, 16),
    ])
}

/// Long sums with few results, forward and backward, which CUDA's kernels cut into parts.
pub fn of_long_sums() -> [Shape; 2] {
    let shape = |k, n, rank| Shape::plain(GgmlType::Q4_K, 300, k, n, rank);
    [shape(2560, 132, 32), Shape { accumulate: true, ..shape(256, 2560, 0) }]
}

/// Operands and results of `y = scale·x·Wᵀ + 0.75·z·Bᵀ`.
pub struct Forward {
    pub weight: Weight,
    pub x: Vec<f32>,
    pub z: Vec<f32>,
    /// `B` `[N, rank]`.
    pub up: Vec<f32>,
    /// `y` without the adapter's term; empty, as `y` is, if nothing is compared.
    pub product: Vec<f64>,
    pub y: Vec<f64>,
}

impl Forward {
    pub fn new(b: &Bench, shape: &Shape) -> Result<Forward, GpuError> {
        let &Shape { ty, k, n, rank, tiled, scale, .. } = shape;
        let (weight, w) = weight::random(b.gpu, ty, n, k, tiled)?;
        let (x, z) = (shape.rows(b, 1, k), shape.rows(b, 2, shape.thin()));
        let up = values(3, n * shape.thin());
        if !b.compares() {
            return Ok(Forward { weight, x, z, up, product: Vec::new(), y: Vec::new() });
        }
        let product = scaled(scale, &linear::forward(&wide(&x), &w, k));
        let y = match rank {
            0 => product.clone(),
            _ => plus(&product, LORA_SCALE.into(), &linear::forward(&wide(&z), &wide(&up), rank)),
        };
        Ok(Forward { weight, x, z, up, product, y })
    }
}

/// Operands and results of `dx = scale·dy·W + u·A`, written or added.
pub struct Backward {
    pub weight: Weight,
    pub dy: Vec<f32>,
    pub u: Vec<f32>,
    /// `A` `[rank, K]`.
    pub down: Vec<f32>,
    /// `dx` before.
    pub before: Vec<f32>,
    /// `scale·dy·W` alone; empty, as `dx` is, if nothing is compared.
    pub product: Vec<f64>,
    pub dx: Vec<f64>,
}

impl Backward {
    pub fn new(b: &Bench, shape: &Shape) -> Result<Backward, GpuError> {
        let &Shape { ty, k, n, rank, tiled, scale, accumulate, .. } = shape;
        let (weight, w) = weight::random(b.gpu, ty, n, k, tiled)?;
        let (dy, before) = (shape.rows(b, 1, n), shape.rows(b, 2, k));
        let (u, down) = (shape.rows(b, 3, shape.thin()), values(4, shape.thin() * k));
        if !b.compares() {
            return Ok(Backward { weight, dy, u, down, before, product: Vec::new(), dx: Vec::new() });
        }
        let product = scaled(scale, &linear::backward(&wide(&dy), &w, k));
        let mut dx = product.clone();
        if accumulate {
            dx = plus(&dx, 1.0, &wide(&before));
        }
        if rank > 0 {
            dx = plus(&dx, 1.0, &linear::backward(&wide(&u), &wide(&down), k));
        }
        Ok(Backward { weight, dy, u, down, before, product, dx })
    }
}
