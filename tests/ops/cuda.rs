//! Long products by CUDA's kernels: every format, odd sizes, rows from 2^-40 to 2^40, adapters, sums of several products. And the
//! panels that they read, which every device can make that computes in f16.

use half::f16;
use pollster::block_on;
use rullama_train::base::formats::GgmlType;
use rullama_train::gpu::Gpu;
use rullama_train::ops::linear::coop16::LowRank;
use rullama_train::ops::linear::cuda::{Panels, Stretch, product_bytes};
use rullama_train::ops::pack::Packed;
use rullama_train::reference;

use super::check::{Block, Check, Held, Outcome, run, scaled, sum, values, wide};
use super::coop::{HALF, leveled, packed, rows};
use super::linear::{random_weight, widths};

/// (T, which of [`widths`] is K, N, rank)
const CASES: [(usize, usize, usize, Option<usize>); 5] = [
    (1, 0, 68, None),
    (33, 2, 131, Some(16)),
    (256, 1, 200, Some(32)),
    (257, 2, 330, Some(80)),
    (515, 1, 516, Some(16)),
];

fn panels(gpu: &Gpu, t: usize, n: usize, k: usize) -> Result<Panels, libtest_mimic::Failed> {
    Ok(Panels::new(gpu, 2 * product_bytes(t, n, k, 96))?)
}

/// `y = x·Wᵀ + s·z·Bᵀ` of two matrices that read the same x.
pub fn forward(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("linear forward, CUDA", HALF);
    for ty in GgmlType::SUPPORTED {
        for (t, width, n, rank) in CASES {
            let k = widths(ty)[width];
            let name = format!("{ty:?} T={t} K={k} N={n} R={rank:?}");
            let (weight, w) = random_weight(gpu, ty, n, k, false);
            let x = rows(1, t, k, true);
            let mut expected = reference::linear::forward(&wide(&x), &w, k);
            let x = packed(gpu, &Block::input(gpu, (4, 8), k, &x), k, t)?;
            let [y, plain] = [(); 2].map(|()| Block::output(gpu, (8, 4), n, t));
            let without = expected.clone();
            // z of two matrices side by side; this matrix is the second.
            let own = rank.unwrap_or(16);
            let (z, b) = (rows(2, t, 16 + own, true), values(3, n * own));
            let (z_rows, held) = (Block::input(gpu, (4, 8), 16 + own, &z), Held::new(gpu, own, &b));
            let packed_z = Packed::new(gpu, "test", t, 16 + own)?;
            run(gpu, |rec| packed_z.pack_alike(rec, z_rows.view(), 16 + own, t, &x))?;
            let lora = rank.map(|rank| {
                let second: Vec<f32> = z.chunks(16 + rank).flat_map(|row| row[16..].to_vec()).collect();
                let term = reference::linear::forward(&wide(&second), &wide(&b), rank);
                expected = sum(&expected, &scaled(0.75, &term));
                LowRank { z: &packed_z, z_offset: 16, matrix: &held.param, first_row: 0, rank, scale: 0.75 }
            });
            let panels = panels(gpu, t, n, k)?;
            run(gpu, |rec| {
                let mut stretch = Stretch::new(&panels);
                stretch.forward(rec, y.view(), &x, &weight, lora.as_ref(), t);
                stretch.forward(rec, plain.view(), &x, &weight, None, t);
                stretch.finish(rec);
            })?;
            for (y, expected) in [(&y, &expected), (&plain, &without)] {
                check.close(&name, n, &leveled(&y.read(gpu, &name)?, n), &leveled(expected, n))?;
            }
        }
    }
    check.done()
}

/// `dx = dy·W + u·A`, written or added, then once more added.
pub fn backward(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("linear backward, CUDA", HALF);
    for ty in GgmlType::SUPPORTED {
        for (i, (t, width, n, rank)) in CASES.into_iter().enumerate() {
            let (k, accumulate) = (widths(ty)[width], i % 2 == 1);
            let name = format!("{ty:?} T={t} K={k} N={n} R={rank:?} accumulate={accumulate}");
            let (weight, w) = random_weight(gpu, ty, n, k, false);
            let (dy, before) = (rows(1, t, n, true), rows(2, t, k, true));
            let once = reference::linear::backward(&wide(&dy), &w, k);
            let mut expected = sum(&once, &once);
            let dx = match accumulate {
                true => Block::in_out(gpu, (8, 4), k, &before),
                false => Block::output(gpu, (8, 4), k, t),
            };
            if accumulate {
                expected = sum(&expected, &wide(&before));
            }
            let dy = packed(gpu, &Block::input(gpu, (4, 8), n, &dy), n, t)?;
            let own = rank.unwrap_or(16);
            let (u, a) = (rows(3, t, own, true), values(4, (16 + own) * k));
            let (u_rows, held) = (Block::input(gpu, (4, 8), own, &u), Held::new(gpu, k, &a));
            let packed_u = Packed::new(gpu, "test", t, own)?;
            run(gpu, |rec| packed_u.pack_alike(rec, u_rows.view(), own, t, &dy))?;
            let lora = rank.map(|rank| {
                let own = wide(&a[16 * k..]);
                expected = sum(&expected, &reference::linear::backward(&wide(&u), &own, k));
                LowRank { z: &packed_u, z_offset: 0, matrix: &held.param, first_row: 16, rank, scale: 1.0 }
            });
            let panels = panels(gpu, t, n, k)?;
            run(gpu, |rec| {
                let mut stretch = Stretch::new(&panels);
                stretch.backward(rec, dx.view(), &dy, &weight, lora.as_ref(), t, accumulate);
                stretch.backward(rec, dx.view(), &dy, &weight, None, t, true);
                stretch.finish(rec);
            })?;
            check.close(&name, k, &leveled(&dx.read(gpu, &name)?, k), &leveled(&expected, k))?;
        }
    }
    check.done()
}

/// Operands of one scratch, one after the other, in one stretch: each product has the rows and factors of its own.
pub fn one_scratch(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("linear backward of two operands, CUDA", HALF);
    let (t, n, k) = (257, 96, 160);
    let (weight, w) = random_weight(gpu, GgmlType::F32, n, k, false);
    let (first, second) = (rows(1, t, n, true), rows(2, t, n, false));
    let expected = [&first, &second].map(|dy| reference::linear::backward(&wide(dy), &w, k));
    let blocks = [&first, &second].map(|dy| Block::input(gpu, (4, 8), n, dy));
    let results = [(); 2].map(|()| Block::output(gpu, (8, 4), k, t));
    let (scratch, panels) = (Packed::new(gpu, "test", t, n)?, panels(gpu, t, n, k)?);
    run(gpu, |rec| {
        let mut stretch = Stretch::new(&panels);
        for (dy, dx) in blocks.iter().zip(&results) {
            scratch.pack(rec, dy.view(), n, t);
            stretch.backward(rec, dx.view(), &scratch, &weight, None, t, false);
        }
        stretch.finish(rec);
    })?;
    check.close("first", k, &leveled(&results[0].read(gpu, "first")?, k), &leveled(&expected[0], k))?;
    check.close("second", k, &results[1].read(gpu, "second")?, &expected[1])?;
    check.done()
}

/// Panels hold the operands' values in f16, swizzled, and zeros behind them.
pub fn operands(gpu: &Gpu) -> Outcome {
    for ty in GgmlType::SUPPORTED {
        for (t, width, n, _) in CASES {
            let k = widths(ty)[width];
            let (weight, w) = random_weight(gpu, ty, n, k, false);
            let x: Vec<f32> = values(1, t * k);
            let packed = packed(gpu, &Block::input(gpu, (4, 8), k, &x), k, t)?;
            let y = Block::output(gpu, (8, 4), n, t);
            let panels = panels(gpu, t, n, k)?;
            let mut stretch = Stretch::new(&panels);
            run(gpu, |rec| stretch.forward(rec, y.view(), &packed, &weight, None, t))?;
            let found: Vec<u16> = block_on(gpu.read(panels.buffer(), panels.buffer().size() as usize / 2))?;
            let found: Vec<f64> = found.into_iter().map(|bits| f16::from_bits(bits).to_f64()).collect();
            let factor = |row: &[f32]| {
                let largest = row.iter().fold(0f32, |most, x| most.max(x.abs()));
                2f64.powi(-(f64::from(largest).log2().floor() as i32 + 1))
            };
            let scaled: Vec<f64> = x
                .chunks(k)
                .flat_map(|row| row.iter().map(|x| f64::from(*x) * factor(row)).collect::<Vec<_>>())
                .collect();
            let padded = t.next_multiple_of(16);
            equal(&format!("x of {ty:?}"), &found, [t, k, padded], &scaled)?;
            let behind = (k.div_ceil(64) * padded + 256) * 64;
            equal(&format!("{ty:?}"), &found[behind..], [n, k, n.next_multiple_of(128)], &w)?;
        }
    }
    Ok(())
}

/// Compares panels of `[height, width]` in `rows` rows with values.
fn equal(name: &str, panels: &[f64], [height, width, rows]: [usize; 3], expected: &[f64]) -> Outcome {
    for (row, col) in (0..height).flat_map(|row| (0..width.next_multiple_of(64)).map(move |col| (row, col))) {
        let chunk = (col % 64 / 8) ^ (row % 8);
        let found = panels[(col / 64 * rows + row) * 64 + chunk * 8 + col % 8];
        let value = if col < width { expected[row * width + col] } else { 0.0 };
        if (found - value).abs() > value.abs() / 1024.0 + 1e-7 {
            return Err(format!("{name}: row {row}, column {col} is {found}, expected {value}").into());
        }
    }
    Ok(())
}
