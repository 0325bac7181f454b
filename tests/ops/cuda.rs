//! Long products by CUDA's kernel: every format, odd sizes, rows from 2^-40 to 2^40, adapters, matrices in parts, sums of several
//! products. And the panels that it reads, which every device can make that computes in f16.

use half::f16;
use pollster::block_on;
use rullama_train::base::formats::GgmlType;
use rullama_train::gpu::Gpu;
use rullama_train::ops::linear::coop16::LowRank;
use rullama_train::ops::linear::cuda::{self, Panels, Way, product_bytes};
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

fn panels(gpu: &Gpu, n: usize, k: usize) -> Result<Panels, libtest_mimic::Failed> {
    Ok(Panels::new(gpu, product_bytes(n, k, 96))?)
}

/// Room for 128 rows of the matrix only.
fn in_parts(gpu: &Gpu, n: usize, k: usize) -> Result<Panels, libtest_mimic::Failed> {
    Ok(Panels::new(gpu, product_bytes(128, k, 0) + product_bytes(n.max(k), 96, 0))?)
}

/// `y = x·Wᵀ + s·z·Bᵀ`, and without the adapter in parts.
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
            let (whole, parts) = (panels(gpu, n, k)?, in_parts(gpu, n, k)?);
            run(gpu, |rec| {
                cuda::forward(rec, &whole, y.view(), &x, &weight, 1.0, lora.as_ref(), t);
                cuda::forward(rec, &parts, plain.view(), &x, &weight, 1.0, None, t);
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
            let (whole, parts) = (panels(gpu, n, k)?, in_parts(gpu, n, k)?);
            run(gpu, |rec| {
                cuda::backward(rec, &whole, dx.view(), &dy, &weight, 1.0, lora.as_ref(), t, accumulate);
                cuda::backward(rec, &parts, dx.view(), &dy, &weight, 1.0, None, t, true);
            })?;
            check.close(&name, k, &leveled(&dx.read(gpu, &name)?, k), &leveled(&expected, k))?;
        }
    }
    check.done()
}

/// Long sums with few results: they are cut into parts.
pub fn split(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("linear with split sums, CUDA", HALF);
    let (t, n, k, rank) = (300, 132, 2560, 32);
    let (weight, w) = random_weight(gpu, GgmlType::Q4_K, n, k, false);
    let (x, z, b) = (rows(1, t, k, true), rows(2, t, rank, true), values(3, n * rank));
    let term = reference::linear::forward(&wide(&z), &wide(&b), rank);
    let expected = sum(&reference::linear::forward(&wide(&x), &w, k), &term);
    let x = packed(gpu, &Block::input(gpu, (4, 8), k, &x), k, t)?;
    let (z_rows, held) = (Block::input(gpu, (4, 8), rank, &z), Held::new(gpu, rank, &b));
    let (packed_z, y) = (Packed::new(gpu, "test", t, rank)?, Block::output(gpu, (8, 4), n, t));
    let panels = panels(gpu, n, k)?;
    run(gpu, |rec| {
        packed_z.pack_alike(rec, z_rows.view(), rank, t, &x);
        let lora = LowRank { z: &packed_z, z_offset: 0, matrix: &held.param, first_row: 0, rank, scale: 1.0 };
        cuda::forward(rec, &panels, y.view(), &x, &weight, 1.0, Some(&lora), t);
    })?;
    check.close("forward", n, &leveled(&y.read(gpu, "forward")?, n), &leveled(&expected, n))?;

    let (dy, weight_back) = (rows(4, t, k, true), random_weight(gpu, GgmlType::Q4_K, k, 256, false));
    let expected = reference::linear::backward(&wide(&dy), &weight_back.1, 256);
    let before = rows(5, t, 256, true);
    let expected = sum(&expected, &wide(&before));
    let dy = packed(gpu, &Block::input(gpu, (4, 8), k, &dy), k, t)?;
    let (dx, panels) = (Block::in_out(gpu, (8, 4), 256, &before), self::panels(gpu, k, 256)?);
    run(gpu, |rec| cuda::backward(rec, &panels, dx.view(), &dy, &weight_back.0, 1.0, None, t, true))?;
    check.close("backward", 256, &leveled(&dx.read(gpu, "backward")?, 256), &leveled(&expected, 256))?;
    check.done()
}

/// Panels hold the matrix in f16, 64 rows and columns each, the sixteenths of a row swizzled, and zeros behind it. Those of the adapter's matrix
/// follow.
pub fn operands(gpu: &Gpu) -> Outcome {
    let z = Packed::new(gpu, "test", 1, 16)?;
    for ty in GgmlType::SUPPORTED {
        for (_, width, n, rank) in CASES {
            let k = widths(ty)[width];
            let (weight, w) = random_weight(gpu, ty, n, k, false);
            let own = rank.unwrap_or(16);
            // A holds the rows of two matrices; this matrix's are the second.
            let (a, b) = (values(4, (16 + own) * k), values(3, n * own));
            let (held_a, held_b) = (Held::new(gpu, k, &a), Held::new(gpu, own, &b));
            let lora = |matrix, first_row| {
                rank.map(|rank| LowRank { z: &z, z_offset: 0, matrix, first_row, rank, scale: 0.75 })
            };
            let panels = panels(gpu, n, k)?;
            let (mut forward, mut backward) = (0, 0);
            run(gpu, |rec| {
                let b = lora(&held_b.param, 0);
                forward = cuda::prepare(rec, &panels, Way::Forward, &weight, 0.5, b.as_ref());
            })?;
            expect(gpu, &format!("W of {ty:?}"), (&panels, 0), [n, k], |row, col| 0.5 * w[row * k + col])?;
            let of_b = |row, col| 0.75 * f64::from(b[row * own + col]);
            expect(gpu, &format!("B beside {ty:?}"), (&panels, forward), [n, rank.unwrap_or(0)], of_b)?;
            run(gpu, |rec| {
                let a = lora(&held_a.param, 16);
                backward = cuda::prepare(rec, &panels, Way::Backward, &weight, 2.0, a.as_ref());
            })?;
            expect(gpu, &format!("Wᵀ of {ty:?}"), (&panels, 0), [k, n], |row, col| 2.0 * w[col * k + row])?;
            let of_a = |row, col| 0.75 * f64::from(a[(16 + col) * k + row]);
            expect(gpu, &format!("Aᵀ beside {ty:?}"), (&panels, backward), [k, rank.unwrap_or(0)], of_a)?;
        }
    }
    Ok(())
}

/// Compares the panels of a matrix `[rows, summed]`, from a byte on, with values.
fn expect(
    gpu: &Gpu,
    name: &str,
    (panels, start): (&Panels, u64),
    [rows, summed]: [usize; 2],
    value: impl Fn(usize, usize) -> f64,
) -> Outcome {
    let found: Vec<u16> = block_on(gpu.read(panels.buffer(), panels.buffer().size() as usize / 2))?;
    let across = summed.div_ceil(64);
    for (row, col) in
        (0..rows.next_multiple_of(64)).flat_map(|row| (0..64 * across).map(move |col| (row, col)))
    {
        let eight = ((col / 8) ^ row) % 8;
        let at =
            start as usize / 2 + (row / 64 * across + col / 64) * 4096 + row % 64 * 64 + eight * 8 + col % 8;
        let found = f16::from_bits(found[at]).to_f64();
        let value = if row < rows && col < summed { value(row, col) } else { 0.0 };
        if (found - value).abs() > value.abs() / 1024.0 + 1e-7 {
            return Err(format!("{name}: row {row}, column {col} is {found}, expected {value}").into());
        }
    }
    Ok(())
}
