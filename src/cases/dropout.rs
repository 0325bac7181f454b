//! Masks of dropout.

use super::bench::Bench;
use super::case::{Case, Needs, Shapes};
use super::inputs::{pcg, plus, values, wide};
use super::tolerance::SUM;
use crate::gpu::GpuError;
use crate::ops::dropout::{self, Mask};

pub const CASES: [Case; 1] = [Case {
    op: "dropout",
    name: "masks",
    needs: Needs::Any,
    variants: super::F32,
    shapes: &Shapes { small: &[(67, 132)], more: super::ROWS_OF_VALUES, check: masks },
}];

/// Masks, drawn again here, forward and backward; the rows begin at the mask's first and fifth.
fn masks(b: &mut Bench, &(height, width): &(usize, usize)) -> Result<(), GpuError> {
    for (probability, key, first) in [(0.3, 99, 5), (0.05, 1, 0), (0.5, 0xdead_beef, 0), (0.9, 0, 0)] {
        let mask = Mask { probability, key };
        let (x, before) = (values(1, height * width), values(2, height * width));
        let (x_block, y, dx) = (b.input(width, &x)?, b.output(width, height)?, b.in_out(width, &before)?);
        b.run(|rec| {
            dropout::forward(rec, y.rows(), x_block.rows(), mask, first, height);
            dropout::backward(rec, dx.rows(), x_block.rows(), mask, first, height);
        })?;
        if !b.compares() {
            continue;
        }
        let threshold = (probability * 2f64.powi(32)) as u32;
        let kept = f64::from((1.0 / (1.0 - probability)) as f32);
        let start = pcg(key).wrapping_add((first * width) as u32);
        let of = |i: usize| if pcg(start.wrapping_add(i as u32)) < threshold { 0.0 } else { kept };
        let masked: Vec<f64> = x.iter().enumerate().map(|(i, x)| of(i) * f64::from(*x)).collect();
        let name = format!("[{height}, {width}] p={probability} key={key}");
        // A sum may cancel.
        b.expect(format!("added {name}"), &dx, plus(&masked, 1.0, &wide(&before)), SUM.around(kept));
        b.expect(format!("masked {name}"), &y, masked, SUM);
    }
    Ok(())
}
