//! Losses, and gradients of logits as tiles.

use super::bench::Bench;
use super::case::{Case, Needs, Shapes};
use super::cross_entropy::{SOFTCAP, WARM, targets};
use super::inputs::{values, wide};
use super::tiles::{ROUNDED, expect, room};
use super::tolerance::{F32, Tolerance};
use crate::gpu::GpuError;
use crate::ops::cross_entropy::{Chunk, coop16 as cross_entropy};
use crate::ops::row_status::Verdicts;
use crate::reference::cross_entropy::{self as reference, Adjusted};

pub const CASES: [Case; 1] = [Case {
    op: "cross_entropy",
    name: "losses, gradients as tiles",
    needs: Needs::Tiles,
    variants: super::PACKED,
    shapes: &Shapes {
        small: &[(7, 1004, Some(SOFTCAP), WARM)],
        more: &[
            (1, 8, None, 1.0),
            (7, 1004, Some(SOFTCAP), 1.5),
            (33, 2048, Some(SOFTCAP), 1.0),
            (16, 132, None, 0.7),
        ],
        check,
    },
}];

const LOSS: Tolerance = Tolerance { device: F32.device, ..ROUNDED };

/// Rows, vocabulary, softcap and temperature.
type Shape = (usize, usize, Option<f32>, f32);

/// With gradients, and losses alone.
fn check(b: &mut Bench, shape: &Shape) -> Result<(), GpuError> {
    let &(rows, vocab, softcap, temperature) = shape;
    let logits: Vec<f32> = values(1, rows * vocab).iter().map(|x| 40.0 * x).collect();
    let ids = targets(rows, vocab);
    let coefficients: Vec<f32> = (0..rows).map(|n| 0.25 * (1.0 + (n % 3) as f32)).collect();
    let cap = Adjusted { softcap: softcap.map(f64::from), temperature: temperature.into() };
    let losses_expected = reference::forward(&wide(&logits), &ids, cap, vocab);
    let expected = reference::backward(&wide(&coefficients), &wide(&logits), &ids, cap, vocab);
    let (logits, hidden) = (b.input(vocab, &logits)?, b.input(4, &vec![1.0; 4 * rows])?);
    let (ids, coefficients) = (b.gpu.upload("case", &ids)?, b.gpu.upload("case", &coefficients)?);
    let (status, dlogits) = (b.gpu.buffer("case", 4 * rows as u64)?, room(b, rows, vocab)?);
    let verdicts = Verdicts { hidden: hidden.rows(), buffer: (&status, 0) };
    let [losses, alone] = [b.output(rows.next_multiple_of(4), 1)?, b.output(rows.next_multiple_of(4), 1)?];
    let chunk = Chunk {
        logits: logits.rows(),
        rows,
        vocab,
        softcap,
        temperature,
        targets: (&ids, 0),
        losses: (&losses.rows().buffer, 0),
    };
    b.run(|rec| cross_entropy::backward(rec, &chunk, &verdicts, &dlogits, &coefficients))?;
    b.expect_first(format!("losses {shape:?}"), &losses, losses_expected.clone(), LOSS);
    let chunk = Chunk { losses: (&alone.rows().buffer, 0), ..chunk };
    b.run(|rec| cross_entropy::forward(rec, &chunk, &verdicts))?;
    b.expect_first(format!("losses alone {shape:?}"), &alone, losses_expected, LOSS);
    expect(b, &format!("gradients of logits {shape:?}"), &dlogits, vocab, expected)
}
