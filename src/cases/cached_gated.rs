//! The gated unit of a few rows, whose gate and up may lack the adapter's term.

use super::adapter::Adapter;
use super::bench::Bench;
use super::case::{Case, Needs, Shapes};
use super::inputs::{part, values, wide};
use super::tolerance::SUMS;
use crate::base::config::Activation;
use crate::gpu::GpuError;
use crate::ops::{Unfinished, cached_gated};
use crate::reference::gated;

pub const CASES: [Case; 1] = [Case {
    op: "cached_gated",
    name: "gates with adapters",
    needs: Needs::Any,
    variants: super::F32,
    shapes: &Shapes {
        small: &[(100, 3, 8)],
        more: &[(4, 1, 0), (100, 3, 4), (516, 2, 12), (64, 9, 32)],
        check: gates,
    },
}];

/// Gate and up in one row of products with both adapters, and a gate with an adapter against rows of another buffer: width, rows, rank.
fn gates(b: &mut Bench, &shape: &(usize, usize, usize)) -> Result<(), GpuError> {
    for activation in Activation::ALL {
        together(b, shape, activation)?;
        apart(b, shape, activation)?;
    }
    Ok(())
}

fn together(
    b: &mut Bench,
    shape @ (width, rows, rank): (usize, usize, usize),
    activation: Activation,
) -> Result<(), GpuError> {
    let products = values(1, rows * 2 * width);
    let adapter = Adapter::new(b, rank, &[width, width], rows)?;
    let of = |i: usize| adapter.added(&part(&wide(&products), 2 * width, i * width, width), i);
    let expected = gated::forward(&of(0), &of(1), activation);
    let products = b.input(2 * width + adapter.width(), &adapter.beside(&products, 2 * width))?;
    let y = b.output(width, rows)?;
    b.run(|rec| {
        let gate = Unfinished::of(products.rows(), adapter.up(2 * width));
        cached_gated::forward(rec, y.rows(), &gate, products.rows().from(width), activation, rows, None);
    })?;
    b.expect(format!("{shape:?} {activation:?}"), &y, expected, SUMS);
    Ok(())
}

fn apart(
    b: &mut Bench,
    shape @ (width, rows, rank): (usize, usize, usize),
    activation: Activation,
) -> Result<(), GpuError> {
    let (gate, inputs) = (values(2, rows * width), values(3, rows * 3 * width));
    let adapter = Adapter::new(b, rank, &[width], rows)?;
    let middle = part(&wide(&inputs), 3 * width, width, width);
    let expected = gated::forward(&adapter.added(&wide(&gate), 0), &middle, activation);
    let gate = b.input(width + rank, &adapter.beside(&gate, width))?;
    let (inputs, y) = (b.input(3 * width, &inputs)?, b.output(width, rows)?);
    b.run(|rec| {
        let gate = Unfinished::of(gate.rows(), adapter.up(width));
        cached_gated::forward(rec, y.rows(), &gate, inputs.rows().from(width), activation, rows, None);
    })?;
    b.expect(format!("{shape:?} {activation:?}, per-layer input"), &y, expected, SUMS);
    Ok(())
}
