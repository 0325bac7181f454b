//! Gates of attention's output, and of a shared expert's.

use rullama_train::base::config::Activation;
use rullama_train::gpu::Gpu;
use rullama_train::ops::delta::{self, Delta, Frozen};
use rullama_train::ops::experts::shared;
use rullama_train::ops::output_gate;
use rullama_train::ops::pass::{Pass, Scratch};
use rullama_train::ops::rms_norm::Norm;
use rullama_train::reference::{gated, rms_norm};

use super::check::{Block, Check, Outcome, Tolerance, run, values, wide};

/// An exponential, a quotient and two products.
const GATES: Tolerance = Tolerance { norm: 5e-7, relative: 1e-6, absolute: 1e-6 };

/// Those of a norm besides.
const NORMED: Tolerance = Tolerance { norm: 2e-6, relative: 2e-6, absolute: 1e-5 };

/// Queries and gates taken apart, gates applied, and gradients put together again.
pub fn output_gates(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("output gates", GATES);
    let scratch = Scratch::for_products(gpu, None)?;
    for (tokens, heads, size) in [(1, 1, 4), (7, 3, 20), (65, 6, 64)] {
        let name = format!("T={tokens} heads={heads} K={size}");
        let width = heads * size;
        let both: Vec<f32> = values(1, 2 * tokens * width).iter().map(|x| 8.0 * x).collect();
        let [x, dy, dqueries] = [2, 3, 4].map(|seed| values(seed, tokens * width));
        let half = |i: usize| -> Vec<f64> {
            wide(&both).chunks(size).skip(i).step_by(2).flatten().copied().collect()
        };
        let (queries_expected, gates) = (half(0), half(1));
        let y_expected = gated::sigmoid_forward(&wide(&x), &gates);
        let (dx_expected, dgates) = gated::sigmoid_backward(&wide(&dy), &wide(&x), &gates);
        let pairs = wide(&dqueries);
        let dboth_expected: Vec<f64> =
            pairs.chunks(size).zip(dgates.chunks(size)).flat_map(|(q, g)| [q, g].concat()).collect();
        let both = Block::input(gpu, (0, 0), 2 * width, &both);
        let [x, dy, dqueries] = [&x, &dy, &dqueries].map(|x| Block::input(gpu, (0, 0), width, x));
        let [queries, y, dx] = [(); 3].map(|()| Block::output(gpu, (0, 0), width, tokens));
        let dboth = Block::output(gpu, (0, 0), 2 * width, tokens);
        let act = |block: &Block| block.rows.clone().into();
        run(gpu, |rec| {
            let p = &mut Pass::new(rec, tokens, &scratch);
            output_gate::split(p, &act(&queries), &act(&both), heads);
            output_gate::forward(p, &act(&y), &act(&x), &act(&both), heads);
            let gradients = [&act(&dx), &act(&dboth)];
            output_gate::backward(p, gradients, &act(&dy), &act(&x), &act(&both), heads);
            output_gate::join(p, &act(&dboth), &act(&dqueries), heads);
        })?;
        check.close(&format!("queries {name}"), width, &queries.read(gpu, &name)?, &queries_expected)?;
        check.close(&format!("y {name}"), width, &y.read(gpu, &name)?, &y_expected)?;
        check.close(&format!("dx {name}"), width, &dx.read(gpu, &name)?, &dx_expected)?;
        check.close(&format!("dboth {name}"), 2 * width, &dboth.read(gpu, &name)?, &dboth_expected)?;
    }
    check.done()
}

/// Backward of a delta net's norm and gates, by head. The gates reach those whose exponential overflows.
pub fn normed(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("norm and gates of a delta net", NORMED);
    for (tokens, value_heads, head_size) in [(1, 1, 4), (7, 3, 20), (3, 6, 100), (65, 2, 128)] {
        let name = format!("T={tokens} Hv={value_heads} K={head_size}");
        let width = value_heads * head_size;
        let [x, dy] = [1, 2].map(|seed| values(seed, tokens * width));
        let gate: Vec<f32> = values(3, tokens * width).iter().map(|x| 120.0 * x * x * x).collect();
        let weight = values(4, head_size);
        let (wide_x, wide_w, wide_gate) = (wide(&x), wide(&weight), wide(&gate));
        let n = rms_norm::forward(&wide_x, Some(&wide_w), head_size, 1e-6);
        let (dgate_expected, dn) = gated::backward(&wide(&dy), &wide_gate, &n, Activation::Silu);
        let dx_expected = rms_norm::backward(&dn, &wide_x, Some(&wide_w), head_size, 1e-6);
        let frozen = Frozen::new(gpu, &[0.0; 4], &[0.0], &[0.0])?;
        let bounds = &gpu.upload("bounds", &[[0u32; 2]])?;
        let delta =
            Delta { key_heads: 1, value_heads, head_size, eps: 1e-6, frozen: &frozen, bounds, tokens };
        let norm = Norm::new(gpu, "norm", Some(&weight), head_size, 1e-6)?;
        let [x, dy, gate] = [&x, &dy, &gate].map(|x| Block::input(gpu, (0, 0), width, x));
        let [dgate, dx] = [(); 2].map(|()| Block::output(gpu, (0, 0), width, tokens));
        let (gradients, inputs) = ([&dgate.rows, &dx.rows], [&gate.rows, &x.rows]);
        run(gpu, |rec| delta::norm::backward(rec, &delta, &norm, gradients, &dy.rows, inputs))?;
        check.close(&format!("dgate {name}"), width, &dgate.read(gpu, &name)?, &dgate_expected)?;
        check.close(&format!("dx {name}"), width, &dx.read(gpu, &name)?, &dx_expected)?;
    }
    check.done()
}

/// The gated output of a shared expert added to that of the others, and the gradients of output and score. Rows of the output are
/// longer than its columns, as in decoding.
pub fn shared_experts(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("shared experts", GATES);
    let scratch = Scratch::for_products(gpu, None)?;
    for (tokens, width) in [(1, 4), (7, 20), (65, 300), (300, 64)] {
        let name = format!("T={tokens} D={width}");
        let scores: Vec<f32> = values(1, tokens).iter().map(|x| 8.0 * x).collect();
        let [x, routed, dy] = [2, 3, 4].map(|seed| values(seed, tokens * width));
        let mut y_expected = gated::rows_forward(&wide(&x), &wide(&scores));
        y_expected.iter_mut().zip(wide(&routed)).for_each(|(y, routed)| *y += routed);
        let (dx_expected, dscores_expected) = gated::rows_backward(&wide(&dy), &wide(&x), &wide(&scores));
        let (scores, x) = (Block::input(gpu, (0, 0), 1, &scores), Block::input(gpu, (0, 8), width, &x));
        let [routed, dy] = [&routed, &dy].map(|x| Block::input(gpu, (0, 0), width, x));
        let [y, dx] = [(); 2].map(|()| Block::output(gpu, (0, 0), width, tokens));
        let dscores = Block::output(gpu, (0, 0), 1, tokens);
        let act = |block: &Block| block.rows.clone().into();
        run(gpu, |rec| {
            let p = &mut Pass::new(rec, tokens, &scratch);
            shared::forward(p, &act(&y), &act(&routed), &act(&x), &act(&scores));
            shared::backward_scores(p, &act(&dscores), &act(&dy), &act(&x), &act(&scores));
            shared::backward(p, &act(&dx), &act(&dy), &act(&scores));
        })?;
        check.close(&format!("y {name}"), width, &y.read(gpu, &name)?, &y_expected)?;
        check.close(&format!("dx {name}"), width, &dx.read(gpu, &name)?, &dx_expected)?;
        let (dscores, size) = (dscores.read(gpu, &name)?, (width as f64).sqrt());
        check.close_to(&format!("dscores {name}"), 1, &dscores, &dscores_expected, size)?;
    }
    check.done()
}
