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
use rullama_train::ops::norm_add::coop16 as coop_residual;
use rullama_train::ops::norm_add::coop16::Then;
use rullama_train::ops::pack::Packed;
use rullama_train::ops::rms_norm::Norm;
use rullama_train::ops::rms_norm::coop16::{self as coop_norm, Through};
use rullama_train::ops::row_status::Verdicts;
use rullama_train::reference;
use rullama_train::reference::cross_entropy::Adjusted;

use super::check::{Block, Check, Outcome, Tolerance, run, values, wide};

/// Rounding to f16, relative to the largest value of the row.
pub(super) const HALF: Tolerance = Tolerance::new(5e-4, 1e-3, 1e-3);
const F32: Tolerance = Tolerance::new(2e-6, 1e-5, 1e-6);
pub(super) const EPS: f32 = 1e-6;

/// Rows and widths: less than a matrix, odd, as wide as a model's.
const SHAPES: [(usize, usize); 5] = [(1, 4), (7, 60), (33, 1536), (130, 2112), (16, 5376)];

/// Unpacks to f32, after checking that zeros follow the values.
pub(super) fn unpacked(
    gpu: &Gpu,
    packed: &Packed,
    width: usize,
    height: usize,
    name: &str,
) -> Result<Vec<f64>, Failed> {
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
            run(gpu, |rec| {
                coop_norm::backward_add(rec, &to.rows, (&dy.rows, 0), &x, &norm, height, 0.5, None)
            })?;
            let name = format!("added dx of {what} {name}");
            check.close(&name, width, &leveled(&to.read(gpu, &name)?), &leveled(&added))?;
        }
        passed_on(gpu, &mut check, (height, width), &dy, &norm)?;
    }
    check.done()
}

/// A gradient that passes a norm, is added to the stream, and passes a second norm, or is packed.
fn passed_on(
    gpu: &Gpu,
    check: &mut Check,
    (height, width): (usize, usize),
    dy: &Block,
    norm: &Norm,
) -> Outcome {
    let [x, base, next_x] = [5, 6, 7].map(|seed| values(seed, height * width));
    let (w, next_w) = (wide(&values(2, width)), values(8, width));
    let (dy_values, eps) = (wide(&values(3, height * width)), f64::from(EPS));
    let dx = reference::rms_norm::backward(&dy_values, &wide(&x), Some(&w), width, eps);
    let sum: Vec<f64> = wide(&base).iter().zip(&dx).map(|(base, dx)| 0.5 * (base + dx)).collect();
    let through = reference::rms_norm::backward(&sum, &wide(&next_x), Some(&wide(&next_w)), width, eps);
    let [x, next_x] = [&x, &next_x].map(|x| Block::input(gpu, (0, 0), width, x));
    let next = Norm::new(gpu, "norm", Some(&next_w), width, EPS)?;
    let (dx, packed) = (Packed::new(gpu, "dx", height, width)?, Packed::new(gpu, "x", height, width)?);
    run(gpu, |rec| packed.pack(rec, next_x.view(), width, height))?;
    for (what, x2, norm2, expected) in [
        ("norm", Act::from(next_x.rows.clone()), &next, &through),
        ("norm of packed x", Act::tiled(packed, None), &next, &through),
        ("nothing", Act::from(next_x.rows.clone()), &Norm::identity(width), &sum),
    ] {
        let name = format!("[{height}, {width}] through {what}");
        make_stale(gpu, &dx, width, height);
        let to = Block::in_out(gpu, (0, 0), width, &base);
        let next = Through { dx: &dx, x: &x2, norm: norm2 };
        let act = x.rows.clone().into();
        run(gpu, |rec| {
            coop_norm::backward_add(rec, &to.rows, (&dy.rows, 0), &act, norm, height, 0.5, Some(next))
        })?;
        check.close(&format!("added, {name}"), width, &to.read(gpu, &name)?, &sum)?;
        check.close(&name, width, &unpacked(gpu, &dx, width, height, &name)?, expected)?;
    }
    Ok(())
}

/// A norm added to the residual stream, and the packed operand.
pub fn residuals(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("norm_add", HALF);
    let mut exact = Check::new("norm_add, in f32", F32);
    // Narrow rows with and without a norm, wide ones, whose kernels are long, with one of the two.
    let cases = SHAPES.into_iter().enumerate().flat_map(|(i, shape)| [true, false].map(|n| (i, shape, n)));
    for (i, (height, width), normed) in cases {
        if width > 60 && normed == i.is_multiple_of(2) {
            continue;
        }
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
        let stored = Packed::new(gpu, "x", height, width)?;
        let fresh = Act::tiled(stored.clone(), None).packed_by_reader(x.rows.clone());
        let sources = [
            ("in f32", Act::from(x.rows.clone()), expected(&wide(&values(1, height * width)))),
            ("packed", Act::tiled(packed_x, None), expected(&halves)),
            ("packed on the way", fresh, expected(&halves)),
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
                        (&x, 0),
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
            let kept = Packed::new(gpu, "sum", height, width)?;
            go(Some(&y.rows), Then::NormOfTiles(&next_norm, &kept))?;
            let rounded = unpacked(gpu, &kept, width, height, "kept")?;
            check.close(&name("the sum as tiles"), width, &rounded, &sum)?;
            same(&name("the rounded sum"), &y.read(gpu, &name("the rounded sum"))?, &rounded)?;
            let normed = reference::rms_norm::forward(&rounded, Some(&wide(&next)), width, f64::from(EPS));
            let found = unpacked(gpu, &packed, width, height, "norm")?;
            check.close(&name("the rounded sum's norm"), width, &found, &normed)?;
            go(None, Then::Sum)?;
            let found = unpacked(gpu, &packed, width, height, "sum")?;
            check.close(&name("the sum packed"), width, &found, &sum)?;
        }
        same(
            &format!("[{height}, {width}]: x packed on the way"),
            &read(gpu, &stored, width, height)?,
            &halves,
        )?;
    }
    exact.done()?;
    check.done()
}

/// Unpacks to f32.
pub(super) fn read(gpu: &Gpu, packed: &Packed, width: usize, height: usize) -> Result<Vec<f64>, Failed> {
    let y = Block::output(gpu, (0, 0), width, height);
    run(gpu, |rec| packed.unpack(rec, y.view(), width, height))?;
    y.read(gpu, "tiles")
}

pub(super) fn same(name: &str, found: &[f64], expected: &[f64]) -> Result<(), Failed> {
    match found.iter().zip(expected).position(|(found, expected)| found.to_bits() != expected.to_bits()) {
        Some(i) => Err(format!("{name}: {} at {i}, expected exactly {}", found[i], expected[i]).into()),
        None => Ok(()),
    }
}

/// The gated unit of f32, of what is packed on the way and of tiles, and its gradients, for rows that overflow and underflow f16.
pub fn gated(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("gated, packed", HALF);
    let cases = SHAPES.into_iter().zip([1e-6, 3.0, 50.0, 3e3, 1e5]);
    let cases = cases.flat_map(|case| Activation::ALL.map(|a| (case, a)));
    // More rows than a dispatch has workgroups along an axis.
    let long = ((65_552, 4), 3.0);
    for (((height, width), size), activation) in cases.chain([(long, Activation::default())]) {
        let name = |what: &str| format!("[{height}, {width}] {activation:?}, values up to {size}, {what}");
        let [gate, up, dy] =
            [1, 2, 3].map(|seed| values(seed, height * width).iter().map(|x| size * x).collect::<Vec<_>>());
        let rows = [&gate, &up].map(|x| Block::input(gpu, (0, 0), width, x).rows);
        let room = || Packed::new(gpu, "gate or up", height, width).expect("it is small");
        let [first, stored] = [(); 2].map(|()| [room(), room()]);
        let halves = |tiles: &[Packed; 2]| -> Result<[Vec<f64>; 2], Failed> {
            Ok([read(gpu, &tiles[0], width, height)?, read(gpu, &tiles[1], width, height)?])
        };
        run(gpu, |rec| {
            first.iter().zip(&rows).for_each(|(tiles, rows)| tiles.pack(rec, rows.all(), width, height));
        })?;
        let rounded = halves(&first)?;
        let fresh = [0, 1].map(|i| Act::tiled(stored[i].clone(), None).packed_by_reader(rows[i].clone()));
        let passing = fresh.clone().map(Act::pass_by);
        let exact = [wide(&gate), wide(&up)];
        let mut all = Vec::new();
        for (what, [gate, up], acts) in [
            ("in f32", &exact, rows.map(Act::from)),
            ("of a pass", &rounded, passing),
            ("packed on the way", &rounded, fresh.clone()),
            ("packed", &rounded, fresh.clone().map(Act::keep)),
        ] {
            if what == "packed on the way" {
                same(&name("not stored"), &halves(&stored)?.concat(), &vec![0.0; 2 * height * width])?;
            }
            let y = room();
            run(gpu, |rec| coop_gated::forward(rec, &y, &acts[0], &acts[1], activation, height))?;
            let found = unpacked(gpu, &y, width, height, &name(what))?;
            leveled(
                &mut check,
                &name(what),
                width,
                &found,
                &reference::gated::forward(gate, up, activation),
            )?;
            all.push(found);
        }
        same(&name("gate and up"), &halves(&stored)?.concat(), &rounded.concat())?;
        same(&name("y of a pass"), &all[1], &all[2])?;
        same(&name("y of tiles"), &all[3], &all[2])?;

        let [gate, up] = &rounded;
        let (dgate, dup) = reference::gated::backward(&wide(&dy), gate, up, activation);
        let dy = Block::input(gpu, (0, 0), width, &dy).rows;
        run(gpu, |rec| coop_gated::backward(rec, [&stored[0], &stored[1]], &dy, activation, height))?;
        for (what, tiles, expected) in [("dgate", &stored[0], dgate), ("dup", &stored[1], dup)] {
            leveled(&mut check, &name(what), width, &unpacked(gpu, tiles, width, height, what)?, &expected)?;
        }
    }
    check.done()
}

/// Compares values of any size.
fn leveled(
    check: &mut Check,
    name: &str,
    width: usize,
    found: &[f64],
    expected: &[f64],
) -> Result<(), Failed> {
    let level = expected.iter().fold(0.0, |most: f64, x| most.max(x.abs())).recip();
    let [found, expected] = [found, expected].map(|x| x.iter().map(|x| level * x).collect::<Vec<_>>());
    check.close(name, width, &found, &expected)
}

/// Losses, and gradients of logits.
pub fn cross_entropy(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("cross_entropy, packed", HALF);
    for (height, vocab, softcap, temperature) in
        [(1, 8, None, 1.0), (7, 1004, Some(30.0), 1.5), (33, 2048, Some(30.0), 1.0), (16, 132, None, 0.7)]
    {
        let name = format!("rows={height} V={vocab} softcap={softcap:?} temperature={temperature}");
        let logits: Vec<f32> = values(1, height * vocab).iter().map(|x| 40.0 * x).collect();
        let targets: Vec<u32> = (0..height).map(|n| ((n * 77 + 1) * (vocab - 1) % vocab) as u32).collect();
        let cap = Adjusted { softcap: softcap.map(f64::from), temperature: f64::from(temperature) };
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
            temperature,
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
