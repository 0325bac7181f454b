//! Products with weights of every format, in tiles, with and without the adapter's term.

use rullama_train::base::formats::GgmlType;
use rullama_train::cases::weight;
use rullama_train::gpu::{Gpu, GpuOptions, Tier};
use rullama_train::ops::Weight;
use rullama_train::ops::linear::tiled::{self as linear, LowRank};
use rullama_train::reference;

pub use rullama_train::cases::inputs::widths;

use super::check::{Block, Check, Held, Margins, Outcome, Tolerance, run, scaled, sum, values, wide};
use super::coop::{HALF, leveled, rows};

/// Rounding of sums of up to 1024 products in f32: about ε·√K = 6e-8·32 at worst.
const PRODUCT: Tolerance = Tolerance::new(2e-6, 2e-6, 2e-6);

/// A random weight on the device, in pieces with `tiled`, and its values from the decoder of src/base.
pub fn random_weight(gpu: &Gpu, ty: GgmlType, rows: usize, cols: usize, tiled: bool) -> (Weight, Vec<f64>) {
    weight::random(gpu, ty, rows, cols, tiled).expect("a small matrix")
}

pub struct Case {
    /// `T`.
    pub tokens: usize,
    /// Which of [`widths`] is `K`.
    pub width: usize,
    /// `N`.
    pub outputs: usize,
    rank: Option<usize>,
    pub tiled: bool,
    scale: f32,
    margins: [Margins; 2],
}

const fn case(
    tokens: usize,
    width: usize,
    outputs: usize,
    rank: Option<usize>,
    tiled: bool,
    scale: f32,
    margins: [Margins; 2],
) -> Case {
    Case { tokens, width, outputs, rank, tiled, scale, margins }
}

/// One token and several blocks of 64 tokens; `N` below, above and between multiples of 64 and of 4; views.
pub static CASES: [Case; 7] = [
    case(1, 0, 68, None, false, 1.0, [(0, 0), (0, 0)]),
    case(1, 2, 131, Some(4), true, 1.0, [(0, 0), (0, 0)]),
    case(7, 1, 200, Some(4), true, 0.37, [(4, 0), (8, 12)]),
    case(65, 2, 130, Some(12), true, -1.5, [(8, 4), (0, 4)]),
    case(130, 0, 7, Some(12), false, 1.0, [(0, 8), (4, 0)]),
    case(65, 1, 4, None, false, 0.5, [(12, 0), (4, 4)]),
    case(7, 2, 192, Some(16), true, 1.0, [(0, 0), (0, 0)]),
];

impl Case {
    fn name(&self, ty: GgmlType) -> String {
        let Case { tokens, outputs, rank, tiled, scale, margins, .. } = self;
        let k = widths(ty)[self.width];
        format!(
            "{ty:?} T={tokens} K={k} N={outputs} R={rank:?} tiled={tiled} scale={scale} margins={margins:?}"
        )
    }
}

/// `y = scale·x·Wᵀ + lora_scale·z·Bᵀ`.
pub fn forward(gpu: &Gpu, formats: &[GgmlType]) -> Outcome {
    let mut check = Check::new("linear forward", PRODUCT);
    for ty in formats.iter().copied() {
        for c in &CASES {
            forward_case(gpu, &mut check, ty, c)?;
        }
    }
    // The head: outputs are no multiple of 4, so that zeros are written to the row's padding.
    let head = case(7, 1, 1003, None, true, 1.0, [(0, 0), (0, 0)]);
    forward_case(gpu, &mut check, GgmlType::Q6_K, &head)?;
    forward_case(gpu, &mut check, GgmlType::F32, &head)?;
    check.done()
}

/// Forward with operands in f16, and rows from 2^-40 to 2^40.
pub fn forward_in_f16(gpu: &Gpu, formats: &[GgmlType]) -> Outcome {
    let mut check = Check::new("linear forward, operands in f16", HALF);
    for ty in formats.iter().copied() {
        for c in &CASES {
            forward_case(gpu, &mut check, ty, c)?;
        }
    }
    check.done()
}

fn forward_case(gpu: &Gpu, check: &mut Check, ty: GgmlType, c: &Case) -> Outcome {
    let (name, k) = (c.name(ty), widths(ty)[c.width]);
    let half = gpu.kernels().tier() != Tier::F32;
    let (weight, w) = random_weight(gpu, ty, c.outputs, k, c.tiled);
    let x = rows(1, c.tokens, k, half);
    let mut expected = scaled(c.scale, &reference::linear::forward(&wide(&x), &w, k));
    let x = Block::input(gpu, c.margins[0], k, &x);
    let y = Block::output(gpu, c.margins[1], c.outputs, c.tokens);
    let Some(rank) = c.rank else {
        run(gpu, |rec| linear::forward(rec, y.view(), x.view(), &weight, c.scale, None, c.tokens))?;
        return close(check, half, &name, c.outputs, &y.read(gpu, &name)?, &expected);
    };
    let (z, b, lora_scale) = (rows(2, c.tokens, rank, half), values(3, c.outputs * rank), 0.75);
    let low_rank = reference::linear::forward(&wide(&z), &wide(&b), rank);
    expected = sum(&expected, &scaled(lora_scale, &low_rank));
    let (z, b) = (Block::input(gpu, (4, 8), rank, &z), Held::new(gpu, rank, &b));
    let lora = LowRank { z: z.view(), matrix: &b.param, rank, scale: lora_scale };
    run(gpu, |rec| linear::forward(rec, y.view(), x.view(), &weight, c.scale, Some(&lora), c.tokens))?;
    close(check, half, &name, c.outputs, &y.read(gpu, &name)?, &expected)
}

/// `dx = scale·dy·W + u·A`, written or added.
pub fn backward(gpu: &Gpu, formats: &[GgmlType]) -> Outcome {
    let mut check = Check::new("linear backward", PRODUCT);
    for ty in formats.iter().copied() {
        for (i, c) in CASES.iter().enumerate() {
            backward_case(gpu, &mut check, ty, c, i % 2 == 1)?;
        }
        backward_case(gpu, &mut check, ty, &CASES[3], false)?;
    }
    let head = case(7, 1, 1003, None, true, 1.0, [(0, 0), (0, 0)]);
    backward_case(gpu, &mut check, GgmlType::Q6_K, &head, false)?;
    check.done()
}

/// Backward with operands in f16.
pub fn backward_in_f16(gpu: &Gpu, formats: &[GgmlType]) -> Outcome {
    let mut check = Check::new("linear backward, operands in f16", HALF);
    for ty in formats.iter().copied() {
        for (i, c) in CASES.iter().enumerate() {
            backward_case(gpu, &mut check, ty, c, i % 2 == 1)?;
        }
    }
    check.done()
}

fn backward_case(gpu: &Gpu, check: &mut Check, ty: GgmlType, c: &Case, accumulate: bool) -> Outcome {
    let (name, k) = (format!("{} accumulate={accumulate}", c.name(ty)), widths(ty)[c.width]);
    let half = gpu.kernels().tier() != Tier::F32;
    let (weight, w) = random_weight(gpu, ty, c.outputs, k, c.tiled);
    let (dy, before) = (rows(1, c.tokens, c.outputs, half), rows(2, c.tokens, k, half));
    let mut expected = scaled(c.scale, &reference::linear::backward(&wide(&dy), &w, k));
    let dy = Block::input(gpu, c.margins[1], c.outputs, &dy);
    let dx = match accumulate {
        true => Block::in_out(gpu, c.margins[0], k, &before),
        false => Block::output(gpu, c.margins[0], k, c.tokens),
    };
    if accumulate {
        expected = sum(&expected, &wide(&before));
    }
    let Some(rank) = c.rank else {
        run(gpu, |rec| {
            linear::backward(rec, dx.view(), dy.view(), &weight, c.scale, None, c.tokens, accumulate)
        })?;
        return close(check, half, &name, k, &dx.read(gpu, &name)?, &expected);
    };
    let (u, a) = (rows(3, c.tokens, rank, half), values(4, rank * k));
    expected = sum(&expected, &reference::linear::backward(&wide(&u), &wide(&a), k));
    let (u, a) = (Block::input(gpu, (4, 8), rank, &u), Held::new(gpu, k, &a));
    // Only forward applies the factor of the term: u has it already.
    let lora = LowRank { z: u.view(), matrix: &a.param, rank, scale: 0.75 };
    run(gpu, |rec| {
        linear::backward(rec, dx.view(), dy.view(), &weight, c.scale, Some(&lora), c.tokens, accumulate)
    })?;
    close(check, half, &name, k, &dx.read(gpu, &name)?, &expected)
}

/// Compares; with f16 operands each row is first divided by its size.
fn close(
    check: &mut Check,
    half: bool,
    name: &str,
    width: usize,
    found: &[f64],
    expected: &[f64],
) -> Outcome {
    match half {
        true => check.close(name, width, &leveled(found, width), &leveled(expected, width)),
        false => check.close(name, width, found, expected),
    }
}

/// The self-test of a device passes, and leaves no compiled kernels behind.
pub fn self_test(gpu: &Gpu) -> Outcome {
    let fresh = pollster::block_on(Gpu::open(GpuOptions::default()))?;
    pollster::block_on(fresh.self_test(gpu.kernels().tier()))?;
    let left = fresh.compiled();
    let expected = 0;
    if left != expected || gpu.failed_self_test().is_some() {
        return Err(format!("{left:?}, {:?}, expected {expected:?}", gpu.failed_self_test()).into());
    }
    Ok(())
}

/// The adapter's matrices and rows of activations as weights: `z = x·Aᵀ`, `u = scale·dy·B`.
pub fn adapter_products(gpu: &Gpu) -> Outcome {
    let mut check =
        Check::new("linear, adapter", if gpu.kernels().tier() == Tier::F32 { PRODUCT } else { HALF });
    for (tokens, rank, n) in [(1, 4, 20), (65, 12, 252), (130, 16, 68)] {
        let name = format!("T={tokens} R={rank} N={n}");
        let (x, a) = (values(1, tokens * n), values(2, rank * n));
        let expected = reference::linear::forward(&wide(&x), &wide(&a), n);
        let (x, held) = (Block::input(gpu, (0, 0), n, &x), Held::new(gpu, n, &a));
        let z = Block::output(gpu, (rank, rank), rank, tokens);
        run(gpu, |rec| linear::forward(rec, z.view(), x.view(), &held.param.as_weight(), 1.0, None, tokens))?;
        check.close(&format!("z {name}"), rank, &z.read(gpu, &name)?, &expected)?;

        let (dy, b) = (values(3, tokens * n), values(4, n * rank));
        let expected = scaled(0.5, &reference::linear::backward(&wide(&dy), &wide(&b), rank));
        let (dy, held) = (Block::input(gpu, (0, 0), n, &dy), Held::new(gpu, rank, &b));
        let u = Block::output(gpu, (rank, rank), rank, tokens);
        run(gpu, |rec| {
            linear::backward(rec, u.view(), dy.view(), &held.param.as_weight(), 0.5, None, tokens, false)
        })?;
        check.close(&format!("u {name}"), rank, &u.read(gpu, &name)?, &expected)?;
    }
    check.done()
}
