//! RoPE, gated units, sums and factors, dropout.

use rullama_train::base::config::Activation;
use rullama_train::gpu::Gpu;
use rullama_train::ops::bias;
use rullama_train::ops::columns::{self as copies, Span};
use rullama_train::ops::dropout::{self, Mask};
use rullama_train::ops::gated::plain as gated;
use rullama_train::ops::rms_norm::{Norm, columns, plain};
use rullama_train::ops::rope;
use rullama_train::ops::scale;
use rullama_train::reference;

use super::check::{Block, Check, Outcome, Tolerance, run, scaled, sum, values, wide};

/// Two products and a sum, with cosines and sines that are rounded to f32.
const ROPE: Tolerance = Tolerance { norm: 2e-7, relative: 0.0, absolute: 3e-7 };
/// tanh is good to 1e-7 of 1. Where it nears -1, around -5, 1 − tanh² keeps that error times 5·(1 + 3·0.0447·25)/2.
const GATED: Tolerance = Tolerance { norm: 1e-6, relative: 1e-6, absolute: 3e-6 };
/// A few roundings of each element, and the mean's.
const NORM: Tolerance = Tolerance { norm: 5e-7, relative: 1e-6, absolute: 5e-7 };
/// One rounding per step.
const SUM: Tolerance = Tolerance { norm: 1.2e-7, relative: 2.4e-7, absolute: 1.2e-7 };

/// Rows and widths; the last has more elements than one dimension of workgroups of 64 covers.
const SHAPES: [(usize, usize); 5] = [(1, 4), (7, 20), (65, 252), (130, 68), (8_400, 256)];

/// A bias on some columns of wider rows; the columns beside them stay.
pub fn biases(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("bias", SUM);
    for (height, width) in SHAPES {
        let name = format!("[{height}, {width}]");
        let stride = width + 12;
        let (y, b) = (values(1, height * stride), values(2, width));
        let at = |i: usize| (i % stride).checked_sub(8).and_then(|c| b.get(c)).map_or(0.0, |b| f64::from(*b));
        let expected: Vec<f64> = wide(&y).iter().enumerate().map(|(i, y)| y + at(i)).collect();
        let block = Block::in_out(gpu, (0, 0), stride, &y);
        let bias_buffer = gpu.upload("bias", &b)?;
        run(gpu, |rec| bias::forward(rec, block.rows.from(8), &bias_buffer, width, height))?;
        check.close(&name, stride, &block.read(gpu, &name)?, &expected)?;
    }
    check.done()
}

/// A norm of some columns of wider rows; the columns beside them stay.
pub fn norms_of_columns(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("rms_norm of columns", NORM);
    for (height, width) in &SHAPES[..4] {
        let (height, width) = (*height, *width);
        let name = format!("[{height}, {width}]");
        let stride = width + 12;
        let (y, w) = (values(1, height * stride), values(2, width));
        let mut expected = wide(&y);
        for row in expected.chunks_exact_mut(stride) {
            let normed =
                reference::rms_norm::forward(&row[8..][..width], Some(&wide(&w)), width, 1e-3f32.into());
            row[8..][..width].copy_from_slice(&normed);
        }
        let norm = Norm::new(gpu, "norm", Some(&w), width, 1e-3)?;
        let block = Block::in_out(gpu, (0, 0), stride, &y);
        run(gpu, |rec| columns::in_place(rec, block.rows.from(8), &norm, height))?;
        check.close(&name, stride, &block.read(gpu, &name)?, &expected)?;
    }
    check.done()
}

/// Rows that a norm passes on, and their gradients.
pub fn norms_that_pass(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("passing norm", NORM);
    for (height, width) in &SHAPES[..4] {
        let (height, width) = (*height, *width);
        let norm = Norm::passing(gpu, "passing", width, 1.0)?;
        let x: Vec<f32> = values(1, height * width).iter().map(|x| 1e3 * x).collect();
        let (x_block, y) = (Block::input(gpu, (0, 0), width, &x), Block::output(gpu, (0, 0), width, height));
        let dx = Block::output(gpu, (0, 0), width, height);
        run(gpu, |rec| {
            plain::forward(rec, &y.rows, &x_block.rows, &norm, None, 1.0, height);
            plain::backward(rec, &dx.rows, &x_block.rows, &x_block.rows, &norm, height, None);
        })?;
        for (what, block) in [("forward", &y), ("backward", &dx)] {
            let name = format!("{what} [{height}, {width}]");
            check.close(&name, width, &block.read(gpu, &name)?, &wide(&x))?;
        }
    }
    check.done()
}

/// Pairs (i, i + K/2) rotated by position · frequency, and back.
pub fn rope_both_ways(gpu: &Gpu) -> Outcome {
    let mut forward = Check::new("rope forward", ROPE);
    let mut backward = Check::new("rope backward", ROPE);
    for (tokens, heads, size) in [(1, 1, 4), (7, 3, 100), (65, 8, 32), (130, 2, 512), (8_400, 4, 128)] {
        let name = format!("T={tokens} heads={heads} K={size}");
        // Packed samples of 130: positions start again; the last quarter of the pairs is not rotated.
        let positions: Vec<u32> = (0..tokens as u32).map(|t| t % 130).collect();
        let frequency =
            |i: usize| if i >= size * 3 / 8 { 0.0 } else { 1e4f64.powf(-2.0 * i as f64 / size as f64) };
        let frequencies: Vec<f64> = (0..size / 2).map(frequency).collect();
        let table = rope::Table::new(gpu, &frequencies, 1.0, 130)?;
        let x = values(1, tokens * heads * size);
        let turned = reference::rope::forward(&wide(&x), &positions, &frequencies, heads);
        let back = reference::rope::backward(&wide(&x), &positions, &frequencies, heads);
        let weights = values(2, size);
        let weigh = |x: &[f64]| -> Vec<f64> {
            x.iter().zip(weights.iter().cycle()).map(|(x, w)| x * f64::from(*w)).collect()
        };
        let weighted =
            [weigh(&turned), reference::rope::backward(&weigh(&wide(&x)), &positions, &frequencies, heads)];
        // The guard after the positions must not be used.
        let positions = gpu.upload("positions", &[positions, vec![77; 64]].concat())?;
        let width = heads * size;
        let block = Block::in_out(gpu, (0, 0), width, &x);
        run(gpu, |rec| rope::forward(rec, &block.rows, &positions, &table, heads, tokens))?;
        forward.close(&name, width, &block.read(gpu, &name)?, &turned)?;
        let block = Block::in_out(gpu, (0, 0), width, &x);
        run(gpu, |rec| rope::backward(rec, &block.rows, &positions, &table, heads, tokens))?;
        backward.close(&name, width, &block.read(gpu, &name)?, &back)?;
        let norm = gpu.upload("weights", &weights)?;
        let block = Block::in_out(gpu, (0, 0), width, &x);
        run(gpu, |rec| {
            rope::forward_weighted(rec, &block.rows, &positions, &table, &norm, heads, tokens);
        })?;
        forward.close(&format!("{name} weighted"), width, &block.read(gpu, &name)?, &weighted[0])?;
        let block = Block::in_out(gpu, (0, 0), width, &x);
        run(gpu, |rec| {
            rope::backward_weighted(rec, &block.rows, &positions, &table, &norm, heads, tokens);
        })?;
        backward.close(&format!("{name} weighted"), width, &block.read(gpu, &name)?, &weighted[1])?;
    }
    forward.done()?;
    backward.done()
}

/// `activation(gate)·up` where the activation bends, is 0, equals its argument, and where x³ exceeds the range of exp.
pub fn gated_both_ways(gpu: &Gpu) -> Outcome {
    let mut forward = Check::new("gated forward", GATED);
    let mut backward = Check::new("gated backward", GATED);
    for (height, width) in SHAPES {
        for (activation, size) in
            Activation::ALL.into_iter().flat_map(|a| [0.01, 3.0, 50.0].map(|size| (a, size)))
        {
            let name = format!("[{height}, {width}] {activation:?}, gates up to {size}");
            let len = height * width;
            let mut gate: Vec<f32> = values(1, len).iter().map(|x| size * x).collect();
            gate[..4].copy_from_slice(&[-size, size, 0.0, -0.0]);
            let (up, dy) = (values(2, len), values(3, len));
            let expected = reference::gated::forward(&wide(&gate), &wide(&up), activation);
            let (dgate_expected, dup_expected) =
                reference::gated::backward(&wide(&dy), &wide(&gate), &wide(&up), activation);
            let [gate, up, dy] = [&gate, &up, &dy].map(|x| Block::input(gpu, (0, 0), width, x));
            let [y, dgate, dup] = [(); 3].map(|()| Block::output(gpu, (0, 0), width, height));
            run(gpu, |rec| {
                gated::forward(rec, &y.rows, &gate.rows, &up.rows, activation, height);
                gated::backward(
                    rec,
                    &dgate.rows,
                    Some(&dup.rows),
                    (&dy.rows, 0),
                    &gate.rows,
                    &up.rows,
                    activation,
                    height,
                );
            })?;
            forward.close(&name, width, &y.read(gpu, &name)?, &expected)?;
            backward.close(&format!("dgate {name}"), width, &dgate.read(gpu, &name)?, &dgate_expected)?;
            backward.close(&format!("dup {name}"), width, &dup.read(gpu, &name)?, &dup_expected)?;
            let dgate = Block::output(gpu, (0, 0), width, height);
            run(gpu, |rec| {
                gated::backward(
                    rec,
                    &dgate.rows,
                    None,
                    (&dy.rows, 0),
                    &gate.rows,
                    &up.rows,
                    activation,
                    height,
                );
            })?;
            backward.close(
                &format!("dgate alone {name}"),
                width,
                &dgate.read(gpu, &name)?,
                &dgate_expected,
            )?;
        }
    }
    forward.done()?;
    backward.done()
}

/// Gates whose exponential leaves the range of f32: SiLU is the gate or 0, and its derivative 1 or 0.
pub fn extreme_gates(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("gated, extreme gates", GATED);
    for size in [88.0, 104.0, 1e4, 1e20, 1e30] {
        for (x, activation) in
            [Activation::Silu, Activation::SwigluOai].map(|a| [(size, a), (-size, a)]).concat()
        {
            let name = format!("{activation:?} of {x:e}");
            let (gate, up, dy) = ([x; 4], values(2, 4), values(3, 4));
            let expected = reference::gated::forward(&wide(&gate), &wide(&up), activation);
            let (dgate_expected, dup_expected) =
                reference::gated::backward(&wide(&dy), &wide(&gate), &wide(&up), activation);
            let [gate, up, dy] = [&gate[..], &up, &dy].map(|x| Block::input(gpu, (0, 0), 4, x));
            let [y, dgate, dup] = [(); 3].map(|()| Block::output(gpu, (0, 0), 4, 1));
            run(gpu, |rec| {
                gated::forward(rec, &y.rows, &gate.rows, &up.rows, activation, 1);
                gated::backward(
                    rec,
                    &dgate.rows,
                    Some(&dup.rows),
                    (&dy.rows, 0),
                    &gate.rows,
                    &up.rows,
                    activation,
                    1,
                );
            })?;
            check.close(&name, 4, &y.read(gpu, &name)?, &expected)?;
            check.close(&format!("dgate {name}"), 4, &dgate.read(gpu, &name)?, &dgate_expected)?;
            check.close(&format!("dup {name}"), 4, &dup.read(gpu, &name)?, &dup_expected)?;
        }
    }
    check.done()
}

/// `x = scale·x` and `y = scale·(x + y)`.
pub fn scale_in_place(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("scale", SUM);
    // The last has more vec4s than one dimension of workgroups covers.
    for (height, width) in SHAPES.into_iter().chain([(32_900, 256)]) {
        for factor in [1.0, -0.37] {
            let name = format!("[{height}, {width}] scale={factor}");
            let x = values(1, height * width);
            let block = Block::in_out(gpu, (0, 0), width, &x);
            run(gpu, |rec| scale::in_place(rec, &block.rows, factor, height))?;
            let found = block.read(gpu, &name)?;
            check.close(&format!("in place {name}"), width, &found, &scaled(factor, &wide(&x)))?;
        }
    }
    check.done()
}

/// Columns of rows, taken side by side and put at the same places of other rows.
pub fn columns_copied(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("columns", SUM);
    // The last has more values than one dimension of workgroups covers.
    for (height, whole, spans) in [
        (1, 7, vec![[2, 0, 3]]),
        (67, 132, vec![[4, 0, 64], [100, 64, 31]]),
        (33_000, 260, vec![[0, 0, 256], [259, 256, 1]]),
    ] {
        let name = format!("[{height}, {whole}] {spans:?}");
        let spans: Vec<Span> =
            spans.into_iter().map(|[whole, part, count]| Span { whole, part, count }).collect();
        let width = spans.iter().map(|span| span.count).sum();
        let x = values(1, height * whole);
        let before = values(2, height * whole);
        let of_row = |row: &[f64]| -> Vec<f64> {
            spans.iter().flat_map(|span| row[span.whole..span.whole + span.count].to_vec()).collect()
        };
        let taken_expected: Vec<f64> = wide(&x).chunks(whole).flat_map(of_row).collect();
        let mut put_expected = wide(&before);
        for (row, x) in put_expected.chunks_mut(whole).zip(wide(&x).chunks(whole)) {
            for span in &spans {
                let columns = span.whole..span.whole + span.count;
                row[columns.clone()].copy_from_slice(&x[columns]);
            }
        }
        let source = Block::input(gpu, (0, 0), whole, &x);
        let other = Block::in_out(gpu, (0, 0), whole, &before);
        let part = Block::in_out(gpu, (0, 0), width, &vec![0.0; height * width]);
        run(gpu, |rec| {
            copies::take(rec, &part.rows, &source.rows, &spans, height);
            copies::put(rec, &other.rows, &part.rows, &spans, height);
        })?;
        check.close(&format!("taken {name}"), width, &part.read(gpu, &name)?, &taken_expected)?;
        check.close(&format!("put {name}"), whole, &other.read(gpu, &name)?, &put_expected)?;
    }
    check.done()
}

/// The properties of a mask: two values, their share, no pattern, and the same mask in backward.
pub fn dropout_masks(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("dropout", SUM);
    for (height, width) in SHAPES {
        let len = height * width;
        for (probability, key) in [(0.05, 1), (0.5, 0xdead_beef), (0.9, 0)] {
            let name = format!("[{height}, {width}] p={probability} key={key}");
            let mask = mask_of(gpu, &name, Mask { probability, key }, height, width)?;
            let kept = 1.0 / (1.0 - probability);
            let wrong = mask.iter().find(|&&m| m != 0.0 && (m - kept).abs() > 1e-6 * kept);
            if let Some(m) = wrong {
                return Err(format!("dropout {name}: expected 0 or {kept} for 1, found {m}").into());
            }
            let share = |test: &dyn Fn(usize) -> bool| {
                (1..len).filter(|&i| test(i)).count() as f64 / (len - 1) as f64
            };
            let dropped = |i: usize| mask[i] == 0.0;
            // Five standard deviations of the share among independent elements.
            let near = |what: &str, found: f64, expected: f64| {
                let allowed = 5.0 * (expected * (1.0 - expected) / (len - 1) as f64).sqrt();
                match (found - expected).abs() <= allowed {
                    true => Ok(()),
                    false => Err(format!(
                        "dropout {name}: {what}: expected {expected} ± {allowed:.4}, found {found}"
                    )),
                }
            };
            near("share of zeros", share(&dropped), probability)?;
            let both = probability * probability;
            near("share of zeros after a zero", share(&|i| dropped(i) && dropped(i - 1)), both)?;
            let next = mask_of(gpu, &name, Mask { probability, key: key.wrapping_add(1) }, height, width)?;
            near("share of zeros under the next key too", share(&|i| dropped(i) && next[i] == 0.0), both)?;
            near("and one place before", share(&|i| dropped(i) && next[i - 1] == 0.0), both)?;

            let (x, before) = (values(1, len), values(2, len));
            let masked: Vec<f64> = wide(&x).iter().zip(&mask).map(|(x, m)| x * m).collect();
            let (x, y) = (Block::input(gpu, (0, 0), width, &x), Block::output(gpu, (0, 0), width, height));
            let dx = Block::in_out(gpu, (0, 0), width, &before);
            run(gpu, |rec| {
                dropout::forward(rec, &y.rows, &x.rows, Mask { probability, key }, 0, height);
                dropout::backward(rec, &dx.rows, &x.rows, Mask { probability, key }, 0, height);
            })?;
            check.close(&format!("forward {name}"), width, &y.read(gpu, &name)?, &masked)?;
            let expected = sum(&masked, &wide(&before));
            // A sum may cancel.
            check.close_to(&format!("backward {name}"), width, &dx.read(gpu, &name)?, &expected, kept)?;
        }
    }
    check.done()
}

/// Dropout of ones.
fn mask_of(
    gpu: &Gpu,
    case: &str,
    mask: Mask,
    height: usize,
    width: usize,
) -> Result<Vec<f64>, libtest_mimic::Failed> {
    let ones = Block::input(gpu, (0, 0), width, &vec![1.0; height * width]);
    let y = Block::output(gpu, (0, 0), width, height);
    run(gpu, |rec| dropout::forward(rec, &y.rows, &ones.rows, mask, 0, height))?;
    y.read(gpu, case)
}
