//! The gated delta net, and the gates of attention's output.

use super::elementwise::EPS;
use crate::base::config::{Activation, DeltaNet};
use crate::gpu::GpuError;
use crate::ops::delta::{self, CHUNK, Delta, Frozen, Gradients, Saved, Widths};
use crate::ops::output_gate;
use crate::ops::pass::{Pass, Scratch};
use crate::ops::rms_norm::Norm;
use crate::reference::delta::net::{Net, Projected};
use crate::reference::{gated, rms_norm};
use crate::selftest::bench::{Bench, F32, values, wide};

/// Lengths of two packed samples: the first ends within the second chunk.
const LENGTHS: [usize; 2] = [70, 13];

/// Heads of a size that all kernels take but CUDA's.
pub fn nets(b: &mut Bench) -> Result<(), GpuError> {
    samples(b, DeltaNet { key_heads: 2, value_heads: 4, head_size: 16 })
}

/// Heads of the size that CUDA's kernels take.
pub fn in_cuda(b: &mut Bench) -> Result<(), GpuError> {
    samples(b, DeltaNet { key_heads: 1, value_heads: 2, head_size: delta::cuda::HEAD_SIZE })
}

/// Output and gradients of two samples in two chunks, with two value heads per key head.
fn samples(b: &mut Bench, shape: DeltaNet) -> Result<(), GpuError> {
    // Longer than 60 lines: each buffer of the net has a line.
    let DeltaNet { key_heads, value_heads: heads, head_size } = shape;
    let (tokens, channels, inner) = (LENGTHS.iter().sum(), shape.channels(), shape.values());
    let [qkv, alpha, beta] =
        [(1, channels), (2, heads), (3, heads)].map(|(seed, width)| values(seed, tokens * width));
    let [taps, dt, dout] =
        [(4, 4 * channels), (5, heads), (6, tokens * inner)].map(|(s, len)| values(s, len));
    let a: Vec<f32> = (0..heads).map(|head| -0.01 * 4f32.powi(head as i32)).collect();
    let bounds: Vec<[u32; 2]> = (0..tokens)
        .map(|t| if t < LENGTHS[0] { [0, LENGTHS[0] as u32] } else { [LENGTHS[0] as u32, tokens as u32] })
        .collect();
    let starts: Vec<u32> = bounds.iter().map(|bound| bound[0]).collect();
    let [wide_taps, wide_a, wide_dt] = [&taps, &a, &dt].map(|x| wide(x));
    let eps = f64::from(EPS);
    let net = Net { shape, taps: &wide_taps, a: &wide_a, dt: &wide_dt, eps, starts: &starts };
    let projected = Projected { qkv: wide(&qkv), alpha: wide(&alpha), beta: wide(&beta) };
    let expected = net.backward(&wide(&dout), &projected);

    let frozen = Frozen::new(b.gpu, &taps, &a, &dt)?;
    let bounds = b.gpu.upload("self-test", &bounds)?;
    let (qkv, alpha, beta) = (b.input(channels, &qkv)?, b.input(heads, &alpha)?, b.input(heads, &beta)?);
    let dout = b.input(inner, &dout)?;
    let rows = |width: usize| b.output(width, tokens);
    let widths = Widths::of(b.gpu, &shape);
    let states = || b.output(widths.states, tokens.div_ceil(CHUNK));
    let (mixed, gates, inverse) =
        (rows(widths.mixed)?, rows(delta::gates_width(heads))?, rows(widths.inverse)?);
    let (wu, states_before, output) = (rows(widths.wu)?, states()?, rows(inner)?);
    let (dqkv, dalpha, dbeta) = (rows(channels)?, rows(heads)?, rows(heads)?);
    let (du, dstates, pairs, dmixed) =
        (rows(widths.du)?, states()?, rows(widths.pairs.max(4))?, rows(3 * inner)?);
    let scratch = rows(inner)?;
    let shape = Delta {
        key_heads,
        value_heads: heads,
        head_size,
        eps: EPS,
        frozen: &frozen,
        bounds: &bounds,
        tokens,
    };
    let saved = Saved {
        qkv: qkv.rows(),
        alpha: alpha.rows(),
        beta: beta.rows(),
        mixed: mixed.rows(),
        gates: gates.rows(),
        inverse: inverse.rows(),
        wu: wu.rows(),
        states: states_before.rows(),
        values: scratch.rows(),
    };
    let gradients = Gradients {
        dqkv: dqkv.rows(),
        dalpha: dalpha.rows(),
        dbeta: dbeta.rows(),
        du: du.rows(),
        dstates: dstates.rows(),
        pairs: pairs.rows(),
        dmixed: dmixed.rows(),
    };
    b.run(|rec| {
        delta::forward(rec, &shape, &saved, output.rows());
        delta::backward(rec, &shape, &saved, dout.rows(), &gradients);
    })?;
    // On cooperative matrices, operands are f16.
    let tolerance = if b.gpu.kernels().reads_tiles() { b.operands() } else { F32 };
    b.expect("output", &output, net.forward(&projected), tolerance);
    b.expect("dqkv", &dqkv, expected.qkv, tolerance);
    b.expect("dalpha", &dalpha, expected.alpha, tolerance);
    b.expect("dbeta", &dbeta, expected.beta, tolerance);
    Ok(())
}

/// Backward of the norm and the gates behind the recurrence.
pub fn norms(b: &mut Bench) -> Result<(), GpuError> {
    let (tokens, value_heads, head_size) = (9, 3, 100);
    let width = value_heads * head_size;
    let [x, dy, gate] = [1, 2, 3].map(|seed| values(seed, tokens * width));
    let weight = values(4, head_size);
    let (wide_x, wide_w, eps) = (wide(&x), wide(&weight), f64::from(EPS));
    let normed = rms_norm::forward(&wide_x, Some(&wide_w), head_size, eps);
    let (dgate_expected, dnormed) = gated::backward(&wide(&dy), &wide(&gate), &normed, Activation::Silu);
    let dx_expected = rms_norm::backward(&dnormed, &wide_x, Some(&wide_w), head_size, eps);
    let frozen = Frozen::new(b.gpu, &[0.0; 4], &[0.0], &[0.0])?;
    let bounds = &b.gpu.upload("self-test", &[[0u32; 2]])?;
    let shape = Delta { key_heads: 1, value_heads, head_size, eps: EPS, frozen: &frozen, bounds, tokens };
    let norm = Norm::new(b.gpu, "self-test", Some(&weight), head_size, EPS)?;
    let (x, dy, gate) = (b.input(width, &x)?, b.input(width, &dy)?, b.input(width, &gate)?);
    let (dgate, dx) = (b.output(width, tokens)?, b.output(width, tokens)?);
    let (gradients, inputs) = ([dgate.rows(), dx.rows()], [gate.rows(), x.rows()]);
    b.run(|rec| delta::norm::backward(rec, &shape, &norm, gradients, dy.rows(), inputs))?;
    b.expect("dgate", &dgate, dgate_expected, F32);
    b.expect("dx", &dx, dx_expected, F32);
    Ok(())
}

/// Queries and gates taken apart, gates applied, and gradients put together again.
pub fn output_gates(b: &mut Bench) -> Result<(), GpuError> {
    let (tokens, heads, size) = (67, 3, 20);
    let width = heads * size;
    let both: Vec<f32> = values(1, 2 * tokens * width).iter().map(|x| 8.0 * x).collect();
    let [x, dy, dqueries] = [2, 3, 4].map(|seed| values(seed, tokens * width));
    let half =
        |i: usize| -> Vec<f64> { wide(&both).chunks(size).skip(i).step_by(2).flatten().copied().collect() };
    let (queries_expected, gates) = (half(0), half(1));
    let y_expected = gated::sigmoid_forward(&wide(&x), &gates);
    let (dx_expected, dgates) = gated::sigmoid_backward(&wide(&dy), &wide(&x), &gates);
    let pairs = wide(&dqueries);
    let dboth_expected: Vec<f64> =
        pairs.chunks(size).zip(dgates.chunks(size)).flat_map(|(q, g)| [q, g].concat()).collect();
    let scratch = Scratch::for_products(b.gpu, None)?;
    let both = b.input(2 * width, &both)?;
    let (x, dy, dqueries) = (b.input(width, &x)?, b.input(width, &dy)?, b.input(width, &dqueries)?);
    let (queries, y, dx) = (b.output(width, tokens)?, b.output(width, tokens)?, b.output(width, tokens)?);
    let dboth = b.output(2 * width, tokens)?;
    b.run(|rec| {
        let [both, x, dy, dqueries] = [&both, &x, &dy, &dqueries].map(|block| block.rows().clone().into());
        let [queries, y, dx, dboth] = [&queries, &y, &dx, &dboth].map(|block| block.rows().clone().into());
        let p = &mut Pass::new(rec, tokens, &scratch);
        output_gate::split(p, &queries, &both, heads);
        output_gate::forward(p, &y, &x, &both, heads);
        output_gate::backward(p, [&dx, &dboth], &dy, &x, &both, heads);
        output_gate::join(p, &dboth, &dqueries, heads);
    })?;
    b.expect("queries", &queries, queries_expected, F32);
    b.expect("y", &y, y_expected, F32);
    b.expect("dx", &dx, dx_expected, F32);
    b.expect("dboth", &dboth, dboth_expected, F32);
    Ok(())
}
