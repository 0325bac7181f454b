//! A gated unit, `activation(gate)·up`: of the feed-forward block, of experts and of the per-layer branch.
//! [`Activation::SwigluOai`] changes up as well.

pub mod coop16;
pub mod grouped;
pub mod grouped_coop16;
pub mod plain;

use crate::base::config::Activation;
use crate::ops::act::Act;
use crate::ops::pass::Pass;

/// `y = activation(gate)·up`, `[T, F]` each.
pub fn forward(p: &mut Pass, y: &Act, gate: &Act, up: &Act, activation: Activation) {
    match y.tiles() {
        Some(tiles) => coop16::forward(p.rec, tiles, gate.rows(), up.rows(), activation, p.tokens),
        None => plain::forward(p.rec, y.rows(), gate.rows(), up.rows(), activation, p.tokens),
    }
}

/// `dgate`, and `dup` where something is trained through it.
pub fn backward(
    p: &mut Pass,
    dgate: &Act,
    dup: Option<&Act>,
    dy: &Act,
    gate: &Act,
    up: &Act,
    activation: Activation,
) {
    let (dy, gate, up) = (dy.rows(), gate.rows(), up.rows());
    match (dgate.tiles(), dup.and_then(Act::tiles)) {
        (Some(dgate), Some(dup)) => coop16::backward(p.rec, [dgate, dup], dy, gate, up, activation, p.tokens),
        _ => plain::backward(p.rec, dgate.rows(), dup.map(Act::rows), dy, gate, up, activation, p.tokens),
    }
}

/// The sizes of the shaders that import shaders/common/activation.wgsl.
pub fn sizes(activation: Activation) -> [(&'static str, u32); 2] {
    let is = |other| u32::from(activation == other);
    [("GELU", is(Activation::Gelu)), ("OAI", is(Activation::SwigluOai))]
}
