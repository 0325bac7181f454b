//! Gated units.

use super::bench::Bench;
use super::case::{Case, Needs, Shapes};
use super::inputs::{values, wide};
use super::step::Step;
use super::tolerance::Tolerance;
use crate::base::config::Activation;
use crate::gpu::GpuError;
use crate::ops::gated::plain as gated;
use crate::reference::gated as reference;

/// tanh is good to 1e-7 of 1. Where it nears -1, around -5, 1 − tanh² keeps that error times 5·(1 + 3·0.0447·25)/2.
const GATED: Tolerance = Tolerance::new(1e-6, 1e-6, 3e-6);

pub const CASES: [Case; 2] = [
    Case {
        op: "gated",
        name: "forward and backward",
        needs: Needs::Any,
        variants: super::ROWS_AND_TILES,
        shapes: &Shapes {
            small: &[(67, 132, 9.0)],
            // The last have more elements than one dimension of workgroups of 64 covers.
            more: &[
                (1, 4, 0.01),
                (1, 4, 3.0),
                (1, 4, 50.0),
                (7, 20, 0.01),
                (7, 20, 3.0),
                (7, 20, 50.0),
                (65, 252, 0.01),
                (65, 252, 3.0),
                (65, 252, 50.0),
                (130, 68, 0.01),
                (130, 68, 3.0),
                (130, 68, 50.0),
                (8_400, 256, 0.01),
                (8_400, 256, 3.0),
                (8_400, 256, 50.0),
            ],
            check: both_ways,
        },
    },
    Case {
        op: "gated",
        name: "gates of extreme size",
        needs: Needs::Any,
        variants: super::F32,
        shapes: &Shapes { small: &[], more: &[88.0, 104.0, 1e4, 1e20, 1e30], check: extreme },
    },
];

/// The gated unit and both gradients, where the activation bends, is 0, equals its argument, and where x³ exceeds the range of exp:
/// rows, columns and the size of the gates.
fn both_ways(b: &mut Bench, &(height, width, size): &(usize, usize, f32)) -> Result<(), GpuError> {
    let mut gate: Vec<f32> = values(1, height * width).iter().map(|x| size * x).collect();
    gate[..4].copy_from_slice(&[-size, size, 0.0, -0.0]);
    for activation in Activation::ALL {
        gates(
            b,
            width,
            activation,
            &gate,
            format!("[{height}, {width}] {activation:?}, gates up to {size}"),
        )?;
    }
    Ok(())
}

/// Both ways of a step's feed-forward layer.
pub fn of_step(b: &mut Bench, step: &Step) -> Result<(), GpuError> {
    gates(b, step.ffn, Activation::Gelu, &values(1, step.tokens * step.ffn), "of a step".into())
}

/// Gates whose exponential leaves the range of f32: SiLU is the gate or 0, and its derivative 1 or 0.
fn extreme(b: &mut Bench, size: &f32) -> Result<(), GpuError> {
    for activation in [Activation::Silu, Activation::SwigluOai] {
        for gate in [*size, -size] {
            gates(b, 4, activation, &[gate; 4], format!("{activation:?} of {gate:e}"))?;
        }
    }
    Ok(())
}

fn gates(
    b: &mut Bench,
    width: usize,
    activation: Activation,
    gate: &[f32],
    name: String,
) -> Result<(), GpuError> {
    let height = gate.len() / width;
    let (up, dy) = (values(2, gate.len()), values(3, gate.len()));
    let [gate_block, up_block, dy_block] =
        [b.input(width, gate)?, b.input(width, &up)?, b.input(width, &dy)?];
    let [y, dgate, dup, alone] = [(); 4].map(|()| b.output(width, height));
    let (y, dgate, dup, alone) = (y?, dgate?, dup?, alone?);
    b.run(|rec| {
        let (gate, up, dy) = (gate_block.rows(), up_block.rows(), (dy_block.rows(), 0));
        gated::forward(rec, y.rows(), gate, up, activation, height);
        gated::backward(rec, dgate.rows(), Some(dup.rows()), dy, gate, up, activation, height);
    })?;
    b.untimed(|rec| {
        let (gate, up, dy) = (gate_block.rows(), up_block.rows(), (dy_block.rows(), 0));
        gated::backward(rec, alone.rows(), None, dy, gate, up, activation, height);
    })?;
    if b.compares() {
        let (gate, up) = (wide(gate), wide(&up));
        let (dgate_expected, dup_expected) = reference::backward(&wide(&dy), &gate, &up, activation);
        b.expect(format!("y {name}"), &y, reference::forward(&gate, &up, activation), GATED);
        b.expect(format!("dgate alone {name}"), &alone, dgate_expected.clone(), GATED);
        b.expect(format!("dgate {name}"), &dgate, dgate_expected, GATED);
        b.expect(format!("dup {name}"), &dup, dup_expected, GATED);
    }
    Ok(())
}
