//! A gated unit, `activation(gate)·up`: of the feed-forward block, of experts and of the per-layer branch.
//! [`Activation::SwigluOai`] changes up as well.

pub mod coop16;
pub mod grouped;
pub mod grouped_coop16;
pub mod kernels;
pub mod plain;
pub mod tiles;

use crate::base::config::Activation;
use crate::ops::act::Act;
use crate::ops::lora::Term;
use crate::ops::pass::Pass;
use crate::ops::pending::{Gated, Pending};
use crate::ops::{Unfinished, cached_gated};
pub use kernels::sizes;

/// `y = activation(gate)·up`, `[T, F]` each. Gate and up that are stored as tiles are rounded first, so that backward reads what forward did.
pub fn forward(p: &mut Pass, y: &Act, gate: &Act, up: &Act, activation: Activation) {
    if p.decoding.is_some() {
        return decoded(p, y, gate, up, activation);
    }
    let Some(y) = y.tiles() else {
        return plain::forward(p.rec.now(), y.rows(), gate.rows(), up.rows(), activation, p.tokens);
    };
    match [gate, up].map(|x| p.rec.take_halves(x).or_else(|| x.only_tiles().cloned())) {
        [Some(gate_tiles), Some(up)] => {
            let cols = gate.staging().stride;
            tiles::forward(p.rec.now(), y, [&gate_tiles, &up], cols, activation, p.tokens);
        }
        _ => coop16::forward(p.rec.now(), y, gate, up, activation, p.tokens),
    }
}

/// See [`forward`]. The adapter's term may be pending on the gate, whose rows have `up`'s beside it if that has a term, too.
fn decoded(p: &mut Pass, y: &Act, gate: &Act, up: &Act, activation: Activation) {
    let term = p.rec.take_term(gate, p.tokens);
    let gate = gate.rows();
    if y.is_finished_by_reader() {
        let gated = Gated { gate: gate.clone(), term, up: up.clone(), activation };
        return p.rec.leave(y, p.tokens, Pending::Gated(gated));
    }
    let gate = Unfinished::of(gate, term.as_ref().map(Term::up));
    cached_gated::forward(p.rec.now(), y.rows(), &gate, up.view(), activation, p.tokens, y.integers());
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
pub fn backward_in_place(
    p: &mut Pass,
    places: [&Act; 2],
    dy: &Act,
    [gate, up]: [&Act; 2],
    activation: Activation,
) -> [Act; 2] {
    if let (Some(gate), Some(up)) = (gate.tiles(), up.tiles()) {
        let dup = match p.rec.take_halves(dy) {
            Some(halves) => {
                let cols = dy.rows().stride;
                tiles::backward(p.rec.now(), [gate, up], &halves, cols, activation, p.tokens);
                up.scaled_as(&gate.by_row())
            }
            None => {
                coop16::backward(p.rec.now(), [gate, up], dy.rows(), activation, p.tokens);
                up.by_row()
            }
        };
        return [gate.by_row(), dup].map(|tiles| Act::tiled(tiles, None));
    }
    let [dgate, dup] = places;
    backward(p, dgate, Some(dup), dy, gate, up, activation);
    places.map(Act::clone)
}
