//! Kernels that write packed operands: f16, rows scaled by powers of two. They do not need cooperative matrices themselves.

use half::f16;
use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::base::config::Activation;
use rullama_train::gpu::Gpu;
use rullama_train::ops::Rows;
use rullama_train::ops::act::Act;
use rullama_train::ops::cross_entropy::Chunk;
use rullama_train::ops::cross_entropy::coop16 as coop_cross_entropy;
use rullama_train::ops::gated::coop16 as coop_gated;
use rullama_train::ops::heads::coop16 as coop_heads;
use rullama_train::ops::heads::coop16_backward as coop_heads_backward;
use rullama_train::ops::norm_add::coop16 as coop_residual;
use rullama_train::ops::norm_add::coop16::Then;
use rullama_train::ops::pack::Packed;
use rullama_train::ops::rms_norm::Norm;
use rullama_train::ops::rms_norm::coop16 as coop_norm;
use rullama_train::ops::rope;
use rullama_train::ops::row_status::Verdicts;
use rullama_train::reference;

use super::check::{Block, Check, Outcome, Tolerance, run, scaled, values, wide};

/// Rounding to f16, relative to the largest value of the row.
const HALF: Tolerance = Tolerance { norm: 5e-4, relative: 1e-3, absolute: 1e-3 };
const F32: Tolerance = Tolerance { norm: 2e-6, relative: 1e-5, absolute: 1e-6 };
const EPS: f32 = 1e-6;

/// Rows and widths: less than a matrix, odd, as wide as a model's.
const SHAPES: [(usize, usize); 5] = [(1, 4), (7, 60), (33, 1536), (130, 2112), (16, 5376)];

/// Unpacks to f32, after checking that zeros follow the values.
fn unpacked(gpu: &Gpu, packed: &Packed, width: usize, height: usize, name: &str) -> Result<Vec<f64>, Failed> {
    nothing_behind(gpu, packed, width, height, name)?;
    let y = Block::output(gpu, (0, 0), width, height);
    run(gpu, |rec| packed.unpack(rec, y.view(), width, height))?;
    y.read(gpu, name)
}

/// Fills whole matrices, up to a multiple of 64 columns.
pub(super) fn make_stale(gpu: &Gpu, packed: &Packed, width: usize, height: usize) {
    let stale = vec![f16::NAN; width.next_multiple_of(64) * height.next_multiple_of(16)];
    gpu.write(packed.bind(0).buffer, &stale);
}

/// Products read zeros past the last column and row.
pub(super) fn nothing_behind(
    gpu: &Gpu,
    packed: &Packed,
    width: usize,
    height: usize,
    name: &str,
) -> Result<(), Failed> {
    let (tiles, across) = (height.div_ceil(16), width.next_multiple_of(64));
    let halves: Vec<f16> = block_on(gpu.read(packed.bind(0).buffer, across * tiles * 16))?;
    let place = |t: usize, c: usize| ((c / 16) * tiles + t / 16) * 256 + t % 16 * 16 + c % 16;
    let all = (0..tiles * 16).flat_map(|t| (0..across).map(move |c| (t, c)));
    let mut behind = all.filter(|&(t, c)| t >= height || c >= width);
    match behind.find(|&(t, c)| halves[place(t, c)] != f16::ZERO) {
        Some((t, c)) => Err(format!("{name}: {} is left at row {t}, column {c}", halves[place(t, c)]).into()),
        None => Ok(()),
    }
}

/// RMSNorm; the second row is all zero.
pub fn norms(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("rms_norm, packed", HALF);
    for (height, width) in SHAPES {
        let name = format!("[{height}, {width}]");
        let (mut x, w) = (values(1, height * width), values(2, width));
        x.iter_mut().skip(width).take(width).for_each(|x| *x = 0.0);
        let expected = reference::rms_norm::forward(&wide(&x), Some(&wide(&w)), width, f64::from(EPS));
        let norm = Norm::new(gpu, "norm", Some(&w), width, EPS)?;
        let dy = values(3, height * width);
        let expected_dx =
            reference::rms_norm::backward(&wide(&dy), &wide(&x), Some(&wide(&w)), width, f64::from(EPS));
        // The gradient of a row of zeros is 1/√ε times larger than the others.
        let leveled = |dx: &[f64]| -> Vec<f64> {
            let size = |row: &[f64]| row.iter().fold(1e-30, |most: f64, x| most.max(x.abs()));
            let rows = dx.chunks(width).zip(expected_dx.chunks(width));
            rows.flat_map(|(row, expected)| row.iter().map(|x| x / size(expected)).collect::<Vec<_>>())
                .collect()
        };
        let [x, dy] = [&x, &dy].map(|x| Block::input(gpu, (0, 0), width, x));
        let [y, dx] = [(); 2].map(|()| Packed::new(gpu, "normed", height, width).expect("it is small"));
        run(gpu, |rec| {
            coop_norm::forward(rec, &y, &x.rows, &norm, height);
            coop_norm::backward(rec, &dx, &dy.rows, &x.rows.clone().into(), &norm, height);
        })?;
        check.close(&name, width, &unpacked(gpu, &y, width, height, &name)?, &expected)?;
        let found = unpacked(gpu, &dx, width, height, &name)?;
        check.close(&format!("dx {name}"), width, &leveled(&found), &leveled(&expected_dx))?;
        // Repeats with packed input, up to its rounding.
        let packed = Packed::new(gpu, "x", height, width)?;
        run(gpu, |rec| {
            packed.pack(rec, x.view(), width, height);
            let x = Act::tiled(packed.clone(), None);
            coop_norm::backward(rec, &dx, &dy.rows, &x, &norm, height);
        })?;
        let found = unpacked(gpu, &dx, width, height, &name)?;
        check.close(&format!("dx of packed x {name}"), width, &leveled(&found), &leveled(&expected_dx))?;
        let base = values(4, height * width);
        let added: Vec<f64> =
            base.iter().zip(&expected_dx).map(|(base, dx)| 0.5 * (f64::from(*base) + dx)).collect();
        for (what, x) in [("x", Act::from(x.rows.clone())), ("packed x", Act::tiled(packed, None))] {
            let to = Block::in_out(gpu, (0, 0), width, &base);
            run(gpu, |rec| coop_norm::backward_add(rec, &to.rows, (&dy.rows, 0), &x, &norm, height, 0.5))?;
            let name = format!("added dx of {what} {name}");
            check.close(&name, width, &leveled(&to.read(gpu, &name)?), &leveled(&added))?;
        }
    }
    check.done()
}

/// A norm added to the residual stream, and the packed operand.
pub fn residuals(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("norm_add", HALF);
    let mut exact = Check::new("norm_add, in f32", F32);
    for ((height, width), normed) in SHAPES.into_iter().flat_map(|shape| [(shape, true), (shape, false)]) {
        let [x, base, w, next] = [(1, height * width), (2, height * width), (3, width), (4, width)]
            .map(|(seed, count)| values(seed, count));
        let scale = 0.75;
        let expected = |x: &[f64]| -> Vec<f64> {
            let term = match normed {
                true => reference::rms_norm::forward(x, Some(&wide(&w)), width, f64::from(EPS)),
                false => x.to_vec(),
            };
            term.iter().zip(&base).map(|(n, base)| scale * (n + f64::from(*base))).collect()
        };
        let norm = match normed {
            true => Norm::new(gpu, "norm", Some(&w), width, EPS)?,
            false => Norm::identity(width),
        };
        let next_norm = Norm::new(gpu, "norm", Some(&next), width, EPS)?;
        let [x, base] = [&x, &base].map(|x| Block::input(gpu, (0, 0), width, x));
        let (packed_x, packed) =
            (Packed::new(gpu, "x", height, width)?, Packed::new(gpu, "sum", height, width)?);
        run(gpu, |rec| packed_x.pack(rec, x.view(), width, height))?;
        let halves = unpacked(gpu, &packed_x, width, height, "x")?;
        let sources = [
            ("in f32", Act::from(x.rows.clone()), expected(&wide(&values(1, height * width)))),
            ("packed", Act::tiled(packed_x, None), expected(&halves)),
        ];
        for (what, x, sum) in sources {
            let name = |then: &str| format!("[{height}, {width}], normed={normed}, x {what}, {then}");
            let y = Block::output(gpu, (0, 0), width, height);
            let go = |y: Option<&Rows>, then| {
                run(gpu, |rec| {
                    coop_residual::forward(
                        rec,
                        y,
                        (&packed, then),
                        &x,
                        &norm,
                        &base.rows,
                        scale as f32,
                        height,
                    );
                })
            };
            go(Some(&y.rows), Then::Norm(&next_norm))?;
            exact.close(&name("the sum"), width, &y.read(gpu, &name("the sum"))?, &sum)?;
            let normed = reference::rms_norm::forward(&sum, Some(&wide(&next)), width, f64::from(EPS));
            check.close(
                &name("its norm"),
                width,
                &unpacked(gpu, &packed, width, height, "norm")?,
                &normed,
            )?;
            go(None, Then::Sum)?;
            let halves = unpacked(gpu, &packed, width, height, "sum")?;
            check.close(&name("the sum packed"), width, &halves, &sum)?;
        }
    }
    exact.done()?;
    check.done()
}

/// The gated unit and its gradients, for rows that overflow and underflow f16.
pub fn gated(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("gated, packed", HALF);
    let cases = SHAPES.into_iter().zip([1e-6, 3.0, 50.0, 3e3, 1e5]);
    for (((height, width), size), activation) in cases.flat_map(|case| Activation::ALL.map(|a| (case, a))) {
        let name = format!("[{height}, {width}] {activation:?}, values up to {size}");
        let [gate, up, dy] =
            [1, 2, 3].map(|seed| values(seed, height * width).iter().map(|x| size * x).collect::<Vec<_>>());
        let y_expected = reference::gated::forward(&wide(&gate), &wide(&up), activation);
        let (dgate_expected, dup_expected) =
            reference::gated::backward(&wide(&dy), &wide(&gate), &wide(&up), activation);
        let [gate, up, dy] = [&gate, &up, &dy].map(|x| Block::input(gpu, (0, 0), width, x));
        let [y, dgate, dup] =
            [(); 3].map(|()| Packed::new(gpu, "gated", height, width).expect("it is small"));
        run(gpu, |rec| {
            coop_gated::forward(rec, &y, &gate.rows, &up.rows, activation, height);
            coop_gated::backward(rec, [&dgate, &dup], &dy.rows, &gate.rows, &up.rows, activation, height);
        })?;
        for (what, packed, expected) in
            [("y", &y, y_expected), ("dgate", &dgate, dgate_expected), ("dup", &dup, dup_expected)]
        {
            let found = unpacked(gpu, packed, width, height, &name)?;
            let level = expected.iter().fold(0.0, |most: f64, x| most.max(x.abs())).recip();
            let leveled = |x: &[f64]| x.iter().map(|x| level * x).collect::<Vec<_>>();
            check.close(&format!("{what} {name}"), width, &leveled(&found), &leveled(&expected))?;
        }
    }
    check.done()
}

/// Losses, and gradients of logits.
pub fn cross_entropy(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("cross_entropy, packed", HALF);
    for (height, vocab, softcap) in
        [(1, 8, None), (7, 1004, Some(30.0)), (33, 2048, Some(30.0)), (16, 132, None)]
    {
        let name = format!("rows={height} V={vocab} softcap={softcap:?}");
        let logits: Vec<f32> = values(1, height * vocab).iter().map(|x| 40.0 * x).collect();
        let targets: Vec<u32> = (0..height).map(|n| ((n * 77 + 1) * (vocab - 1) % vocab) as u32).collect();
        let cap = softcap.map(f64::from);
        let coefficients: Vec<f32> = (0..height).map(|n| 0.25 * (1.0 + (n % 3) as f32)).collect();
        let wide_logits = wide(&logits);
        let losses_expected = reference::cross_entropy::forward(&wide_logits, &targets, cap, vocab);
        let expected =
            reference::cross_entropy::backward(&wide(&coefficients), &wide_logits, &targets, cap, vocab);
        let logits = Block::input(gpu, (0, 0), vocab, &logits);
        let targets = gpu.upload("targets", &targets)?;
        let losses = Block::output(gpu, (0, 0), height.next_multiple_of(4), 1);
        let packed = Packed::new(gpu, "dlogits", height, vocab)?;
        let chunk = Chunk {
            logits: &logits.rows,
            rows: height,
            vocab,
            softcap,
            targets: (&targets, 0),
            losses: (&losses.rows.buffer, 0),
        };
        let hidden = Block::input(gpu, (0, 0), 4, &vec![1.0; 4 * height]);
        let verdicts = gpu.buffer("verdicts", (4 * height) as u64)?;
        let verdicts = Verdicts { hidden: &hidden.rows, buffer: (&verdicts, 0) };
        let coefficients = gpu.upload("coefficients", &coefficients)?;
        run(gpu, |rec| coop_cross_entropy::backward(rec, &chunk, &verdicts, &packed, &coefficients))?;
        let found = losses.read(gpu, &name)?;
        check.close(&format!("loss {name}"), 1, &found[..height], &losses_expected)?;
        gpu.write(&losses.rows.buffer, &vec![f32::NAN; height]);
        run(gpu, |rec| coop_cross_entropy::forward(rec, &chunk, &verdicts))?;
        let alone = losses.read(gpu, &name)?;
        check.close(&format!("loss alone {name}"), 1, &alone[..height], &losses_expected)?;
        check.close(&name, vocab, &unpacked(gpu, &packed, vocab, height, &name)?, &expected)?;
    }
    check.done()
}

/// Norm and rotary embedding of heads, all with one scale.
pub fn heads(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("heads forward", HALF);
    for (tokens, heads, size, turned, normed) in [
        (1, 1, 16, 16, true),
        (7, 3, 32, 0, true),
        (33, 2, 256, 256, true),
        (33, 2, 256, 64, true),
        (17, 1, 512, 512, true),
        (33, 3, 128, 128, false),
        (7, 2, 64, 24, false),
        (7, 2, 64, 0, false),
    ] {
        let name = format!("T={tokens} heads={heads} K={size} turned={turned} normed={normed}");
        let (x, w) = (values(1, tokens * heads * size), values(2, size));
        let positions: Vec<u32> = (0..tokens as u32).map(|t| t % 13).collect();
        let frequencies: Vec<f64> =
            (0..turned / 2).map(|i| 1e4f64.powf(-2.0 * i as f64 / turned as f64)).collect();
        let mut expected = match normed {
            true => reference::rms_norm::forward(&wide(&x), Some(&wide(&w)), size, f64::from(EPS)),
            false => wide(&x),
        };
        if turned > 0 {
            expected = reference::rope::forward(&expected, &positions, &frequencies, heads);
        }
        let norm = match normed {
            true => Norm::new(gpu, "norm", Some(&w), size, EPS)?,
            false => Norm::identity(size),
        };
        let table = rope::Table::new(gpu, &frequencies, 1.0, 13)?;
        let positions = gpu.upload("positions", &positions)?;
        let x = Block::input(gpu, (0, 0), heads * size, &x);
        let packed = Packed::new(gpu, "heads", tokens, heads * size)?;
        let turn = (turned > 0).then_some((&positions, &table));
        run(gpu, |rec| coop_heads::forward(rec, &packed, &x.rows, &norm, turn, heads, tokens))?;
        // No factors are written, because the scale is the norm's.
        let (tiles, width) = (tokens.div_ceil(16), heads * size);
        let halves: Vec<f16> = block_on(gpu.read(packed.bind(0).buffer, width / 16 * tiles * 256))?;
        let at = |t: usize, c: usize| ((c / 16) * tiles + t / 16) * 256 + t % 16 * 16 + c % 16;
        let found: Vec<f64> =
            (0..tokens * width).map(|i| f64::from(halves[at(i / width, i % width)])).collect();
        check.close(&name, width, &scaled(1.0 / norm.scale, &found), &expected)?;
    }
    check.done()
}

/// The gradients of heads: columns that are no multiple of 64, more heads than a workgroup takes at once, without weights.
pub fn heads_backward(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("heads backward", HALF);
    for (tokens, heads, size, turned, weighted, normed) in [
        (1, 1, 16, 16, true, true),
        (7, 3, 32, 0, true, true),
        (33, 8, 256, 256, true, true),
        (33, 8, 256, 64, true, true),
        (17, 3, 512, 512, false, true),
        (5, 20, 16, 16, true, true),
        (33, 3, 128, 128, false, false),
        (5, 3, 64, 24, true, false),
        (5, 20, 64, 0, false, false),
    ] {
        let name =
            format!("T={tokens} heads={heads} K={size} turned={turned} weighted={weighted} normed={normed}");
        let [x, dy] = [1, 2].map(|seed| values(seed, tokens * heads * size));
        let w = weighted.then(|| values(3, size));
        let positions: Vec<u32> = (0..tokens as u32).map(|t| t % 13).collect();
        let frequencies: Vec<f64> =
            (0..turned / 2).map(|i| 1e4f64.powf(-2.0 * i as f64 / turned as f64)).collect();
        let straight = match turned {
            0 => wide(&dy),
            _ => reference::rope::backward(&wide(&dy), &positions, &frequencies, heads),
        };
        let weights = w.as_deref().map(wide);
        let expected = match normed {
            true => {
                reference::rms_norm::backward(&straight, &wide(&x), weights.as_deref(), size, f64::from(EPS))
            }
            false => straight,
        };
        let norm = match normed {
            true => Norm::new(gpu, "norm", w.as_deref(), size, EPS)?,
            false => Norm::identity(size),
        };
        let table = rope::Table::new(gpu, &frequencies, 1.0, 13)?;
        let positions = gpu.upload("positions", &positions)?;
        let width = heads * size;
        let [x, dy] = [&x, &dy].map(|x| Block::input(gpu, (0, 0), width, x));
        let packed = Packed::new(gpu, "gradients of heads", tokens, width)?;
        make_stale(gpu, &packed, width, tokens);
        let turn = (turned > 0).then_some((&positions, &table));
        run(gpu, |rec| {
            coop_heads_backward::backward(rec, &packed, &dy.rows, &x.rows, &norm, turn, heads, tokens)
        })?;
        check.close(&name, width, &unpacked(gpu, &packed, width, tokens, &name)?, &expected)?;
    }
    check.done()
}
