//! RMSNorm over rows: `norm(x) = w·x / √(mean(x²) + ε)`, of whole tokens or of heads of a token.

pub mod columns;
pub mod coop16;
pub mod gradient;
pub mod plain;

use crate::ops::act::Act;
pub use crate::ops::norm::Norm;
use crate::ops::pass::Pass;
use crate::ops::pending::Pending;
use coop16::Through;
use gradient::GradientSum;

/// `y = norm(x)` for `x` `[T, D]`.
pub fn forward(p: &mut Pass, y: &Act, x: &Act, norm: &Norm) {
    let packs = y.tiles().filter(|_| norm.weight.is_some());
    let finishes = |pending: &Pending| match pending {
        Pending::Sum(sum) => packs.is_some() || sum.ends_before(y),
        _ => false,
    };
    if let Some(Pending::Sum(sum)) = p.rec.take(x, p.tokens, finishes) {
        return match packs {
            Some(tiles) => sum.finish_with_norm(p.rec.now(), x, tiles, norm, p.tokens),
            None => sum.finish_before(p.rec.now(), x, y, norm, p.tokens),
        };
    }
    let x = x.f32(p.rec.now(), p.tokens);
    match y.tiles() {
        Some(tiles) => coop16::forward(p.rec.now(), tiles, &x, norm, p.tokens),
        None => plain::forward(p.rec.now(), y.rows(), &x, norm, None, 1.0, p.tokens),
    }
}

/// `y = norm(x) + residual`.
pub fn forward_add(p: &mut Pass, y: &Act, x: &Act, norm: &Norm, residual: &Act) {
    plain::forward(p.rec.now(), y.rows(), x.rows(), norm, Some(residual.rows()), 1.0, p.tokens);
}

/// `dx = (∂norm/∂x)ᵀ·dy`.
pub fn backward(p: &mut Pass, dx: &Act, dy: &Act, x: &Act, norm: &Norm) {
    let Some(tiles) = dx.tiles() else {
        return plain::backward(p.rec.now(), dx.rows(), dy.rows(), x.rows(), norm, p.tokens, None);
    };
    let through = Through { dx: tiles, x, norm };
    let finishes = |pending: &Pending| match pending {
        Pending::Parts(parts) => parts.accumulate,
        Pending::GradientSum(sum) => sum.goes_through_norms(),
        _ => false,
    };
    match p.rec.take(dy, p.tokens, finishes) {
        Some(Pending::Parts(parts)) => {
            coop16::backward_of_sum(p.rec.now(), dy.rows(), parts.count, through, p.tokens);
        }
        Some(Pending::GradientSum(sum)) => sum.finish_through(p.rec.now(), dy.rows(), through, p.tokens),
        _ if norm.identity => tiles.pack(p.rec.now(), dy.rows().all(), norm.width, p.tokens),
        _ => coop16::backward(p.rec.now(), tiles, dy.rows(), x, norm, p.tokens),
    }
}

/// `dx = scale·(dx + (∂norm/∂x)ᵀ·dy)`, which may wait for the [`backward`] that reads `dx`. `dy` is scratch afterwards.
pub fn backward_add(p: &mut Pass, dx: &Act, dy: &Act, x: &Act, norm: &Norm, scale: f32) {
    let (parts, halves) = (p.rec.take_parts(dy, p.tokens), p.rec.take_halves(dy));
    let sum = GradientSum { dy: dy.rows().clone(), parts, halves, x: x.clone(), norm: norm.clone(), scale };
    p.rec.leave(dx, p.tokens, Pending::GradientSum(sum));
}
