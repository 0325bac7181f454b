//! Values scaled in place.

use super::bench::Bench;
use super::case::{Case, Needs, Shapes};
use super::inputs::{scaled, values, wide};
use super::tolerance::SUM;
use crate::gpu::GpuError;
use crate::ops::scale;

pub const CASES: [Case; 1] = [Case {
    op: "scale",
    name: "in place",
    needs: Needs::Any,
    variants: super::F32,
    shapes: &Shapes {
        small: &[(67, 132)],
        // The last has more vec4s than one dimension of workgroups covers.
        more: &[(1, 4), (7, 20), (65, 252), (130, 68), (8_400, 256), (32_900, 256)],
        check: in_place,
    },
}];

/// `x = scale·x`.
fn in_place(b: &mut Bench, &(height, width): &(usize, usize)) -> Result<(), GpuError> {
    for factor in [1.0, -0.37] {
        let x = values(1, height * width);
        let block = b.in_out(width, &x)?;
        b.run(|rec| scale::in_place(rec, block.rows(), factor, height))?;
        b.expect(format!("[{height}, {width}] scale={factor}"), &block, scaled(factor, &wide(&x)), SUM);
    }
    Ok(())
}
