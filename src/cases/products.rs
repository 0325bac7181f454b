//! Products with frozen weights of every format and with the adapter's matrices: in rows of f32, on matrices of 16×16 and in CUDA.

use super::bench::Bench;
use super::block::Block;
use super::case::{Case, Needs, Once, Shapes};
use super::inputs::{beside, plus, scaled, values, wide};
use super::product::{Backward, Forward, LORA_SCALE, ROWS, Shape, columns};
use super::tiles::{block_room, unpacked};
use crate::base::formats::GgmlType;
use crate::gpu::GpuError;
use crate::ops::linear::coop16::{self, LowRank as TiledLowRank, Product};
use crate::ops::linear::cuda::{self, Panels, product_bytes};
use crate::ops::linear::tiled::{self, LowRank};
use crate::ops::pack::{FACTOR_COLUMNS, Packed};
use crate::reference::linear;

pub const CASES: [Case; 4] = [
    Case {
        op: "linear",
        name: "products",
        needs: Needs::Any,
        variants: super::PRODUCTS,
        shapes: &Once(q4_k),
    },
    Case {
        op: "linear",
        name: "products in every format",
        needs: Needs::Any,
        variants: super::PRODUCTS,
        shapes: &Once(every_format),
    },
    Case {
        op: "linear",
        name: "long products in CUDA",
        needs: Needs::Cuda,
        variants: super::CUDA,
        shapes: &Once(long),
    },
    Case {
        op: "linear",
        name: "adapter matrices as weights",
        needs: Needs::Rows,
        variants: super::MATRICES_IN_ROWS,
        shapes: &Shapes { small: &[], more: &[(1, 4, 20), (65, 12, 252), (130, 16, 68)], check: adapter },
    },
];

/// Columns of other matrices beside an adapter's thin operand, and rows before its `A`.
const OTHERS: usize = 16;

/// Rows and columns of a matrix whose sums have one step, forward and backward: no device splits its products.
const SHORT: [usize; 2] = [12, 12];

/// Products with weights in Q4_K, and short ones.
fn q4_k(b: &mut Bench) -> Result<(), GpuError> {
    both_ways(b, GgmlType::Q4_K, [ROWS, columns(GgmlType::Q4_K)])?;
    both_ways(b, GgmlType::F32, SHORT)
}

fn every_format(b: &mut Bench) -> Result<(), GpuError> {
    GgmlType::SUPPORTED.into_iter().try_for_each(|ty| both_ways(b, ty, [ROWS, columns(ty)]))
}

fn both_ways(b: &mut Bench, ty: GgmlType, shape: [usize; 2]) -> Result<(), GpuError> {
    let shape = Shape::of_selftest(ty, shape, if b.gpu.kernels().reads_tiles() { 16 } else { 12 });
    forward(b, &shape)?;
    backward(b, &Shape { scale: -1.5, accumulate: true, ..shape })
}

/// Forward with and without an adapter, backward added to what is there.
fn long(b: &mut Bench) -> Result<(), GpuError> {
    let shape = Shape::of_selftest(GgmlType::Q4_K, [ROWS, columns(GgmlType::Q4_K)], 16);
    let shape = Shape { tokens: 300, accumulate: true, ..shape };
    forward_in_cuda(b, &shape)?;
    backward_in_cuda(b, &shape)
}

/// `y = scale·x·Wᵀ + 0.75·z·Bᵀ`, by the kernels of the device but those of CUDA.
///
/// # Errors
/// The device's error, as of the others.
pub fn forward(b: &mut Bench, shape: &Shape) -> Result<(), GpuError> {
    let (tolerance, level) = (b.operands(), shape.level(b));
    let given = Forward::new(b, shape)?;
    let y = match b.gpu.kernels().reads_tiles() {
        true => forward_of_tiles(b, shape, &given)?,
        false => forward_of_rows(b, shape, &given)?,
    };
    if b.compares() {
        b.expect_leveled(format!("{shape:?}, x·Wᵀ"), &y, &given.y, tolerance, level);
    }
    Ok(())
}

fn forward_of_rows(b: &Bench, shape: &Shape, given: &Forward) -> Result<Block, GpuError> {
    let &Shape { tokens, k, n, rank, scale, margins: [of_x, of_y], .. } = shape;
    let (x, y) = (b.input_within(of_x, k, &given.x)?, b.output_within(of_y, n, tokens)?);
    let (z, up) = (b.input_within((4, 8), shape.thin(), &given.z)?, b.param(shape.thin(), &given.up)?);
    b.run(|rec| {
        let term = LowRank { z: z.view(), matrix: &up, rank, scale: LORA_SCALE };
        let term = (rank > 0).then_some(&term);
        tiled::forward(rec, y.view(), x.view(), &given.weight, scale, term, tokens);
    })?;
    Ok(y)
}

/// Rows of f32 among columns of NaN, as tiles.
pub fn packed(b: &Bench, x: &[f32], width: usize) -> Result<Packed, GpuError> {
    let (rows, height) = (b.input_within((4, 8), width, x)?, x.len() / width);
    let packed = Packed::new(b.gpu, "case", height, width)?;
    b.untimed(|rec| packed.pack(rec, rows.view(), width, height))?;
    Ok(packed)
}

/// A thin operand as tiles, behind columns of another matrix, with the factors of `like`.
fn thin(b: &Bench, shape: &Shape, x: &[f32], others: bool, like: &Packed) -> Result<Packed, GpuError> {
    let (own, tokens) = (shape.thin(), shape.tokens);
    let (before, width) = if others { (OTHERS, OTHERS + own) } else { (0, own) };
    let all = beside(&values(9, tokens * before), before, x, own);
    let (rows, packed) = (b.input_within((4, 8), width, &all)?, Packed::new(b.gpu, "case", tokens, width)?);
    b.untimed(|rec| packed.pack_alike(rec, rows.view(), width, tokens, like))?;
    Ok(packed)
}

fn forward_of_tiles(b: &Bench, shape: &Shape, given: &Forward) -> Result<Block, GpuError> {
    let &Shape { tokens, n, rank, scale, .. } = shape;
    let (x, y) = (packed(b, &given.x, shape.k)?, b.output_within((8, 4), n, tokens)?);
    let (z, up) = (thin(b, shape, &given.z, true, &x)?, b.param(shape.thin(), &given.up)?);
    b.run(|rec| {
        let term =
            TiledLowRank { z: &z, z_offset: OTHERS, matrix: &up, first_row: 0, rank, scale: LORA_SCALE };
        let term = (rank > 0).then_some(&term);
        coop16::forward(rec, y.view(), &x, &given.weight, scale, term, tokens);
    })?;
    Ok(y)
}

/// `dx = scale·dy·W + u·A`, written or added, by the kernels of the device but those of CUDA.
///
/// # Errors
/// As of [`forward`].
pub fn backward(b: &mut Bench, shape: &Shape) -> Result<(), GpuError> {
    let (tolerance, level) = (b.operands(), shape.level(b));
    let given = Backward::new(b, shape)?;
    let dx = match b.gpu.kernels().reads_tiles() {
        true => backward_of_tiles(b, shape, &given)?,
        false => backward_of_rows(b, shape, &given)?,
    };
    if b.compares() {
        b.expect_leveled(format!("{shape:?}, dy·W"), &dx, &given.dx, tolerance, level);
    }
    Ok(())
}

fn backward_of_rows(b: &Bench, shape: &Shape, given: &Backward) -> Result<Block, GpuError> {
    let &Shape { tokens, k, n, rank, scale, margins: [of_x, of_y], accumulate, .. } = shape;
    let dy = b.input_within(of_y, n, &given.dy)?;
    let dx = match accumulate {
        true => b.in_out_within(of_x, k, &given.before)?,
        false => b.output_within(of_x, k, tokens)?,
    };
    let (u, down) = (b.input_within((4, 8), shape.thin(), &given.u)?, b.param(k, &given.down)?);
    b.run(|rec| {
        // Only forward applies the factor of the term: u has it already.
        let term = LowRank { z: u.view(), matrix: &down, rank, scale: LORA_SCALE };
        let term = (rank > 0).then_some(&term);
        tiled::backward(rec, dx.view(), dy.view(), &given.weight, scale, term, tokens, accumulate);
    })?;
    Ok(dx)
}

/// `dx` among columns that stay, and `A` behind the rows of another matrix.
fn of_backward(b: &Bench, shape: &Shape, given: &Backward) -> Result<(Block, crate::ops::Param), GpuError> {
    let dx = match shape.accumulate {
        true => b.in_out_within((8, 4), shape.k, &given.before)?,
        false => b.output_within((8, 4), shape.k, shape.tokens)?,
    };
    Ok((dx, b.param(shape.k, &[&values(9, OTHERS * shape.k), &given.down[..]].concat())?))
}

fn backward_of_tiles(b: &Bench, shape: &Shape, given: &Backward) -> Result<Block, GpuError> {
    let &Shape { tokens, n, rank, scale, accumulate, .. } = shape;
    let (dy, (dx, down)) = (packed(b, &given.dy, n)?, of_backward(b, shape, given)?);
    let u = thin(b, shape, &given.u, false, &dy)?;
    b.run(|rec| {
        let term = TiledLowRank { z: &u, z_offset: 0, matrix: &down, first_row: OTHERS, rank, scale: 1.0 };
        let term = (rank > 0).then_some(&term);
        coop16::backward(rec, dx.view(), &dy, &given.weight, scale, term, tokens, accumulate);
    })?;
    Ok(dx)
}

/// Room for the panels of the whole matrix, and for 128 of its rows only.
fn panels(b: &Bench, shape: &Shape) -> Result<[Panels; 2], GpuError> {
    Ok([Panels::new(b.gpu, product_bytes(shape.n, shape.k, 96))?, room_for(b, shape, 128)?])
}

/// Room for the panels of some rows of the matrix, and those of the adapter.
fn room_for(b: &Bench, &Shape { k, n, .. }: &Shape, rows: usize) -> Result<Panels, GpuError> {
    Panels::new(b.gpu, product_bytes(rows, k, 0) + product_bytes(n.max(k), 96, 0))
}

/// `y = scale·x·Wᵀ + 0.75·z·Bᵀ` in CUDA: in f32, in f16 blocks, in those in parts, and in f32 in parts without the adapter.
///
/// # Errors
/// As of [`forward`].
pub fn forward_in_cuda(b: &mut Bench, shape: &Shape) -> Result<(), GpuError> {
    let (&Shape { tokens, n, rank, scale, .. }, level) = (shape, shape.level(b));
    let given = Forward::new(b, shape)?;
    let (x, [y, plain]) =
        (packed(b, &given.x, shape.k)?, [(); 2].map(|()| b.output_within((8, 4), n, tokens)));
    let (y, plain) = (y?, plain?);
    let (z, up) = (thin(b, shape, &given.z, true, &x)?, b.param(shape.thin(), &given.up)?);
    let ([whole, parts], halves) = (panels(b, shape)?, block_room(b, tokens, n)?);
    let (blocks, in_parts) = (room_for(b, shape, FACTOR_COLUMNS)?, block_room(b, tokens, n)?);
    b.run(|rec| {
        let term =
            TiledLowRank { z: &z, z_offset: OTHERS, matrix: &up, first_row: 0, rank, scale: LORA_SCALE };
        let lora = (rank > 0).then_some(&term);
        let alone = Product { scale, ..Product::new(plain.view(), &x, &given.weight, tokens) };
        let product = Product { y: y.view(), lora, ..alone };
        cuda::forward(rec, &whole, &product, None);
        cuda::forward(rec, &whole, &product, Some(&halves));
        cuda::forward(rec, &blocks, &product, Some(&in_parts));
        cuda::forward(rec, &parts, &alone, None);
    })?;
    let (tolerance, halves) = (b.operands(), unpacked(b, &halves, n, tokens)?);
    let in_parts = unpacked(b, &in_parts, n, tokens)?;
    b.expect_leveled(format!("{shape:?}, x·Wᵀ + z·Bᵀ"), &y, &given.y, tolerance, &level);
    b.expect_leveled(format!("{shape:?}, in f16"), &halves, &given.y, tolerance, &level);
    b.expect_leveled(format!("{shape:?}, in f16 in parts"), &in_parts, &given.y, tolerance, &level);
    b.expect_leveled(format!("{shape:?}, x·Wᵀ"), &plain, &given.product, tolerance, level);
    Ok(())
}

/// `dx = scale·dy·W + u·A` in CUDA, written or added, then in parts and without the adapter once more added; and a sum of two.
///
/// # Errors
/// As of [`forward`].
pub fn backward_in_cuda(b: &mut Bench, shape: &Shape) -> Result<(), GpuError> {
    let (&Shape { tokens, n, rank, scale, accumulate, .. }, level) = (shape, shape.level(b));
    let given = Backward::new(b, shape)?;
    let (dy, (dx, down)) = (packed(b, &given.dy, n)?, of_backward(b, shape, &given)?);
    let (u, [whole, parts]) = (thin(b, shape, &given.u, false, &dy)?, panels(b, shape)?);
    b.run(|rec| {
        let term = TiledLowRank { z: &u, z_offset: 0, matrix: &down, first_row: OTHERS, rank, scale: 1.0 };
        let lora = (rank > 0).then_some(&term);
        let alone = Product { scale, ..Product::new(dx.view(), &dy, &given.weight, tokens) };
        cuda::backward(rec, &whole, &Product { lora, accumulate, ..alone });
        cuda::backward(rec, &parts, &Product { accumulate: true, ..alone });
    })?;
    let (tolerance, expected) = (b.operands(), plus(&given.dx, 1.0, &given.product));
    b.expect_leveled(format!("{shape:?}, dy·W, twice"), &dx, &expected, tolerance, level);
    sum_in_cuda(b, shape, &given)
}

/// `dx = scale·dy·W + scale·dy′·W` in f16 blocks. In every other row the first gradient is a sixty-fourth of the second one, in the others the
/// second one of the first.
fn sum_in_cuda(b: &mut Bench, shape: &Shape, given: &Backward) -> Result<(), GpuError> {
    let &Shape { tokens, k, n, scale, .. } = shape;
    let small = |odd: usize| move |(i, dy): (usize, &f32)| if i / n % 2 == odd { dy / 64.0 } else { *dy };
    let [even, odd] = [0, 1].map(|odd| given.dy.iter().enumerate().map(small(odd)).collect::<Vec<f32>>());
    let (even, odd) = (packed(b, &even, n)?, packed(b, &odd, n)?);
    let (halves, alike) = (block_room(b, tokens, k)?, block_room(b, tokens, k)?);
    let panels = Panels::new(b.gpu, 2 * product_bytes(n, k, 0))?;
    let nowhere = b.output(k, tokens)?;
    b.run(|rec| {
        let of = |dy| Product { scale, ..Product::new(nowhere.view(), dy, &given.weight, tokens) };
        cuda::backward_in_halves(rec, &panels, &[of(&even), of(&odd)], &halves);
        cuda::backward_in_halves(rec, &panels, &[of(&even), of(&even)], &alike);
    })?;
    let level = shape.level(b);
    // Even rows of the first gradient are small.
    let of_row = move |row: usize| if row.is_multiple_of(2) { 64.0 * level(row) } else { level(row) };
    let value = |(i, y): (usize, &f64)| if (i / k).is_multiple_of(2) { y / 32.0 } else { 2.0 * y };
    let twice: Vec<f64> = given.product.iter().enumerate().map(value).collect();
    let alike = unpacked(b, &alike, k, tokens)?;
    b.expect_leveled(format!("{shape:?}, of alike in f16"), &alike, &twice, b.operands(), of_row);
    let (halves, expected) = (unpacked(b, &halves, k, tokens)?, scaled(1.0 + 1.0 / 64.0, &given.product));
    b.expect_leveled(format!("{shape:?}, in f16"), &halves, &expected, b.operands(), shape.level(b));
    Ok(())
}

/// The adapter's matrices and rows of activations as weights: `z = x·Aᵀ`, `u = 0.5·dy·B`; tokens, rank, width.
fn adapter(b: &mut Bench, shape: &(usize, usize, usize)) -> Result<(), GpuError> {
    let &(tokens, rank, n) = shape;
    let (x, a, dy, up) =
        (values(1, tokens * n), values(2, rank * n), values(3, tokens * n), values(4, n * rank));
    let z_expected = linear::forward(&wide(&x), &wide(&a), n);
    let u_expected = scaled(0.5, &linear::backward(&wide(&dy), &wide(&up), rank));
    let (x, dy) = (b.input(n, &x)?, b.input(n, &dy)?);
    let (a, up) = (b.param(n, &a)?, b.param(rank, &up)?);
    let margins = (rank, rank);
    let (z, u) = (b.output_within(margins, rank, tokens)?, b.output_within(margins, rank, tokens)?);
    b.run(|rec| {
        tiled::forward(rec, z.view(), x.view(), &a.as_weight(), 1.0, None, tokens);
        tiled::backward(rec, u.view(), dy.view(), &up.as_weight(), 0.5, None, tokens, false);
    })?;
    let tolerance = b.operands();
    b.expect(format!("z {shape:?}"), &z, z_expected, tolerance);
    b.expect(format!("u {shape:?}"), &u, u_expected, tolerance);
    Ok(())
}
