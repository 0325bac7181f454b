//! Norms and rotary embeddings of heads, packed as operands of attention and of products: see `half`.

use half::f16;
use pollster::block_on;
use rullama_train::gpu::Gpu;
use rullama_train::ops::act::Act;
use rullama_train::ops::heads;
use rullama_train::ops::heads::coop16 as coop_heads;
use rullama_train::ops::heads::coop16_backward as coop_heads_backward;
use rullama_train::ops::pack::Packed;
use rullama_train::ops::pass::{Pass, Scratch};
use rullama_train::ops::rms_norm::Norm;
use rullama_train::ops::rope;
use rullama_train::reference;

use super::check::{Block, Check, Outcome, run, scaled, values, wide};
use super::half::{EPS, HALF, make_stale, read, same, unpacked};

/// The norm of heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    None,
    OfHeads,
    /// One norm takes all heads of a token together.
    OfRows,
    /// Each head has a norm, whose weights stand behind the rotary embedding.
    Behind,
}

/// Norm and rotary embedding of heads, all with one scale.
pub fn forward(gpu: &Gpu) -> Outcome {
    use Kind::{Behind, None as Without, OfHeads, OfRows};
    let mut check = Check::new("heads forward", HALF);
    for (tokens, heads, size, turned, kind) in [
        (1, 1, 16, 16, OfHeads),
        (7, 3, 32, 0, OfHeads),
        (33, 2, 256, 256, OfHeads),
        (33, 2, 256, 64, OfHeads),
        (17, 1, 512, 512, OfHeads),
        (33, 3, 128, 128, Without),
        (7, 2, 64, 24, Without),
        (7, 2, 64, 0, Without),
        (65_552, 9, 16, 0, Without), // more tokens than a dispatch has workgroups along an axis
        (7, 2, 32, 32, OfRows),
        (5, 20, 128, 128, OfRows), // more heads than a workgroup takes at once
        (33, 3, 96, 0, OfRows),
        (33, 3, 128, 128, Behind),
        (5, 20, 64, 64, Behind),
    ] {
        let name = format!("T={tokens} heads={heads} K={size} turned={turned} norm={kind:?}");
        let width = if kind == OfRows { heads * size } else { size };
        let (x, w) = (values(1, tokens * heads * size), values(2, width));
        let positions: Vec<u32> = (0..tokens as u32).map(|t| t % 13).collect();
        let frequencies: Vec<f64> =
            (0..turned / 2).map(|i| 1e4f64.powf(-2.0 * i as f64 / turned as f64)).collect();
        let normed = |x: &[f64]| match kind {
            Without => x.to_vec(),
            _ => reference::rms_norm::forward(x, Some(&wide(&w)), width, f64::from(EPS)),
        };
        let rotated = |x: &[f64]| match turned {
            0 => x.to_vec(),
            _ => reference::rope::forward(x, &positions, &frequencies, heads),
        };
        let expected = |x: &[f64]| match kind {
            Behind => normed(&rotated(x)),
            _ => rotated(&normed(x)),
        };
        let norm = match kind {
            Without => Norm::identity(size),
            _ => Norm::new(gpu, "norm", Some(&w), width, EPS)?,
        };
        let norm = Norm { of_rows: kind == OfRows, behind_rotation: kind == Behind, ..norm };
        let table = rope::Table::new(gpu, &frequencies, 1.0, 13)?;
        let on_device = gpu.upload("positions", &positions)?;
        let (tiles, width) = (tokens.div_ceil(16), heads * size);
        let rows = Block::input(gpu, (0, 0), width, &x).rows;
        let [first, stored] = [(); 2].map(|()| Packed::new(gpu, "x", tokens, width).expect("it is small"));
        run(gpu, |rec| first.pack(rec, rows.all(), width, tokens))?;
        let rounded = read(gpu, &first, width, tokens)?;
        let fresh = Act::tiled(stored.clone(), None).packed_by_reader(rows.clone());
        let sources = [
            ("in f32", rows.into(), expected(&wide(&x))),
            ("packed on the way", fresh.clone(), expected(&rounded)),
            ("packed", fresh.keep(), expected(&rounded)),
        ];
        let mut all = Vec::new();
        for (what, x, expected) in sources {
            let packed = Packed::new(gpu, "heads", tokens, width)?;
            let turn = (turned > 0).then_some((&on_device, &table));
            run(gpu, |rec| coop_heads::forward(rec, &packed, &x, &norm, turn, heads, tokens))?;
            // No factors are written, because the scale is the norm's.
            let halves: Vec<f16> = block_on(gpu.read(packed.bind(0).buffer, width / 16 * tiles * 256))?;
            let at = |t: usize, c: usize| ((c / 16) * tiles + t / 16) * 256 + t % 16 * 16 + c % 16;
            let found: Vec<f64> =
                (0..tokens * width).map(|i| f64::from(halves[at(i / width, i % width)])).collect();
            check.close(&format!("{name}, {what}"), width, &scaled(1.0 / norm.scale, &found), &expected)?;
            all.push(found);
        }
        same(&format!("{name}: x packed on the way"), &read(gpu, &stored, width, tokens)?, &rounded)?;
        same(&format!("{name}: heads of tiles"), &all[2], &all[1])?;
    }
    check.done()
}

/// The gradients of heads: columns that are no multiple of 64, more heads than a workgroup takes at once, without weights.
pub fn backward(gpu: &Gpu) -> Outcome {
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
        (65_552, 9, 16, 0, false, false), // see above
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
        let expected = |x: &[f64]| match normed {
            true => reference::rms_norm::backward(&straight, x, weights.as_deref(), size, f64::from(EPS)),
            false => straight.clone(),
        };
        let norm = match normed {
            true => Norm::new(gpu, "norm", w.as_deref(), size, EPS)?,
            false => Norm::identity(size),
        };
        let table = rope::Table::new(gpu, &frequencies, 1.0, 13)?;
        let positions = gpu.upload("positions", &positions)?;
        let width = heads * size;
        let [rows, dy] = [&x, &dy].map(|x| Block::input(gpu, (0, 0), width, x));
        let tiles = Packed::new(gpu, "x", tokens, width)?;
        run(gpu, |rec| tiles.pack(rec, rows.view(), width, tokens))?;
        let rounded = read(gpu, &tiles, width, tokens)?;
        let sources = [(Act::from(rows.rows.clone()), wide(&x)), (Act::tiled(tiles, None), rounded)];
        for (x, values) in sources {
            let packed = Packed::new(gpu, "gradients of heads", tokens, width)?;
            make_stale(gpu, &packed, width, tokens);
            let turn = (turned > 0).then_some((&positions, &table));
            run(gpu, |rec| {
                coop_heads_backward::backward(rec, &packed, &dy.rows, &x, &norm, turn, heads, tokens)
            })?;
            let found = unpacked(gpu, &packed, width, tokens, &name)?;
            check.close(&name, width, &found, &expected(&values))?;
        }
    }
    check.done()
}

/// The gradients of keys whose norm takes all heads of a token together, beside values without a norm, into f32 and into tiles.
pub fn backward_of_rows(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("heads backward, norms of rows", HALF);
    let scratch = Scratch::for_products(gpu, None)?;
    for (tokens, count, size) in [(7, 3, 32), (33, 8, 64)] {
        let width = count * size;
        let [x, dkeys, dvalues] = [1, 2, 3].map(|seed| values(seed, tokens * width));
        let w = values(4, width);
        let positions: Vec<u32> = (0..tokens as u32).map(|t| t % 13).collect();
        let frequencies: Vec<f64> =
            (0..size / 2).map(|i| 1e4f64.powf(-2.0 * i as f64 / size as f64)).collect();
        let straight = reference::rope::backward(&wide(&dkeys), &positions, &frequencies, count);
        let expected =
            reference::rms_norm::backward(&straight, &wide(&x), Some(&wide(&w)), width, f64::from(EPS));
        let norms = [&Norm::new(gpu, "norm", Some(&w), width, EPS)?, &Norm::identity(size)];
        let table = rope::Table::new(gpu, &frequencies, 1.0, 13)?;
        let positions = gpu.upload("positions", &positions)?;
        let x: Act = Block::input(gpu, (0, 0), width, &x).rows.into();
        for in_tiles in [false, true] {
            let name = format!("T={tokens} heads={count} K={size} in tiles={in_tiles}");
            let dy = [&dkeys, &dvalues].map(|dy| Act::from(Block::in_out(gpu, (0, 0), width, dy).rows));
            let blocks = [(); 2].map(|()| Block::output(gpu, (0, 0), width, tokens));
            let packed = [(); 2].map(|()| Packed::new(gpu, "gradients", tokens, width).expect("it is small"));
            let dx = [0, 1].map(|i| match in_tiles {
                true => Act::tiled(packed[i].clone(), None),
                false => blocks[i].rows.clone().into(),
            });
            run(gpu, |rec| {
                let p = &mut Pass::new(rec, tokens, &scratch);
                let turn = Some((&positions, &table));
                heads::backward_both(p, [&dx[0], &dx[1]], [&dy[0], &dy[1]], [&x, &x], norms, turn, count);
            })?;
            for (i, expected) in [&expected, &wide(&dvalues)].into_iter().enumerate() {
                let found = match in_tiles {
                    true => unpacked(gpu, &packed[i], width, tokens, &name)?,
                    false => blocks[i].read(gpu, &name)?,
                };
                check.close(&name, width, &found, expected)?;
            }
        }
    }
    check.done()
}
