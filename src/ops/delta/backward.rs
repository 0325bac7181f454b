//! The mirror of [`super::forward`].

use super::{BACKWARD_RUN, Delta, Gradients, Saved, binding, coop16, cuda};
use crate::gpu::{Recorder, grid};
use crate::ops::Rows;

/// The gradients from that of the output, `dout` `[T, Hv, K]`.
pub fn backward(rec: &mut Recorder, delta: &Delta, saved: &Saved, dout: &Rows, d: &Gradients) {
    match delta.on_matrices(rec) {
        _ if cuda::supports(rec.gpu(), delta.head_size) => cuda::backward(rec, delta, saved, dout, d),
        true => coop16::backward(rec, delta, saved, dout, d),
        false => recurrence(rec, delta, saved, dout, d),
    }
    let Saved { qkv, alpha, .. } = *saved;
    let Gradients { dqkv, dalpha, dbeta, dmixed, .. } = *d;
    let frozen = delta.frozen;
    let bindings = [alpha.bind(3), binding(5, &frozen.gates), dalpha.bind(6), dbeta.bind(7)];
    let threads = delta.chunks() * delta.value_heads.next_multiple_of(4);
    delta.run(rec, "delta/gates", "backward", &bindings, grid(threads.div_ceil(64)));
    let bindings = [qkv.bind(2), binding(3, &frozen.taps), dmixed.bind(5), dqkv.bind(7)];
    delta.mix(rec, "backward", &bindings, BACKWARD_RUN, false);
}

/// The gradients of queries, keys and values behind the convolution, of the sums of the decays' logarithms and of the rates.
fn recurrence(rec: &mut Recorder, delta: &Delta, saved: &Saved, dout: &Rows, d: &Gradients) {
    let Saved { mixed, gates, inverse, wu, states, .. } = *saved;
    let Gradients { dalpha, dbeta, du, dstates, pairs, dmixed, .. } = *d;
    let by_chunk = delta.by_chunk();
    let bindings = [gates.bind(2), mixed.bind(3), dout.bind(8), du.bind(9)];
    delta.run(rec, "delta/products", "outputs_back", &bindings, by_chunk);
    let bindings = [gates.bind(2), mixed.bind(3), wu.bind(4), dstates.bind(5), dout.bind(6), du.bind(7)];
    delta.run(rec, "delta/scan", "backward", &bindings, delta.by_column(delta.runs()));
    let bindings = [gates.bind(2), inverse.bind(4), du.bind(9), dmixed.bind(12)];
    delta.run(rec, "delta/products", "invert_errors", &bindings, by_chunk);
    let bindings = [gates.bind(2), wu.bind(5), dout.bind(8), du.bind(9), pairs.bind(11), dbeta.bind(14)];
    delta.run(rec, "delta/products", "pair_gradients", &bindings, by_chunk);
    let of_heads = [gates.bind(2), mixed.bind(3), dmixed.bind(12), dalpha.bind(13)];
    let bindings = [&of_heads[..], &[states.bind(6), dout.bind(8), pairs.bind(11)]].concat();
    delta.run(rec, "delta/products", "query_gradients", &bindings, by_chunk);
    let bindings = [&of_heads[..], &[states.bind(6), du.bind(9), pairs.bind(11)]].concat();
    delta.run(rec, "delta/products", "key_gradients", &bindings, by_chunk);
    let bindings = [&of_heads[..], &[wu.bind(5), states.bind(6), dstates.bind(10)]].concat();
    delta.run(rec, "delta/products", "state_gradients", &bindings, by_chunk);
}
