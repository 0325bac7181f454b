//! The gated unit of experts, and the combination of their outputs by token.

use super::super::bench::Bench;
use super::super::block::Block;
use super::super::case::{Case, Combined, Needs};
use super::super::inputs::{values, wide};
use super::super::tolerance::PRODUCT;
use super::{Grouped, OF_SELFTEST};
use crate::base::config::{Activation, Experts};
use crate::gpu::GpuError;
use crate::ops::Rows;
use crate::ops::experts::combine;
use crate::ops::gated::{grouped, grouped_coop16 as on_matrices};
use crate::ops::pack::Packed;
use crate::reference::gated;

pub const CASE: Case = Case {
    op: "gated",
    name: "experts, and back to tokens",
    needs: Needs::Any,
    variants: super::super::ROWS_AND_TILES,
    shapes: &Combined {
        small: &[Shape { experts: OF_SELFTEST, f: 36, d: 24, activation: Activation::Gelu }],
        more: combinations,
        check,
    },
};

#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Experts, experts per token and tokens.
    experts: [usize; 3],
    /// Width of the gated unit, and of tokens.
    f: usize,
    d: usize,
    activation: Activation,
}

fn combinations() -> Vec<Shape> {
    const SIZES: [([usize; 3], usize, usize); 3] =
        [([4, 2, 1], 4, 8), ([8, 2, 70], 36, 24), ([128, 8, 90], 96, 20)];
    let of = |activation| SIZES.map(|(experts, f, d)| Shape { experts, f, d, activation });
    Activation::ALL.into_iter().flat_map(of).collect()
}

/// Gate and up, the gradient of `y` and the scales of the experts.
struct Given {
    g: Grouped,
    shape: Shape,
    gate_up: Vec<f32>,
    dy: Vec<f32>,
    scales: Vec<f32>,
}

impl Given {
    fn scale(&self, choice: usize) -> f64 {
        f64::from(self.scales[self.g.routing.experts[choice]])
    }

    fn factor(&self, choice: usize) -> f64 {
        self.g.routing.weights[choice] * self.scale(choice)
    }

    fn halves(&self, choice: usize) -> (Vec<f64>, Vec<f64>) {
        let f = self.shape.f;
        let mut gate = wide(&self.gate_up[choice * 2 * f..][..2 * f]);
        let up = gate.split_off(f);
        (gate, up)
    }

    fn dy(&self, choice: usize) -> Vec<f64> {
        wide(&self.dy[choice * self.shape.f..][..self.shape.f])
    }

    fn y(&self, choice: usize) -> Vec<f64> {
        let (gate, up) = self.halves(choice);
        gated::forward(&gate, &up, self.shape.activation)
    }

    fn dgate_up(&self, choice: usize) -> Vec<f64> {
        let (gate, up) = self.halves(choice);
        let dy: Vec<f64> = self.dy(choice).iter().map(|dy| self.factor(choice) * dy).collect();
        let (dgate, dup) = gated::backward(&dy, &gate, &up, self.shape.activation);
        [dgate, dup].concat()
    }

    fn dweight(&self, choice: usize) -> f64 {
        let products = self.y(choice).into_iter().zip(self.dy(choice)).map(|(y, dy)| y * dy);
        self.scale(choice) * products.sum::<f64>()
    }
}

/// Gates, the gradients of gates, ups and of the choices' weights, and sums over the choices of a token.
fn check(b: &mut Bench, shape: &Shape) -> Result<(), GpuError> {
    let &Shape { experts: [count, used, tokens], f, .. } = shape;
    let experts = Experts { count, used, width: f, ..Experts::default() };
    let (g, choices) = (Grouped::new(b, experts, tokens)?, tokens * used);
    // Large enough for the bounds of gpt-oss's units.
    let gate_up = values(2, choices * 2 * f).iter().map(|x| 9.0 * x).collect();
    let given = Given { g, shape: *shape, gate_up, dy: values(3, choices * f), scales: values(5, count) };
    let dweights = Rows::new(b.gpu, "case", 1, choices)?;
    let (out, back) = both_ways(b, &given, &dweights)?;
    let (tolerance, g) = (b.operands(), &given.g);
    g.expect_tiles(b, &format!("y {shape:?}"), &out, |choice| given.y(choice), tolerance);
    g.expect_tiles(b, &format!("dgate and dup {shape:?}"), &back, |choice| given.dgate_up(choice), tolerance);
    let expected = (0..choices).map(|choice| given.dweight(choice)).collect();
    let name = format!("gradients of weights {shape:?}");
    b.expect_start(&name, &dweights.buffer, expected, tolerance.around(0.1));
    combined(b, &given)
}

fn both_ways(b: &Bench, given: &Given, dweights: &Rows) -> Result<(Block, Block), GpuError> {
    let Given { g, shape: Shape { f, activation, .. }, gate_up, dy, scales } = given;
    let (f, activation, rows, groups) = (*f, *activation, g.rows.len(), &g.groups);
    let of = |x: &[f32], width: usize, choice: usize| wide(&x[choice * width..][..width]);
    let inputs = b.input(2 * f, &g.rows(2 * f, |choice| of(gate_up, 2 * f, choice)))?;
    let (dy, scales) = (b.input(f, &g.rows(f, |choice| of(dy, f, choice)))?, b.input(scales.len(), scales)?);
    let (out, back) = (b.output(f, rows)?, b.output(2 * f, rows)?);
    let from = [dy.rows(), inputs.rows(), scales.rows()];
    if b.gpu.kernels().reads_tiles() {
        let packed = Packed::new(b.gpu, "case", rows, f)?;
        let packed_back = Packed::new(b.gpu, "case", rows, 2 * f)?;
        b.run(|rec| {
            on_matrices::forward(rec, &packed, inputs.rows(), activation, groups, g.tokens);
            on_matrices::backward(rec, (&packed_back, dweights), from, activation, groups, g.tokens);
            packed.unpack(rec, out.view(), f, rows);
            packed_back.unpack(rec, back.view(), 2 * f, rows);
        })?;
    } else {
        b.run(|rec| {
            grouped::forward(rec, out.rows(), inputs.rows(), activation, groups, g.tokens);
            grouped::backward(rec, [back.rows(), dweights], from, activation, groups, g.tokens);
        })?;
    }
    Ok((out, back))
}

/// Sums over the choices of a token, with their weights and without.
fn combined(b: &mut Bench, given: &Given) -> Result<(), GpuError> {
    let Given { g, shape, scales, .. } = given;
    let &Shape { experts: [_, used, tokens], d, .. } = shape;
    let x = values(4, tokens * used * d);
    let mut sums = [(); 2].map(|()| vec![0.0; tokens * d]);
    for choice in 0..tokens * used {
        for i in 0..d {
            let (at, x) = (choice / used * d + i, f64::from(x[choice * d + i]));
            sums[0][at] += given.factor(choice) * x;
            sums[1][at] += x;
        }
    }
    let x = b.input(d, &g.rows(d, |choice| wide(&x[choice * d..][..d])))?;
    let scales = b.input(scales.len(), scales)?;
    let (forward, backward) = (b.output(d, tokens)?, b.output(d, tokens)?);
    b.run(|rec| {
        combine::forward(rec, forward.view(), x.rows(), scales.rows(), &g.groups, tokens);
        combine::backward(rec, backward.view(), x.rows(), &g.groups, tokens);
    })?;
    let [weighted, plain] = sums;
    b.expect(format!("weighted sums of experts, {shape:?}"), &forward, weighted, PRODUCT);
    b.expect(format!("sums of experts, {shape:?}"), &backward, plain, PRODUCT);
    Ok(())
}
