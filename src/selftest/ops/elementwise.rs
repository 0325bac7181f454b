//! Norms, rotary embedding, gated units, sums, dropout.

use crate::base::config::Activation;
use crate::gpu::GpuError;
use crate::ops::columns::{self, Span};
use crate::ops::dropout::{self, Mask};
use crate::ops::gated::plain as gated;
use crate::ops::rms_norm::{Norm, plain as rms_norm};
use crate::ops::{bias, rope, scale};
use crate::reference;
use crate::selftest::bench::{Bench, F32, pcg, plus, values, wide};

/// ε of norms.
pub const EPS: f32 = 1e-6;
/// Rows and columns: more than 64 rows, a width that is no multiple of 64.
const SHAPE: (usize, usize) = (67, 132);

/// A norm with a weight.
pub fn norm(b: &Bench, weight: &[f32]) -> Result<Norm, GpuError> {
    Norm::new(b.gpu, "self-test", Some(weight), weight.len(), EPS)
}

/// `y = 0.75·(residual + norm(x))` and `dx`, written, and added and scaled.
pub fn rms_norms(b: &mut Bench) -> Result<(), GpuError> {
    let (height, width) = SHAPE;
    let [x, residual, dy, before] = [1, 2, 3, 4].map(|seed| values(seed, height * width));
    let w = values(5, width);
    let (weight, eps) = (wide(&w), f64::from(EPS));
    let normed = reference::rms_norm::forward(&wide(&x), Some(&weight), width, eps);
    let y_expected: Vec<f64> = plus(&normed, 1.0, &wide(&residual)).iter().map(|y| 0.75 * y).collect();
    let dx = reference::rms_norm::backward(&wide(&dy), &wide(&x), Some(&weight), width, eps);
    let added: Vec<f64> = plus(&dx, 1.0, &wide(&before)).iter().map(|y| 0.5 * y).collect();
    let norm = norm(b, &w)?;
    let (x, residual, dy) = (b.input(width, &x)?, b.input(width, &residual)?, b.input(width, &dy)?);
    let (y, dx_written) = (b.output(width, height)?, b.output(width, height)?);
    let dx_added = b.in_out(width, &before)?;
    b.run(|rec| {
        rms_norm::forward(rec, y.rows(), x.rows(), &norm, Some(residual.rows()), 0.75, height);
        rms_norm::backward(rec, dx_written.rows(), dy.rows(), x.rows(), &norm, height, None);
        rms_norm::backward(rec, dx_added.rows(), dy.rows(), x.rows(), &norm, height, Some(0.5));
    })?;
    b.expect("y", &y, y_expected, F32);
    b.expect("dx", &dx_written, dx, F32);
    b.expect("dx, added", &dx_added, added, F32);
    Ok(())
}

/// Pairs rotated by position · frequency, and back; positions of packed samples.
pub fn ropes(b: &mut Bench) -> Result<(), GpuError> {
    let (tokens, heads, size) = (67, 3, 36);
    let width = heads * size;
    let positions: Vec<u32> = (0..tokens as u32).map(|t| t % 50).collect();
    let frequencies: Vec<f64> = (0..size / 2).map(|i| 1e4f64.powf(-2.0 * i as f64 / size as f64)).collect();
    let table = rope::Table::new(b.gpu, &frequencies, 1.0, 50)?;
    let x = values(1, tokens * width);
    let turned = reference::rope::forward(&wide(&x), &positions, &frequencies, heads);
    let back = reference::rope::backward(&wide(&x), &positions, &frequencies, heads);
    let weights = values(2, size);
    let weigh = |x: &[f64]| -> Vec<f64> {
        x.iter().zip(weights.iter().cycle()).map(|(x, w)| x * f64::from(*w)).collect()
    };
    let back_weighted = reference::rope::backward(&weigh(&wide(&x)), &positions, &frequencies, heads);
    let positions = b.gpu.upload("self-test", &[positions, vec![7; 64]].concat())?;
    let norm = b.gpu.upload("self-test", &weights)?;
    let (forward, backward) = (b.in_out(width, &x)?, b.in_out(width, &x)?);
    let weighted = [b.in_out(width, &x)?, b.in_out(width, &x)?];
    b.run(|rec| {
        rope::forward(rec, forward.rows(), &positions, &table, heads, tokens);
        rope::backward(rec, backward.rows(), &positions, &table, heads, tokens);
        rope::forward_weighted(rec, weighted[0].rows(), &positions, &table, &norm, heads, tokens);
        rope::backward_weighted(rec, weighted[1].rows(), &positions, &table, &norm, heads, tokens);
    })?;
    b.expect("weighted", &weighted[0], weigh(&turned), F32);
    b.expect("weighted, back", &weighted[1], back_weighted, F32);
    b.expect("turned", &forward, turned, F32);
    b.expect("turned back", &backward, back, F32);
    Ok(())
}

/// The gated unit and both gradients, of every activation.
pub fn gates(b: &mut Bench) -> Result<(), GpuError> {
    let (height, width) = SHAPE;
    for activation in Activation::ALL {
        let [gate, up] =
            [1, 2].map(|seed| values(seed, height * width).iter().map(|x| 9.0 * x).collect::<Vec<f32>>());
        let dy = values(3, height * width);
        let y_expected = reference::gated::forward(&wide(&gate), &wide(&up), activation);
        let (dgate_expected, dup_expected) =
            reference::gated::backward(&wide(&dy), &wide(&gate), &wide(&up), activation);
        let (gate, up, dy) = (b.input(width, &gate)?, b.input(width, &up)?, b.input(width, &dy)?);
        let (y, dgate, dup) = (b.output(width, height)?, b.output(width, height)?, b.output(width, height)?);
        b.run(|rec| {
            gated::forward(rec, y.rows(), gate.rows(), up.rows(), activation, height);
            let (dy, gate, up) = (dy.rows(), gate.rows(), up.rows());
            gated::backward(rec, dgate.rows(), Some(dup.rows()), (dy, 0), gate, up, activation, height);
        })?;
        b.expect(format!("{activation:?}: y"), &y, y_expected, F32);
        b.expect(format!("{activation:?}: dgate"), &dgate, dgate_expected, F32);
        b.expect(format!("{activation:?}: dup"), &dup, dup_expected, F32);
    }
    Ok(())
}

/// A bias on the columns between two margins, which stay.
pub fn biases(b: &mut Bench) -> Result<(), GpuError> {
    let (height, width) = SHAPE;
    let (y, bias) = (values(1, height * width), values(2, width));
    let expected = wide(&y).iter().enumerate().map(|(i, y)| y + f64::from(bias[i % width])).collect();
    let (y, on_device) = (b.in_out_view(width, &y)?, b.gpu.upload("self-test", &bias)?);
    b.run(|rec| bias::forward(rec, y.view(), &on_device, width, height))?;
    b.expect("y", &y, expected, F32);
    Ok(())
}

/// `x = scale·x`.
pub fn scales(b: &mut Bench) -> Result<(), GpuError> {
    let (height, width) = SHAPE;
    let x = values(1, height * width);
    let scaled: Vec<f64> = x.iter().map(|x| -0.37 * f64::from(*x)).collect();
    let in_place = b.in_out(width, &x)?;
    b.run(|rec| scale::in_place(rec, in_place.rows(), -0.37, height))?;
    b.expect("in place", &in_place, scaled, F32);
    Ok(())
}

/// Columns 3 to 7 and 10 to 12 of rows side by side, and put back at the same places of others.
pub fn columns_copied(b: &mut Bench) -> Result<(), GpuError> {
    let (height, width) = SHAPE;
    let spans = [Span { whole: 3, part: 0, count: 5 }, Span { whole: 10, part: 5, count: 3 }];
    let x = values(1, height * width);
    let before = values(2, height * width);
    let taken: Vec<f64> =
        wide(&x).chunks(width).flat_map(|row| [&row[3..8], &row[10..13]].concat()).collect();
    let is_put = |column: usize| spans.iter().any(|s| (s.whole..s.whole + s.count).contains(&column));
    let pairs = x.iter().zip(&before).enumerate();
    let put: Vec<f64> =
        pairs.map(|(i, (x, old))| f64::from(if is_put(i % width) { *x } else { *old })).collect();
    let (whole, others) = (b.input(width, &x)?, b.in_out(width, &before)?);
    let part = b.output(8, height)?;
    b.run(|rec| {
        columns::take(rec, part.rows(), whole.rows(), &spans, height);
        columns::put(rec, others.rows(), part.rows(), &spans, height);
    })?;
    b.expect("taken", &part, taken, F32);
    b.expect("put", &others, put, F32);
    Ok(())
}

/// Masks, drawn again here, forward and backward.
pub fn dropouts(b: &mut Bench) -> Result<(), GpuError> {
    let (height, width) = SHAPE;
    let mask = Mask { probability: 0.3, key: 99 };
    let threshold = (mask.probability * 2f64.powi(32)) as u32;
    let kept = f64::from((1.0 / 0.7) as f32);
    let start = pcg(mask.key).wrapping_add((5 * width) as u32); // the rows begin at the mask's fifth
    let of = |i: usize| if pcg(start.wrapping_add(i as u32)) < threshold { 0.0 } else { kept };
    let (x, before) = (values(1, height * width), values(2, height * width));
    let masked: Vec<f64> = x.iter().enumerate().map(|(i, x)| of(i) * f64::from(*x)).collect();
    let added = plus(&masked, 1.0, &wide(&before));
    let (x, y, dx) = (b.input(width, &x)?, b.output(width, height)?, b.in_out(width, &before)?);
    b.run(|rec| {
        dropout::forward(rec, y.rows(), x.rows(), mask, 5, height);
        dropout::backward(rec, dx.rows(), x.rows(), mask, 5, height);
    })?;
    b.expect("masked", &y, masked, F32);
    b.expect("masked and added", &dx, added, F32);
    Ok(())
}
