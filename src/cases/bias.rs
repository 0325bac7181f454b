//! Biases on some columns.

use super::bench::Bench;
use super::case::{Case, Needs, Shapes};
use super::inputs::values;
use super::tolerance::SUM;
use crate::gpu::GpuError;
use crate::ops::bias;

pub const CASES: [Case; 1] = [Case {
    op: "bias",
    name: "added to some columns",
    needs: Needs::Any,
    variants: super::F32,
    shapes: &Shapes { small: &[(67, 132)], more: super::ROWS_OF_VALUES, check: biases },
}];

/// A bias on the columns between two margins, which stay.
fn biases(b: &mut Bench, &(height, width): &(usize, usize)) -> Result<(), GpuError> {
    let (y, bias) = (values(1, height * width), values(2, width));
    let (block, on_device) = (b.in_out_within((8, 4), width, &y)?, b.gpu.upload("case", &bias)?);
    b.run(|rec| bias::forward(rec, block.view(), &on_device, width, height))?;
    let expected =
        y.iter().zip(bias.iter().cycle()).map(|(y, bias)| f64::from(*y) + f64::from(*bias)).collect();
    b.expect(format!("[{height}, {width}]"), &block, expected, SUM);
    Ok(())
}
