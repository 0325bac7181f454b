//! The gated delta net between its projections.

use super::bench::Bench;
use super::case::{Case, Needs, Shapes};
use super::inputs::{values, wide};
use super::rms_norm::EPS;
use super::tolerance::Tolerance;
use crate::base::config::DeltaNet;
use crate::gpu::GpuError;
use crate::ops::delta::cuda::HEAD_SIZE;
use crate::ops::delta::{self, CHUNK, Carried, Delta, Frozen, Gradients, Saved, Widths};
use crate::reference::delta::net::{Net, Projected};

/// Sums of decays' logarithms reach −100, and their exponential has an error of 2⁻²⁴ of that.
const OUTPUT: Tolerance = Tolerance::new(5e-6, 0.0, 2e-5);
/// A few products more.
const GRADIENT: Tolerance = Tolerance::new(2e-5, 0.0, 1e-4);
/// Tolerance with operands in f16, as those of attention on cooperative matrices.
const HALF: Tolerance = Tolerance { device: 1e-2, ..Tolerance::new(3e-3, 6e-3, 6e-3) };
/// Tolerance with gates of extreme size: their gradients are small differences of sums.
const HALF_EXTREME: Tolerance = Tolerance { device: 1e-2, ..Tolerance::new(3e-2, 6e-3, 2e-2) };

/// Key heads, value heads, head size, lengths of the samples, and the size of the gates.
type Shape = ([usize; 3], &'static [usize], f32);

/// Samples that begin in the middle of a chunk and with one, short ones and long ones: many runs of chunks.
const RUNS: &[usize] = &[100, 28, 64, 200, 3, 61, 8, 120, 64, 300, 5, 75];

pub const CASES: [Case; 4] = [
    Case {
        op: "delta",
        name: "forward and backward",
        needs: Needs::Any,
        variants: super::F32,
        shapes: &Shapes::<Shape> {
            // Two samples in two chunks, of which the first ends within the second. All kernels take the size but CUDA's.
            small: &[([2, 4, 16], &[70, 13], 1.0)],
            // Lengths around a chunk, samples that begin anywhere, and head sizes up to the largest; rates of 0 and 1, and decays of 0 and
            // of everything.
            more: &[
                ([1, 1, 4], &[1], 1.5),
                ([1, 3, 8], &[63], 1.5),
                ([2, 6, 16], &[64], 1.5),
                ([2, 2, 12], &[65], 1.5),
                ([2, 4, 16], &[200, 1, 3, 60, 64, 40], 1.5),
                ([1, 2, 100], &[70, 31], 1.5),
                ([1, 2, 128], &[150], 1.5),
                ([1, 2, 16], RUNS, 1.5),
                ([1, 6, 8], &[100, 40], 60.0),
            ],
            check: both_ways,
        },
    },
    Case {
        op: "delta",
        name: "forward and backward on matrices",
        needs: Needs::Tiles,
        variants: super::COOP16,
        shapes: &Shapes::<Shape> {
            small: &[],
            more: &[
                ([1, 1, 16], &[1], 1.5),
                ([2, 6, 16], &[64], 1.5),
                ([2, 4, 32], &[200, 1, 3, 60, 64, 40], 1.5),
                ([2, 2, 64], &[65, 127], 1.5),
                ([1, 2, 128], &[70, 31], 1.5),
                ([1, 2, 128], &[330], 1.5),
                ([1, 2, 64], RUNS, 1.5),
                ([1, 6, 16], &[100, 40], 60.0),
            ],
            check: both_ways,
        },
    },
    Case {
        op: "delta",
        name: "forward and backward in CUDA",
        needs: Needs::Cuda,
        variants: super::CUDA,
        shapes: &Shapes::<Shape> {
            small: &[([1, 2, HEAD_SIZE], &[70, 13], 1.0)],
            more: &[
                ([1, 1, HEAD_SIZE], &[1], 1.5),
                ([1, 3, HEAD_SIZE], &[63], 1.5),
                ([2, 2, HEAD_SIZE], &[64], 1.5),
                ([2, 4, HEAD_SIZE], &[65, 127], 1.5),
                ([1, 2, HEAD_SIZE], &[200, 1, 3, 60, 64, 40], 1.5),
                ([1, 2, HEAD_SIZE], &[1000], 1.5),
                ([1, 2, HEAD_SIZE], RUNS, 1.5),
                ([1, 3, HEAD_SIZE], &[100, 40], 60.0),
            ],
            check: both_ways,
        },
    },
    Case {
        op: "delta",
        name: "in passes that continue each other",
        needs: Needs::Any,
        variants: super::F32,
        shapes: &Shapes::<Shape> {
            small: &[],
            more: &[
                ([1, 3, 8], &[1, 1, 1, 1, 1, 1], 1.5),
                ([1, 3, 8], &[65, 1, 1, 2, 1, 3, 1, 64, 1], 1.5),
                ([1, 3, 8], &[63, 70, 1], 1.5),
                ([2, 4, 16], &[1, 1, 1, 1, 1, 1], 1.5),
                ([2, 4, 16], &[65, 1, 1, 2, 1, 3, 1, 64, 1], 1.5),
                ([2, 4, 16], &[63, 70, 1], 1.5),
                ([1, 2, 100], &[1, 1, 1, 1, 1, 1], 1.5),
                ([1, 2, 100], &[65, 1, 1, 2, 1, 3, 1, 64, 1], 1.5),
                ([1, 2, 100], &[63, 70, 1], 1.5),
                ([1, 2, 128], &[1, 1, 1, 1, 1, 1], 1.5),
                ([1, 2, 128], &[65, 1, 1, 2, 1, 3, 1, 64, 1], 1.5),
                ([1, 2, 128], &[63, 70, 1], 1.5),
            ],
            check: carried,
        },
    },
];

/// Inputs of a net.
struct Inputs {
    shape: DeltaNet,
    qkv: Vec<f32>,
    alpha: Vec<f32>,
    beta: Vec<f32>,
    taps: Vec<f32>,
    a: Vec<f32>,
    dt: Vec<f32>,
    dout: Vec<f32>,
}

impl Inputs {
    fn new([key_heads, value_heads, head_size]: [usize; 3], tokens: usize, gates: f32) -> Inputs {
        let shape = DeltaNet { key_heads, value_heads, head_size };
        let scaled = |seed, width: usize, size: f32| -> Vec<f32> {
            values(seed, tokens * width).into_iter().map(|x| size * x).collect()
        };
        Inputs {
            qkv: scaled(1, shape.channels(), 2.0),
            alpha: scaled(2, value_heads, gates),
            beta: scaled(3, value_heads, 2.0 * gates),
            taps: values(4, shape.channels() * 4),
            // From a memory of hundreds of tokens to one of less than a token.
            a: (0..value_heads).map(|head| -0.002 * 4f32.powi(head as i32 % 6)).collect(),
            dt: values(5, value_heads),
            dout: scaled(6, shape.values(), 1.0),
            shape,
        }
    }

    /// Expected output, and gradients of the inputs.
    fn expected(&self, starts: &[u32]) -> (Vec<f64>, Projected) {
        let [taps, a, dt] = [&self.taps, &self.a, &self.dt].map(|x| wide(x));
        let net = Net { shape: self.shape, taps: &taps, a: &a, dt: &dt, eps: EPS.into(), starts };
        let x = Projected { qkv: wide(&self.qkv), alpha: wide(&self.alpha), beta: wide(&self.beta) };
        (net.forward(&x), net.backward(&wide(&self.dout), &x))
    }

    fn frozen(&self, b: &Bench) -> Result<Frozen, GpuError> {
        Frozen::new(b.gpu, &self.taps, &self.a, &self.dt)
    }

    fn delta<'a>(&self, frozen: &'a Frozen, bounds: &'a wgpu::Buffer, tokens: usize) -> Delta<'a> {
        let DeltaNet { key_heads, value_heads, head_size } = self.shape;
        Delta { key_heads, value_heads, head_size, eps: EPS, frozen, bounds, tokens }
    }
}

/// Output and gradients of samples.
fn both_ways(b: &mut Bench, &(heads, lengths, gates): &Shape) -> Result<(), GpuError> {
    // Longer than 60 lines: each buffer of the net has a line.
    let mut bounds: Vec<[u32; 2]> = Vec::new();
    for length in lengths {
        let first = bounds.len() as u32;
        bounds.extend(vec![[first, first + *length as u32]; *length]);
    }
    let tokens = bounds.len();
    let v = Inputs::new(heads, tokens, gates);
    let (channels, inner, value_heads) = (v.shape.channels(), v.shape.values(), v.shape.value_heads);
    let frozen = v.frozen(b)?;
    // Values behind the bounds must not be used.
    let on_device = b.gpu.upload("case", &[&bounds[..], &[[77; 2]; 64]].concat())?;
    let shape = v.delta(&frozen, &on_device, tokens);
    let (qkv, dout) = (b.input(channels, &v.qkv)?, b.input(inner, &v.dout)?);
    let (alpha, beta) = (b.input(value_heads, &v.alpha)?, b.input(value_heads, &v.beta)?);
    let widths = Widths::of(b.gpu, &v.shape);
    let rows = |width: usize| b.output(width, tokens);
    let states = || b.output(widths.states, tokens.div_ceil(CHUNK));
    let (mixed, gates_kept) = (rows(widths.mixed)?, rows(delta::gates_width(value_heads))?);
    let (inverse, wu, before, output) = (rows(widths.inverse)?, rows(widths.wu)?, states()?, rows(inner)?);
    let (dqkv, dalpha, dbeta) = (rows(channels)?, rows(value_heads)?, rows(value_heads)?);
    let (du, dstates, pairs) = (rows(widths.du)?, states()?, rows(widths.pairs.max(4))?);
    let (dmixed, scratch) = (rows(3 * inner)?, rows(inner)?);
    let saved = Saved {
        qkv: qkv.rows(),
        alpha: alpha.rows(),
        beta: beta.rows(),
        mixed: mixed.rows(),
        gates: gates_kept.rows(),
        inverse: inverse.rows(),
        wu: wu.rows(),
        states: before.rows(),
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
    if !b.compares() {
        return Ok(());
    }
    let starts: Vec<u32> = bounds.iter().map(|bound| bound[0]).collect();
    let (expected_output, expected) = v.expected(&starts);
    // On cooperative matrices, operands are f16.
    let [forward, backward] = match b.gpu.kernels().reads_tiles() {
        true if gates > 10.0 => [HALF, HALF_EXTREME],
        true => [HALF; 2],
        false => [OUTPUT, GRADIENT],
    };
    let name = |what: &str| format!("{what}, heads {heads:?} lengths {lengths:?} gates up to {gates}");
    b.expect(name("output"), &output, expected_output, forward);
    b.expect(name("dqkv"), &dqkv, expected.qkv, backward);
    b.expect(name("dalpha"), &dalpha, expected.alpha, backward);
    b.expect(name("dbeta"), &dbeta, expected.beta, backward);
    Ok(())
}

/// One sequence in passes of one token and of more, each of which continues the state of those before.
fn carried(b: &mut Bench, &(heads, passes, gates): &Shape) -> Result<(), GpuError> {
    let all = passes.iter().sum();
    let v = Inputs::new(heads, all, gates);
    let (channels, inner, value_heads) = (v.shape.channels(), v.shape.values(), v.shape.value_heads);
    let (expected, frozen) = (v.expected(&vec![0; all]).0, v.frozen(b)?);
    let carried = Carried::new(b.gpu, channels, inner, v.shape.head_size)?;
    // A sequence before this one left its state.
    b.gpu.write(&carried.state, &vec![7f32; inner * v.shape.head_size]);
    b.gpu.write(&carried.history, &vec![7f32; 4 * channels]);
    let mut past = 0;
    for &tokens in passes {
        let input = |width: usize, x: &[f32]| b.input(width, &x[past * width..][..tokens * width]);
        let qkv = input(channels, &v.qkv)?;
        let (alpha, beta) = (input(value_heads, &v.alpha)?, input(value_heads, &v.beta)?);
        let (widths, rows) = (Widths::f32(&v.shape), |width: usize| b.output(width, tokens));
        let (mixed, gates) = (rows(channels)?, rows(delta::gates_width(value_heads))?);
        let (inverse, wu, output) = (rows(widths.inverse)?, rows(widths.wu)?, rows(inner)?);
        let states = b.output(widths.states, tokens.div_ceil(CHUNK))?;
        let bounds = b.gpu.upload("case", &vec![[0, tokens as u32]; tokens])?;
        let shape = v.delta(&frozen, &bounds, tokens);
        let saved = Saved {
            qkv: qkv.rows(),
            alpha: alpha.rows(),
            beta: beta.rows(),
            mixed: mixed.rows(),
            gates: gates.rows(),
            inverse: inverse.rows(),
            wu: wu.rows(),
            states: states.rows(),
            values: output.rows(),
        };
        let before = b.gpu.upload("case", &[past as u32])?;
        b.run(|rec| delta::forward_carried(rec, &shape, &carried, &before, &saved, output.rows()))?;
        let name = format!("heads {heads:?} in {passes:?}: {tokens} after {past}");
        b.expect(name, &output, expected[past * inner..][..tokens * inner].to_vec(), OUTPUT);
        past += tokens;
    }
    Ok(())
}
