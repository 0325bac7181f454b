//! The scale, or scale and minimum, with which a run of values loses least when it is rounded to few integers.

use crate::base::formats::IQ4_LEVELS as LEVELS;

/// A run with less spread counts as constant: no 16-bit scale could distinguish its values.
const NEGLIGIBLE: f32 = 1e-15;

/// The nearest integer, ties to even, of `|x| < 2²²`: two additions, so that loops over it vectorize.
pub fn nearest(x: f32) -> f32 {
    const INTEGERS: f32 = 12_582_912.0; // 1.5·2²³: floats of this size have a spacing of 1
    (x + INTEGERS) - INTEGERS
}

/// `x ≈ scale·q` with integers `q` in `-limit..limit`: the least squares fit, weighted by `x²`, over 19 grids.
///
/// Must match ggml-quants.c `make_qx_quants`, `rmse_type` 1.
pub fn symmetric<const N: usize>(x: &[f32; N], limit: f32) -> f32 {
    let largest = largest(x);
    if largest.abs() < NEGLIGIBLE {
        return 0.0;
    }
    let weights = x.map(|v| v * v);
    // Weighted sums of x·q and q², whose ratio is the best scale for these q.
    let sums = |inverse: f32| {
        let q = x.map(|v| nearest(inverse * v).clamp(-limit, limit - 1.0));
        let term = |f: fn(f32, f32) -> f32| {
            let mut terms = [0.0; N];
            for i in 0..N {
                terms[i] = weights[i] * f(x[i], q[i]);
            }
            sum(&terms)
        };
        (term(|x, q| x * q), term(|_, q| q * q))
    };
    let (xq, qq) = sums(-limit / largest);
    let mut scale = if qq > 0.0 { xq / qq } else { 0.0 };
    let mut best = scale * xq;
    for step in (-9i8..=9).filter(|&step| step != 0) {
        let (xq, qq) = sums(-(limit + 0.1 * f32::from(step)) / largest);
        if qq > 0.0 && xq * xq > best * qq {
            scale = xq / qq;
            best = scale * xq;
        }
    }
    scale
}

/// `x ≈ scale·q` with integers `q` in `-limit..limit`: from the plain grid on, each `q` in turn takes a neighbour if that lowers
/// the squared error, weighted by `x²`, of the least squares fit.
///
/// Must match ggml-quants.c `make_q3_quants` with `do_rmse`.
pub fn symmetric_in_turns<const N: usize>(x: &[f32; N], limit: f32) -> f32 {
    let largest = largest(x);
    if largest.abs() < NEGLIGIBLE {
        return 0.0;
    }
    let mut q = x.map(|v| nearest(-limit / largest * v).clamp(-limit, limit - 1.0));
    let (mut xq, mut qq) = (0.0, 0.0);
    for (v, q) in x.iter().zip(&q) {
        xq += v * v * v * q;
        qq += v * v * q * q;
    }
    for _ in 0..5 {
        let mut changed = false;
        for (&v, q) in x.iter().zip(&mut q) {
            let w = v * v;
            let (mut other_xq, mut other_qq) = (xq - w * v * *q, qq - w * *q * *q);
            if other_xq <= 0.0 {
                continue;
            }
            let better = nearest((v * other_qq / other_xq).clamp(-limit, limit - 1.0));
            other_xq += w * v * better;
            other_qq += w * better * better;
            if better != *q && other_qq > 0.0 && other_xq * other_xq * qq > xq * xq * other_qq {
                (*q, xq, qq, changed) = (better, other_xq, other_qq, true);
            }
        }
        if !changed {
            break;
        }
    }
    if qq > 0.0 { xq / qq } else { 0.0 }
}

/// `x ≈ scale·level` with the levels of IQ4_NL: the least squares fit, weighted by `x²`, over 16 grids.
///
/// Must match ggml-quants.c `quantize_row_iq4_nl_impl` with 7 tries.
pub fn among_levels(x: &[f32; 32]) -> f32 {
    let largest = largest(x);
    if largest.abs() < NEGLIGIBLE {
        return 0.0;
    }
    let weights = x.map(|v| v * v);
    let lowest = f32::from(LEVELS[0]);
    let sums = |inverse: f32| {
        let levels = nearest_levels(&x.map(|v| inverse * v));
        let weighted = product(&weights, &levels);
        (sum(&product(&weighted, x)), sum(&product(&weighted, &levels)))
    };
    let (xq, qq) = sums(1.0 / (-largest / lowest));
    let mut scale = if qq > 0.0 { xq / qq } else { 0.0 };
    let mut best = scale * xq;
    for step in -7i8..=7 {
        let (xq, qq) = sums((f32::from(step) + lowest) / largest);
        if qq > 0.0 && xq * xq > best * qq {
            scale = xq / qq;
            best = scale * xq;
        }
    }
    scale
}

/// Each level of IQ4_NL but the lowest: the value from which on it is nearest, and how much it is above the one before.
fn steps() -> impl Iterator<Item = (f32, f32)> {
    let step = |(low, high): (&i8, &i8)| {
        let (low, high) = (f32::from(*low), f32::from(*high));
        (0.5 * (low + high), high - low)
    };
    LEVELS.iter().zip(&LEVELS[1..]).map(step)
}

/// The nearest level of IQ4_NL to each value. Level by level, so that the loop over values vectorizes.
fn nearest_levels(x: &[f32; 32]) -> [f32; 32] {
    let mut levels = [f32::from(LEVELS[0]); 32];
    for (from, more) in steps() {
        for i in 0..32 {
            levels[i] += if x[i] >= from { more } else { 0.0 };
        }
    }
    levels
}

/// The number of the nearest level of IQ4_NL, the upper one of two.
pub fn nearest_level(x: f32) -> u8 {
    steps().map(|(from, _)| u8::from(x >= from)).sum()
}

/// `(scale, minimum)` of `x ≈ scale·q − minimum`, `minimum ≥ 0`, with integers `q` in `0..=top`: squared errors, weighted by
/// `|x|` plus its root mean square. Must match ggml-quants.c `make_qkx2_quants` without `use_mad`.
pub fn affine(x: &[f32; 32], top: f32, start: f32, steps: u8) -> (f32, f32) {
    let rms = (sum(&x.map(|v| v * v)) / 32.0).sqrt();
    affine_fit(x, &x.map(|v| rms + v.abs()), top, start, steps, |difference| difference * difference)
}

/// [`affine`] with absolute errors, weighted by `|x|`, for `q` in `0..=3`. Must match `make_qkx2_quants` as
/// `quantize_row_q2_K_ref` calls it.
pub fn affine_of_two_bits(x: &[f32; 16]) -> (f32, f32) {
    affine_fit(x, &x.map(f32::abs), 3.0, -0.5, 15, f32::abs)
}

/// The least squares fits to the plain grid and `steps + 1` grids that divide the range above the best minimum so far into
/// `top + start`, `top + start + 0.1`, … parts: the one that loses least.
fn affine_fit<const N: usize>(
    x: &[f32; N],
    weights: &[f32; N],
    top: f32,
    start: f32,
    steps: u8,
    loss: impl Fn(f32) -> f32,
) -> (f32, f32) {
    let low = x.iter().fold(0.0f32, |low, &v| low.min(v));
    let high = x.iter().fold(f32::MIN, |high, &v| high.max(v));
    let range = high - low;
    if range < NEGLIGIBLE {
        return (0.0, -low);
    }
    let grid = |parts: f32, min: f32| {
        let inverse = parts / (high - min);
        x.map(|v| nearest(inverse * (v - min)).clamp(0.0, top))
    };
    let error = |q: &[f32; N], scale: f32, min: f32| {
        let mut terms = [0.0; N];
        for i in 0..N {
            terms[i] = weights[i] * loss(scale * q[i] + min - x[i]);
        }
        sum(&terms)
    };
    let weighted = product(weights, x);
    let (w, wx) = (sum(weights), sum(&weighted));

    let (mut scale, mut min) = (range / top, low);
    let mut best = error(&grid(top, low), scale, min);
    for step in 0..=steps {
        // From the best minimum so far, not from the lowest value: that finds better fits.
        let q = grid(top + start + 0.1 * f32::from(step), min);
        let wq = product(weights, &q);
        let (sum_q, sum_qq, sum_xq) = (sum(&wq), sum(&product(&wq, &q)), sum(&product(&weighted, &q)));
        let determinant = w * sum_qq - sum_q * sum_q;
        if determinant <= 0.0 {
            continue;
        }
        let mut fit = ((w * sum_xq - wx * sum_q) / determinant, (sum_qq * wx - sum_q * sum_xq) / determinant);
        if fit.1 > 0.0 {
            // The format only subtracts a minimum.
            fit = (sum_xq / sum_qq, 0.0);
        }
        let error = error(&q, fit.0, fit.1);
        if error < best {
            best = error;
            (scale, min) = fit;
        }
    }
    (scale, -min)
}

/// The value that is largest without its sign.
pub fn largest<const N: usize>(x: &[f32; N]) -> f32 {
    x.iter().fold(0.0f32, |largest, &v| if v.abs() > largest.abs() { v } else { largest })
}

fn product<const N: usize>(a: &[f32; N], b: &[f32; N]) -> [f32; N] {
    std::array::from_fn(|i| a[i] * b[i])
}

/// Eight running sums, because a single one would not vectorize.
fn sum<const N: usize>(terms: &[f32; N]) -> f32 {
    let mut lanes = [0.0; 8];
    for chunk in terms.as_chunks::<8>().0 {
        for (lane, term) in lanes.iter_mut().zip(chunk) {
            *lane += term;
        }
    }
    lanes.iter().sum()
}
