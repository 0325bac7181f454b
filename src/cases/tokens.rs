//! The likeliest token, and drawn ones.

use super::bench::Bench;
use super::inputs::values;
use crate::gpu::GpuError;
use crate::ops::argmax::{Argmax, top};
use crate::ops::categorical::{Categorical, Draw};

/// The first of the largest values, in the last workgroup.
pub fn likeliest(b: &mut Bench) -> Result<(), GpuError> {
    let count = 5003;
    let mut row = values(1, count);
    row[7] = f32::NAN;
    [4999, count - 1].into_iter().for_each(|at| row[at] = 2.0);
    let (block, argmax) = (b.input(count, &row)?, Argmax::new(b.gpu)?);
    b.run(|rec| argmax.forward(rec, block.rows(), count))?;
    b.expect_bits("index and value", &argmax.result, [4999, 2f32.to_bits()]);
    Ok(())
}

/// The largest values of two rows, and their targets; the first of equal values comes first.
pub fn likeliest_of_rows(b: &mut Bench) -> Result<(), GpuError> {
    let count = 1003;
    let low = -200.0;
    let mut rows = vec![low; 2 * count];
    [(900, 2.0), (70, 2.0), (count + 1000, 3.0)].into_iter().for_each(|(at, value)| rows[at] = value);
    let block = b.input(count, &rows)?;
    let results = b.gpu.upload("results", &[0u32; 14])?;
    let targets = b.gpu.upload("targets", &[5u32, 1000])?;
    b.run(|rec| top::forward(rec, block.rows(), count, &targets, &results, 0, 2, 2))?;
    let [one, two, three, low] = [1.0, 2.0, 3.0, low].map(f32::to_bits);
    // Largest value, sum (e^-202 is zero), target, and index and value of the two largest.
    let found = [two, two, low, 70, two, 900, two, three, one, three, 1000, three, 0, low];
    b.expect_bits("likeliest of rows", &results, found);
    Ok(())
}

/// A token drawn from each of two rows, and the likeliest of a third: each has two equal values among others that weigh nothing.
pub fn drawn(b: &mut Bench) -> Result<(), GpuError> {
    let (count, low) = (1003, -200.0);
    let mut rows = vec![low; 3 * count];
    (0..3).for_each(|row| [70, 900].into_iter().for_each(|at| rows[row * count + at] = 2.0));
    let block = b.input(count, &rows)?;
    let categorical = Categorical::new(b.gpu, 3)?;
    b.gpu.write(&categorical.draws, &[Draw::at(0.6, 0.5), Draw::at(0.4, 2.0), Draw::LIKELIEST]);
    b.run(|rec| categorical.forward(rec, block.rows(), count, 3))?;
    let two = 2f32.to_bits();
    // The token and its value, the likeliest and its value, and the sum.
    let found = [900, 70, 70].into_iter().flat_map(|id| [id, two, 70, two, two]);
    b.expect_bits("drawn tokens", &categorical.results, found);
    Ok(())
}
