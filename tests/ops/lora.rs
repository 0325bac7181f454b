//! Gradients of the adapter's matrices.

use rullama_train::gpu::Gpu;
use rullama_train::ops::lora;
use rullama_train::reference;

use super::check::{Block, Check, Held, Margins, Outcome, Tolerance, run, sum, values, wide};

/// Sums of up to 200 products.
const PRODUCT: Tolerance = Tolerance { norm: 1e-6, relative: 1e-6, absolute: 1e-6 };

/// `dB += scale·dyᵀ·z` and `dA += uᵀ·x`, added to existing gradients.
pub fn gradient(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("lora gradient", PRODUCT);
    let cases: [(usize, usize, usize, f32, [Margins; 3]); 5] = [
        (1, 4, 20, 1.0, [(0, 0); 3]),
        (7, 12, 252, 0.5, [(0, 0), (4, 8), (12, 4)]),
        (65, 4, 68, -2.0, [(8, 0), (4, 4), (0, 8)]),
        (130, 16, 132, 1.0, [(0, 4), (16, 0), (4, 0)]),
        (200, 68, 4, 0.25, [(4, 4), (0, 0), (0, 0)]),
    ];
    for (tokens, rank, n, scale, margins) in cases {
        let name = format!("T={tokens} R={rank} N=K={n} scale={scale} margins={margins:?}");
        let (x, dy, u, z) = (
            values(1, tokens * n),
            values(2, tokens * n),
            values(3, tokens * rank),
            values(4, tokens * rank),
        );
        let (a, b) = (values(5, rank * n), values(6, n * rank));
        let (mut da, mut db, mut dx) = (wide(&a), wide(&b), wide(&x));
        // The reference computes u from dy. Here dy is used for B only, and dA is checked as a separate product.
        reference::lora::backward(
            &wide(&dy),
            &wide(&x),
            &wide(&a),
            &wide(&b),
            rank,
            f64::from(scale),
            None,
            &wide(&z),
            &mut dx,
            &mut da,
            &mut db,
        );
        let da = sum(&wide(&a), &reference::linear::gradient(&wide(&u), &wide(&x), rank, n));
        let (dy, x) = (Block::input(gpu, margins[0], n, &dy), Block::input(gpu, margins[0], n, &x));
        let (z, u) = (Block::input(gpu, margins[1], rank, &z), Block::input(gpu, margins[2], rank, &u));
        let (held_b, held_a) = (Held::new(gpu, rank, &b), Held::new(gpu, n, &a));
        run(gpu, |rec| {
            lora::gradient(rec, &held_b.param, dy.view(), z.view(), scale, tokens);
            lora::gradient(rec, &held_a.param, u.view(), x.view(), 1.0, tokens);
        })?;
        check.close(&format!("dB {name}"), rank, &held_b.read(gpu, &name)?, &db)?;
        check.close(&format!("dA {name}"), n, &held_a.read(gpu, &name)?, &da)?;
    }
    check.done()
}
