//! A gated unit, `activation(gate)·up`: of the feed-forward block, of experts and of the per-layer branch.
//! [`Activation::SwigluOai`] changes up as well.

pub mod coop16;
pub mod grouped;
pub mod grouped_coop16;
pub mod plain;

use crate::base::config::Activation;
use crate::ops::act::Act;
use crate::ops::pass::Pass;

/// `y = activation(gate)·up`, `[T, F]` each. Gate and up that are stored as tiles are rounded first, so that backward reads what forward did.
pub fn forward(p: &mut Pass, y: &Act, gate: &Act, up: &Act, activation: Activation) {
    match y.tiles() {
        Some(tiles) => coop16::forward(p.rec.now(), tiles, gate, up, activation, p.tokens),
        None => plain::forward(p.rec.now(), y.rows(), gate.rows(), up.rows(), activation, p.tokens),
    }
}

/// `dgate`, and `dup` if a gradient is needed.
pub fn backward(
    p: &mut Pass,
    dgate: &Act,
    dup: Option<&Act>,
    dy: &Act,
    gate: &Act,
    up: &Act,
    activation: Activation,
) {
    let dy = (dy.rows(), p.rec.take_parts(dy, p.tokens));
    let (dgate, dup) = (dgate.rows(), dup.map(Act::rows));
    plain::backward(p.rec.now(), dgate, dup, dy, gate.rows(), up.rows(), activation, p.tokens);
}

/// The gradients of gate and up: in their place where they are stored as tiles, else in `places`.
pub fn backward_in_place<'a>(
    p: &mut Pass,
    places: [&'a Act; 2],
    dy: &Act,
    [gate, up]: [&'a Act; 2],
    activation: Activation,
) -> [&'a Act; 2] {
    if let (Some(gate_tiles), Some(up_tiles)) = (gate.tiles(), up.tiles()) {
        coop16::backward(p.rec.now(), [gate_tiles, up_tiles], dy.rows(), activation, p.tokens);
        return [gate, up];
    }
    let [dgate, dup] = places;
    backward(p, dgate, Some(dup), dy, gate, up, activation);
    places
}

/// The sizes of the shaders that import shaders/common/activation.wgsl.
pub fn sizes(activation: Activation) -> [(&'static str, u32); 2] {
    let is = |other| u32::from(activation == other);
    [("GELU", is(Activation::Gelu)), ("OAI", is(Activation::SwigluOai))]
}
