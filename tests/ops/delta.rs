//! The gated delta net between its projections.

use rullama_train::base::config::DeltaNet;
use rullama_train::gpu::Gpu;
use rullama_train::ops::Rows;
use rullama_train::ops::delta::{self, CHUNK, Carried, Delta, Frozen, Gradients, Saved, Widths};
use rullama_train::reference::delta::net::{Net, Projected};

use libtest_mimic::Failed;

use super::check::{Block, Check, Outcome, Tolerance, run, values, wide};

/// Sums of decays' logarithms reach −100, and their exponential has an error of 2⁻²⁴ of that.
const OUTPUT: Tolerance = Tolerance { norm: 5e-6, relative: 0.0, absolute: 2e-5 };
/// A few products more.
const GRADIENT: Tolerance = Tolerance { norm: 2e-5, relative: 0.0, absolute: 1e-4 };

/// Tolerance with operands in f16, as those of attention on cooperative matrices.
const HALF: Tolerance = Tolerance { norm: 3e-3, relative: 6e-3, absolute: 6e-3 };

/// Tolerance with gates of extreme size: their gradients are small differences of sums.
const HALF_EXTREME: Tolerance = Tolerance { norm: 3e-2, relative: 6e-3, absolute: 2e-2 };

/// Heads, head size, and the lengths of the samples.
struct Case {
    key_heads: usize,
    value_heads: usize,
    size: usize,
    starts: Vec<u32>,
    ends: Vec<u32>,
}

impl Case {
    fn of(key_heads: usize, value_heads: usize, size: usize, lengths: &[usize]) -> Case {
        let (mut starts, mut ends) = (Vec::new(), Vec::new());
        for length in lengths {
            let first = starts.len();
            starts.extend(std::iter::repeat_n(first as u32, *length));
            ends.extend(std::iter::repeat_n((first + length) as u32, *length));
        }
        Case { key_heads, value_heads, size, starts, ends }
    }

    fn tokens(&self) -> usize {
        self.starts.len()
    }

    fn channels(&self) -> usize {
        (2 * self.key_heads + self.value_heads) * self.size
    }

    fn inner(&self) -> usize {
        self.value_heads * self.size
    }

    /// Rows of known values, as many as tokens or chunks.
    fn output(&self, gpu: &Gpu, width: usize) -> Block {
        Block::output(gpu, (0, 0), width, self.tokens())
    }

    fn shape(&self) -> DeltaNet {
        DeltaNet { key_heads: self.key_heads, value_heads: self.value_heads, head_size: self.size }
    }

    fn states(&self, gpu: &Gpu, widths: &Widths) -> Block {
        Block::output(gpu, (0, 0), widths.states, self.tokens().div_ceil(CHUNK))
    }
}

/// Inputs of a case.
struct Values {
    qkv: Vec<f32>,
    alpha: Vec<f32>,
    beta: Vec<f32>,
    taps: Vec<f32>,
    a: Vec<f32>,
    dt: Vec<f32>,
    dout: Vec<f32>,
}

impl Values {
    fn of(case: &Case, gate_size: f32) -> Values {
        let (tokens, heads) = (case.tokens(), case.value_heads);
        let scaled =
            |seed, len, size: f32| values(seed, len).into_iter().map(|x| size * x).collect::<Vec<f32>>();
        Values {
            qkv: scaled(1, tokens * case.channels(), 2.0),
            alpha: scaled(2, tokens * heads, gate_size),
            beta: scaled(3, tokens * heads, 2.0 * gate_size),
            taps: values(4, case.channels() * 4),
            // From a memory of hundreds of tokens to one of less than a token.
            a: (0..heads).map(|h| -0.002 * 4f32.powi(h as i32 % 6)).collect(),
            dt: values(5, heads),
            dout: values(6, tokens * case.inner()),
        }
    }
}

/// Expected output, and gradients of the inputs.
fn expected(case: &Case, v: &Values, eps: f64) -> (Vec<f64>, Projected) {
    let [taps, a, dt] = [&v.taps, &v.a, &v.dt].map(|x| wide(x));
    let net = Net { shape: case.shape(), taps: &taps, a: &a, dt: &dt, eps, starts: &case.starts };
    let x = Projected { qkv: wide(&v.qkv), alpha: wide(&v.alpha), beta: wide(&v.beta) };
    (net.forward(&x), net.backward(&wide(&v.dout), &x))
}

fn check_case(gpu: &Gpu, case: &Case, gate_size: f32, checks: &mut [Check; 2]) -> Outcome {
    let v = Values::of(case, gate_size);
    let name = format!(
        "Hk={} Hv={} K={} T={}, gates up to {gate_size}",
        case.key_heads,
        case.value_heads,
        case.size,
        case.tokens()
    );
    let bounds: Vec<[u32; 2]> = case.starts.iter().zip(&case.ends).map(|(s, e)| [*s, *e]).collect();
    let frozen = Frozen::new(gpu, &v.taps, &v.a, &v.dt)?;
    let shape = Delta {
        key_heads: case.key_heads,
        value_heads: case.value_heads,
        head_size: case.size,
        eps: 1e-6,
        frozen: &frozen,
        // The guard after the bounds must not be used.
        bounds: &gpu.upload("bounds", &[bounds, vec![[77; 2]; 64]].concat())?,
        tokens: case.tokens(),
    };
    let (heads, inner, channels) = (case.value_heads, case.inner(), case.channels());
    let input = |width: usize, x: &[f32]| Block::input(gpu, (0, 0), width, x);
    let [qkv, alpha, beta] = [input(channels, &v.qkv), input(heads, &v.alpha), input(heads, &v.beta)];
    let dout = input(inner, &v.dout);
    let widths = Widths::of(gpu, &case.shape());
    let [mixed, gates] = [widths.mixed, delta::gates_width(heads)].map(|w| case.output(gpu, w));
    let [inverse, wu, o, scratch] = [widths.inverse, widths.wu, inner, inner].map(|w| case.output(gpu, w));
    let [states, dstates] = [case.states(gpu, &widths), case.states(gpu, &widths)];
    let rows = |block: &'_ Block| -> Rows { block.rows.clone() };
    let all = [&qkv, &alpha, &beta, &mixed, &gates, &inverse, &wu, &states, &scratch].map(rows);
    let [qkv, alpha, beta, mixed, gates, inverse, wu, states, values] = &all;
    let saved = Saved { qkv, alpha, beta, mixed, gates, inverse, wu, states, values };
    run(gpu, |rec| delta::forward(rec, &shape, &saved, &o.rows))?;

    let dqkv = case.output(gpu, channels);
    let [dalpha, dbeta] = [heads; 2].map(|w| case.output(gpu, w));
    let [du, pairs, dmixed] = [widths.du, widths.pairs.max(4), 3 * inner].map(|w| case.output(gpu, w));
    let d = Gradients {
        dqkv: &dqkv.rows,
        dalpha: &dalpha.rows,
        dbeta: &dbeta.rows,
        du: &du.rows,
        dstates: &dstates.rows,
        pairs: &pairs.rows,
        dmixed: &dmixed.rows,
    };
    run(gpu, |rec| delta::backward(rec, &shape, &saved, &dout.rows, &d))?;

    let (expected_o, expected) = expected(case, &v, 1e-6);
    let [forward, backward] = checks;
    forward.close(&name, inner, &o.read(gpu, &name)?, &expected_o)?;
    backward.close(&format!("dqkv {name}"), channels, &dqkv.read(gpu, &name)?, &expected.qkv)?;
    backward.close(&format!("dbeta {name}"), heads, &dbeta.read(gpu, &name)?, &expected.beta)?;
    backward.close(&format!("dalpha {name}"), heads, &dalpha.read(gpu, &name)?, &expected.alpha)
}

/// Samples that begin in the middle of a chunk and with one, short ones and long ones: many runs of chunks.
const RUNS: [usize; 12] = [100, 28, 64, 200, 3, 61, 8, 120, 64, 300, 5, 75];

/// Lengths around a chunk, samples that begin anywhere, and head sizes up to the largest.
pub fn forward_and_backward(gpu: &Gpu) -> Outcome {
    let mut checks = [Check::new("delta forward", OUTPUT), Check::new("delta backward", GRADIENT)];
    let cases = [
        Case::of(1, 1, 4, &[1]),
        Case::of(1, 3, 8, &[63]),
        Case::of(2, 6, 16, &[64]),
        Case::of(2, 2, 12, &[65]),
        Case::of(2, 4, 16, &[200, 1, 3, 60, 64, 40]),
        Case::of(1, 2, 100, &[70, 31]),
        Case::of(1, 2, 128, &[150]),
        Case::of(1, 2, 16, &RUNS),
    ];
    for case in cases {
        check_case(gpu, &case, 1.5, &mut checks)?;
    }
    let [forward, backward] = checks;
    forward.done()?;
    backward.done()
}

/// Rates of 0 and 1, and decays of 0 and of everything.
pub fn extreme_gates(gpu: &Gpu) -> Outcome {
    let mut checks = [Check::new("delta forward", OUTPUT), Check::new("delta backward", GRADIENT)];
    check_case(gpu, &Case::of(1, 6, 8, &[100, 40]), 60.0, &mut checks)?;
    let [forward, backward] = checks;
    forward.done()?;
    backward.done()
}

/// On cooperative matrices: each head size that they support, and gates of extreme size.
pub fn on_matrices(gpu: &Gpu) -> Outcome {
    let mut checks = [Check::new("delta forward", HALF), Check::new("delta backward", HALF)];
    for case in [
        Case::of(1, 1, 16, &[1]),
        Case::of(2, 6, 16, &[64]),
        Case::of(2, 4, 32, &[200, 1, 3, 60, 64, 40]),
        Case::of(2, 2, 64, &[65, 127]),
        Case::of(1, 2, 128, &[70, 31]),
        Case::of(1, 2, 128, &[330]),
        Case::of(1, 2, 64, &RUNS),
    ] {
        check_case(gpu, &case, 1.5, &mut checks)?;
    }
    let [forward, backward] = checks;
    forward.done()?;
    backward.done()?;
    let mut checks = [Check::new("delta forward", HALF), Check::new("delta backward", HALF_EXTREME)];
    check_case(gpu, &Case::of(1, 6, 16, &[100, 40]), 60.0, &mut checks)?;
    let [forward, backward] = checks;
    forward.done()?;
    backward.done()
}

/// In CUDA: samples that begin and end anywhere, one token, the lengths around a chunk, and gates of extreme size.
pub fn in_cuda(gpu: &Gpu) -> Outcome {
    let mut checks = [Check::new("delta forward", HALF), Check::new("delta backward", HALF)];
    for (key_heads, value_heads, lengths) in [
        (1, 1, &[1][..]),
        (1, 3, &[63]),
        (2, 2, &[64]),
        (2, 4, &[65, 127]),
        (1, 2, &[200, 1, 3, 60, 64, 40]),
        (1, 2, &[1000]),
        (1, 2, &RUNS),
    ] {
        let case = Case::of(key_heads, value_heads, delta::cuda::HEAD_SIZE, lengths);
        check_case(gpu, &case, 1.5, &mut checks)?;
    }
    let [forward, backward] = checks;
    forward.done()?;
    backward.done()?;
    let mut checks = [Check::new("delta forward", HALF), Check::new("delta backward", HALF_EXTREME)];
    check_case(gpu, &Case::of(1, 3, delta::cuda::HEAD_SIZE, &[100, 40]), 60.0, &mut checks)?;
    let [forward, backward] = checks;
    forward.done()?;
    backward.done()
}

/// One sequence in passes of one token and of more, each of which continues the state of those before.
pub fn carried(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("delta carried", OUTPUT);
    for (key_heads, heads, size) in [(1, 3, 8), (2, 4, 16), (1, 2, 100), (1, 2, 128)] {
        for passes in [&[1, 1, 1, 1, 1, 1][..], &[65, 1, 1, 2, 1, 3, 1, 64, 1], &[63, 70, 1]] {
            let case = Case::of(key_heads, heads, size, &[passes.iter().sum()]);
            let v = Values::of(&case, 1.5);
            let found = in_passes(gpu, &case, &v, passes)?;
            let name = format!("Hk={key_heads} Hv={heads} K={size} in {passes:?}");
            check.close(&name, case.inner(), &found, &expected(&case, &v, 1e-6).0)?;
        }
    }
    check.done()
}

fn in_passes(gpu: &Gpu, case: &Case, v: &Values, passes: &[usize]) -> Result<Vec<f64>, Failed> {
    let (heads, inner, channels) = (case.value_heads, case.inner(), case.channels());
    let frozen = Frozen::new(gpu, &v.taps, &v.a, &v.dt)?;
    let carried = Carried::new(gpu, channels, inner, case.size)?;
    // A sequence before this one left its state.
    gpu.write(&carried.state, &vec![7f32; inner * case.size]);
    gpu.write(&carried.history, &vec![7f32; 4 * channels]);
    let (mut past, mut found) = (0, Vec::new());
    for &tokens in passes {
        let own = Case::of(case.key_heads, heads, case.size, &[tokens]);
        let input = |width: usize, x: &[f32]| {
            Block::input(gpu, (0, 0), width, &x[past * width..][..tokens * width]).rows
        };
        let (qkv, alpha, beta) = (input(channels, &v.qkv), input(heads, &v.alpha), input(heads, &v.beta));
        let rows = |width: usize| own.output(gpu, width).rows;
        let (mixed, gates) = (rows(channels), rows(delta::gates_width(heads)));
        let widths = Widths::f32(&own.shape());
        let (inverse, wu, states) = (rows(widths.inverse), rows(widths.wu), own.states(gpu, &widths).rows);
        let o = own.output(gpu, inner);
        let bounds = gpu.upload("bounds", &vec![[0, tokens as u32]; tokens])?;
        let (key_heads, head_size) = (case.key_heads, case.size);
        let shape = Delta {
            key_heads,
            value_heads: heads,
            head_size,
            eps: 1e-6,
            frozen: &frozen,
            bounds: &bounds,
            tokens,
        };
        let saved = Saved {
            qkv: &qkv,
            alpha: &alpha,
            beta: &beta,
            mixed: &mixed,
            gates: &gates,
            inverse: &inverse,
            wu: &wu,
            states: &states,
            values: &o.rows,
        };
        let before = gpu.upload("past", &[past as u32])?;
        run(gpu, |rec| delta::forward_carried(rec, &shape, &carried, &before, &saved, &o.rows))?;
        found.extend(o.read(gpu, "a pass")?);
        past += tokens;
    }
    Ok(found)
}
