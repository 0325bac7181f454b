//! Products with an adapter's thin matrices by CUDA's kernels: odd sizes, rows from 2^-40 to 2^40, ranks of several groups of columns, and
//! columns of other matrices beside theirs.

use rullama_train::gpu::Gpu;
use rullama_train::ops::lora::cuda::{gradient, project, project_back};
use rullama_train::ops::pack::Packed;
use rullama_train::reference;

use super::check::{Block, Check, Held, Outcome, run, scaled, sum, values, wide};
use super::coop::{HALF, leveled, packed, packed_alike, rows};

/// (T, R, K), where the last T has blocks of 32 rows.
const CASES: [(usize, usize, usize); 7] = [
    (1, 16, 20),
    (65, 16, 252),
    (130, 48, 68),
    (300, 80, 516),
    (33, 32, 3200),
    (1031, 16, 1028),
    (4100, 16, 36),
];

/// `z = x·Aᵀ`.
pub fn forward(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("z of lora, CUDA", HALF);
    for (t, rank, k) in CASES {
        let name = format!("T={t} R={rank} K={k}");
        let (x, a) = (rows(1, t, k, true), values(2, rank * k));
        let expected = reference::linear::forward(&wide(&x), &wide(&a), k);
        let (x_rows, held) = (Block::input(gpu, (4, 0), k, &x), Held::new(gpu, k, &a));
        let wide_x = packed(gpu, &x_rows, k, t)?;
        let (z, thin) = (Block::output(gpu, (16, 16), rank, t), Packed::new(gpu, "test", t, rank)?);
        run(gpu, |rec| project(rec, z.view(), &wide_x, &held.param, t, &thin))?;
        check.close(&name, rank, &leveled(&z.read(gpu, &name)?, rank), &leveled(&expected, rank))?;
        let thin = (&thin, 0, &expected[..], rank);
        packed_alike(gpu, &mut check, &format!("tiles of {name}"), (&wide_x, &x, k), thin, t)?;
    }
    check.done()
}

/// `u = scale·dy·B` of the second of two matrices side by side; nothing is written to the first one's columns.
pub fn backward(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("u of lora, CUDA", HALF);
    for (t, rank, n) in CASES {
        let name = format!("T={t} R={rank} N={n}");
        let (dy, b) = (rows(1, t, n, true), values(2, n * rank));
        let expected = scaled(0.5, &reference::linear::backward(&wide(&dy), &wide(&b), rank));
        let wide_dy = packed(gpu, &Block::input(gpu, (4, 0), n, &dy), n, t)?;
        let held = Held::new(gpu, rank, &b);
        let before = rows(3, t, 16 + rank, false);
        let u = Block::in_out(gpu, (16, 16), 16 + rank, &before);
        let thin = Packed::new(gpu, "test", t, 16 + rank)?;
        run(gpu, |rec| project_back(rec, u.view(), &wide_dy, &held.param, 16, 0.5, t, &thin))?;
        let found = u.read(gpu, &name)?;
        let (others, own): (Vec<_>, Vec<_>) = found.chunks(16 + rank).map(|row| row.split_at(16)).unzip();
        let others_before: Vec<f32> = before.chunks(16 + rank).flat_map(|row| &row[..16]).copied().collect();
        if others.concat() != wide(&others_before) {
            return Err(format!("{name}: columns of another matrix were written").into());
        }
        check.close(&name, rank, &leveled(&own.concat(), rank), &leveled(&expected, rank))?;
        let thin = (&thin, 16, &expected[..], rank);
        packed_alike(gpu, &mut check, &format!("tiles of {name}"), (&wide_dy, &dy, n), thin, t)?;
    }
    check.done()
}

/// `dA += uᵀ·x` and `dB += scale·dyᵀ·z`, whose thin operands lie among other columns.
pub fn gradients(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("gradients of lora, CUDA", HALF);
    for (t, rank, k) in CASES {
        // Rows of similar size: the sum over rows is only as exact as the largest of them.
        let (x, mut thin) = (rows(5, t, k, false), rows(6, t, 8 + rank, false));
        // u is zero before the first step, as B is.
        if t == 65 {
            thin.fill(0.0);
        }
        let own: Vec<f32> = thin.chunks(8 + rank).flat_map(|row| &row[8..]).copied().collect();
        let product = reference::linear::gradient(&wide(&own), &wide(&x), rank, k);
        let wide_x = packed(gpu, &Block::input(gpu, (0, 4), k, &x), k, t)?;
        let thin = Block::input(gpu, (16, 4), 8 + rank, &thin);
        let thin = thin.rows.from(thin.view().offset + 8);
        for transposed in [false, true] {
            let name = format!("{} T={t} R={rank} K={k}", if transposed { "dB" } else { "dA" });
            let (cols, at): (usize, &dyn Fn(usize) -> usize) = match transposed {
                true => (rank, &|i| i % rank * k + i / rank),
                false => (k, &|i| i),
            };
            let before = values(7, rank * k);
            let expected: Vec<f64> = (0..rank * k).map(|i| 0.5 * product[at(i)]).collect();
            let held = Held::new(gpu, cols, &before);
            run(gpu, |rec| gradient(rec, &held.param, thin, &wide_x, [k, rank], 0.5, t, transposed))?;
            check.close(&name, cols, &held.read(gpu, &name)?, &sum(&wide(&before), &expected))?;
        }
    }
    check.done()
}
