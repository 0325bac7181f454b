//! Products with an adapter's matrices on cooperative matrices of 16×16, and their gradients: odd sizes, rows from 2^-40 to 2^40, split sums.

use rullama_train::base::formats::GgmlType;
use rullama_train::cases::inputs::{level, widths};
use rullama_train::gpu::Gpu;
use rullama_train::ops::linear::coop16 as coop_linear;
use rullama_train::ops::linear::coop16::LowRank;
use rullama_train::ops::lora::FEW;
use rullama_train::ops::lora::coop16 as coop_lora;
use rullama_train::ops::lora::coop16_gradients::{Beside, Gradient, gradients as adapter_gradients};
use rullama_train::ops::lora::coop16_project::{Member, project, project_back};
use rullama_train::ops::pack::Packed;
use rullama_train::reference;

use super::check::{Block, Check, Held, Outcome, run, scaled, sum, values, wide};
use super::linear::random_weight;

pub use rullama_train::cases::inputs::rows;
pub use rullama_train::cases::tolerance::HALF;

/// Divides every row by its own factor, so that one tolerance fits all rows.
pub fn leveled(found: &[f64], width: usize) -> Vec<f64> {
    let level = |(t, row): (usize, &[f64])| row.iter().map(|x| x * level(t)).collect::<Vec<_>>();
    found.chunks(width).enumerate().flat_map(level).collect()
}

pub fn packed(gpu: &Gpu, x: &Block, cols: usize, height: usize) -> Result<Packed, libtest_mimic::Failed> {
    let packed = Packed::new(gpu, "test", height, cols)?;
    run(gpu, |rec| packed.pack(rec, x.view(), cols, height))?;
    Ok(packed)
}

/// `thin` `[T, R]`, in `packed` from a column on, as a product reads it with `x` `[T, N]`: `y = x·Wᵀ + thin·1ᵀ`.
pub fn packed_alike(
    gpu: &Gpu,
    check: &mut Check,
    name: &str,
    (packed_x, x, n): (&Packed, &[f32], usize),
    (packed, z_offset, thin, rank): (&Packed, usize, &[f64], usize),
    t: usize,
) -> Outcome {
    let (weight, w) = random_weight(gpu, GgmlType::F32, rank, n, false);
    let one: Vec<f32> = (0..rank * rank).map(|i| f32::from(u8::from(i / rank == i % rank))).collect();
    let one = Held::new(gpu, rank, &one);
    let term = LowRank { z: packed, z_offset, matrix: &one.param, first_row: 0, rank, scale: 1.0 };
    let y = Block::output(gpu, (0, 0), rank, t);
    run(gpu, |rec| coop_linear::forward(rec, y.view(), packed_x, &weight, 1.0, Some(&term), t))?;
    let expected = sum(&reference::linear::forward(&wide(x), &w, n), thin);
    check.close(name, rank, &leveled(&y.read(gpu, name)?, rank), &leveled(&expected, rank))
}

/// `z = x·Aᵀ`.
fn projected(gpu: &Gpu, check: &mut Check, t: usize, rank: usize, n: usize) -> Outcome {
    let name = format!("z T={t} R={rank} K={n}");
    let (x, a) = (rows(1, t, n, true), values(2, rank * n));
    let expected = reference::linear::forward(&wide(&x), &wide(&a), n);
    let (x_rows, held) = (Block::input(gpu, (4, 0), n, &x), Held::new(gpu, n, &a));
    let wide_x = packed(gpu, &x_rows, n, t)?;
    let z = Block::output(gpu, (16, 16), rank, t);
    let thin = Packed::new(gpu, "test", t, rank)?;
    run(gpu, |rec| project(rec, z.view(), &wide_x, &held.param, t, &thin))?;
    check.close(&name, rank, &leveled(&z.read(gpu, &name)?, rank), &leveled(&expected, rank))?;
    packed_alike(gpu, check, &format!("packed {name}"), (&wide_x, &x, n), (&thin, 0, &expected, rank), t)
}

/// `u = scale·dy·B` of two matrices side by side, in one pass and one after the other.
fn projected_back(gpu: &Gpu, check: &mut Check, t: usize, rank: usize, widths: [usize; 2]) -> Outcome {
    let name = format!("u T={t} R={rank} N={widths:?}");
    let dy = [(1, widths[0]), (2, widths[1])].map(|(seed, n)| rows(seed, t, n, true));
    let b = [(3, widths[0]), (4, widths[1])].map(|(seed, n)| values(seed, n * rank));
    let each = [0, 1].map(|i| scaled(0.5, &reference::linear::backward(&wide(&dy[i]), &wide(&b[i]), rank)));
    let both: Vec<f64> =
        each[0].chunks(rank).zip(each[1].chunks(rank)).flat_map(|(a, b)| [a, b].concat()).collect();
    let wide_dy = [0, 1].map(|i| packed(gpu, &Block::input(gpu, (4, 0), widths[i], &dy[i]), widths[i], t));
    let [first, second] = wide_dy;
    let wide_dy = [first?, second?];
    let held = [0, 1].map(|i| Held::new(gpu, rank, &b[i]));
    let members = [0, 1].map(|i| Member { dy: &wide_dy[i], b: &held[i].param, offset: i * rank });
    for together in [true, false] {
        let name = format!("{name} together={together}");
        let u = Block::output(gpu, (16, 16), 2 * rank, t);
        let thin = Packed::new(gpu, "test", t, 2 * rank)?;
        run(gpu, |rec| match together {
            true => project_back(rec, u.view(), &members, 0.5, t, &thin),
            false => members.iter().for_each(|m| project_back(rec, u.view(), &[*m], 0.5, t, &thin)),
        })?;
        let found = leveled(&u.read(gpu, &name)?, 2 * rank);
        check.close(&name, 2 * rank, &found, &leveled(&both, 2 * rank))?;
        for i in [0, 1] {
            let thin = (&thin, i * rank, &each[i][..], rank);
            packed_alike(
                gpu,
                check,
                &format!("packed {name}, {i}"),
                (&wide_dy[i], &dy[i], widths[i]),
                thin,
                t,
            )?;
        }
    }
    Ok(())
}

/// `z = x·Aᵀ` and `u = scale·dy·B`: odd sizes, sums long enough for parts, and rows enough for several matrices in a workgroup.
pub fn adapter_products(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("products of lora, 16×16", HALF);
    let cases = [
        (1, 16, [32, 36]),
        (65, 16, [252, 1000]),
        (130, 48, [68, 64]),
        (300, 80, [516, 20]),
        (33, 16, [3200, 6200]),
        (20, 32, [4100, 260]),
        (2100, 16, [132, 68]),
        (4100, 16, [68, 100]),
        (4100, 48, [68, 36]),
    ];
    for (t, rank, widths) in cases {
        projected(gpu, &mut check, t, rank, widths[0])?;
        projected_back(gpu, &mut check, t, rank, widths)?;
    }
    check.done()
}

/// The gradients of `A` and of `B`, each in a pass of its own.
pub fn adapter(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("lora, 16×16", HALF);
    for (t, rank, n) in [(1, 16, 32), (65, 16, 252), (130, 48, 68), (300, 80, 516)] {
        let name = format!("T={t} R={rank} N={n}");
        // Rows of similar size: the sum over rows is only as exact as the largest of them.
        let (x, u) = (rows(5, t, n, false), rows(6, t, rank, false));
        let wide_x = packed(gpu, &Block::input(gpu, (0, 4), n, &x), n, t)?;
        let u_rows = Block::input(gpu, (16, 4), rank, &u);
        let before = [values(7, rank * n), values(8, rank * n)];
        let product = reference::linear::gradient(&wide(&u), &wide(&x), rank, n);
        let da = Held::new(gpu, n, &before[0]);
        run(gpu, |rec| coop_lora::gradient_a(rec, &da.param, u_rows.view(), &wide_x, t))?;
        let expected = sum(&wide(&before[0]), &product);
        check.close(&format!("dA {name}"), n, &da.read(gpu, &name)?, &expected)?;

        let db = Held::new(gpu, rank, &before[1]);
        run(gpu, |rec| coop_lora::gradient_b(rec, &db.param, &wide_x, u_rows.view(), 0.5, t))?;
        let transposed: Vec<f64> = (0..n * rank).map(|i| 0.5 * product[i % rank * n + i / rank]).collect();
        let expected = sum(&wide(&before[1]), &transposed);
        check.close(&format!("dB {name}"), rank, &db.read(gpu, &name)?, &expected)?;
    }
    check.done()
}

/// The gradients of up to three `B`, of different sizes, and of `A`, together and of the `B` alone, over few and over more rows.
pub fn adapter_pairs(gpu: &Gpu) -> Outcome {
    adapter_cases(gpu, None)
}

/// These gradients behind the workgroups of a product, whose result they leave as it is.
pub fn beside(gpu: &Gpu) -> Outcome {
    [GgmlType::F32, GgmlType::Q4_K, GgmlType::Q6_K]
        .into_iter()
        .try_for_each(|ty| adapter_cases(gpu, Some(ty)))
}

fn adapter_cases(gpu: &Gpu, product: Option<GgmlType>) -> Outcome {
    let mut check = Check::new("gradients of lora, 16×16", HALF);
    // Rows, K, and N and rank of each B.
    type Case = (usize, usize, &'static [(usize, usize)]);
    let cases: [Case; 8] = [
        (1, 64, &[(32, 16)]),
        (300, 132, &[(516, 80)]),
        (1, 36, &[(68, 16), (20, 32)]),
        (65, 68, &[(252, 16), (68, 48)]),
        (130, 260, &[(132, 32), (36, 16), (516, 80)]),
        (600, 200, &[(68, 48), (200, 16), (64, 16)]),
        (FEW, 20, &[(36, 16), (132, 16), (4, 32)]),
        (FEW + 1, 20, &[(36, 32), (132, 16), (68, 48)]),
    ];
    let cases = cases.into_iter().filter(|(t, ..)| product.is_none() || *t <= FEW);
    for ((t, k, members), with_a) in cases.flat_map(|case| [(case, true), (case, false)]) {
        let name = format!("T={t} K={k} N,R={members:?} with A={with_a} beside {product:?}");
        adapter_gradient(gpu, &mut check, &name, (t, k, members), with_a, product)?;
    }
    check.done()
}

fn adapter_gradient(
    gpu: &Gpu,
    check: &mut Check,
    name: &str,
    (t, k, members): (usize, usize, &[(usize, usize)]),
    with_a: bool,
    product: Option<GgmlType>,
) -> Outcome {
    let ranks = members.iter().map(|(_, rank)| rank).sum();
    let (x, u, z) = (rows(1, t, k, false), rows(2, t, ranks, false), rows(3, t, ranks, false));
    let wide_x = packed(gpu, &Block::input(gpu, (4, 0), k, &x), k, t)?;
    let (z_rows, u_rows) = (Block::input(gpu, (16, 4), ranks, &z), Block::input(gpu, (4, 8), ranks, &u));
    let before_a = values(4, ranks * k);
    let da = Held::new(gpu, k, &before_a);
    let (mut wide_dys, mut dbs, mut expected, mut offsets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut offset = 0;
    for (seed, &(n, rank)) in (5..).step_by(2).zip(members) {
        let (dy, before) = (rows(seed, t, n, false), values(seed + 1, n * rank));
        let own: Vec<f32> = z.chunks(ranks).flat_map(|row| &row[offset..offset + rank]).copied().collect();
        let product = scaled(0.5, &reference::linear::gradient(&wide(&dy), &wide(&own), n, rank));
        expected.push(sum(&wide(&before), &product));
        wide_dys.push(packed(gpu, &Block::input(gpu, (0, 4), n, &dy), n, t)?);
        dbs.push(Held::new(gpu, rank, &before));
        offsets.push(z_rows.view().offset + offset);
        offset += rank;
    }
    let members_b = dbs.iter().zip(&wide_dys).zip(&offsets);
    let b: Vec<Gradient> = members_b
        .map(|((db, wide), &at)| Gradient { matrix: &db.param, wide, thin: z_rows.rows.from(at) })
        .collect();
    let a = Gradient { matrix: &da.param, wide: &wide_x, thin: u_rows.view() };
    let a = with_a.then_some(a);
    match product {
        None => run(gpu, |rec| adapter_gradients(rec, &b, a, 0.5, t))?,
        Some(ty) => beside_product(gpu, name, ty, t, Beside::new(&b, a, 0.5, t))?,
    }
    for (i, (db, expected)) in dbs.iter().zip(&expected).enumerate() {
        check.close(&format!("dB {i} {name}"), members[i].1, &db.read(gpu, name)?, expected)?;
    }
    let of_a = match with_a {
        true => reference::linear::gradient(&wide(&u), &wide(&x), ranks, k),
        false => vec![0.0; ranks * k],
    };
    check.close(&format!("dA {name}"), k, &da.read(gpu, name)?, &sum(&wide(&before_a), &of_a))
}

/// `dx = dy·W` with other work beside it is `dx` alone, bit for bit.
fn beside_product(gpu: &Gpu, name: &str, ty: GgmlType, t: usize, beside: Beside) -> Outcome {
    let (n, k) = (131, widths(ty)[2]);
    let (weight, _) = random_weight(gpu, ty, n, k, true);
    let dy = packed(gpu, &Block::input(gpu, (4, 8), n, &rows(1, t, n, false)), n, t)?;
    let [alone, with] = [(); 2].map(|()| Block::output(gpu, (8, 4), k, t));
    run(gpu, |rec| coop_linear::backward(rec, alone.view(), &dy, &weight, 1.0, None, t, false))?;
    let beside = Some(beside);
    run(gpu, |rec| {
        let product = coop_linear::Product::new(with.view(), &dy, &weight, t);
        coop_linear::backward_onto(rec, &product, None, beside)
    })?;
    match alone.read(gpu, name)? == with.read(gpu, name)? {
        true => Ok(()),
        false => Err(format!("{name}: the product differs from the product alone").into()),
    }
}
