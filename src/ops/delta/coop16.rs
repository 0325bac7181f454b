//! The products of [`super::forward`] and [`super::backward()`] on cooperative matrices of 16×16, for the head sizes that [`supports`]
//! accepts. Operands become f16, divided by powers of two; sums and states are f32.

use super::{Delta, Gradients, Saved};
use crate::gpu::{Binding, Kernel, Recorder};
use crate::ops::Rows;

/// Whether the kernels take heads of this size.
pub fn supports(head_size: usize) -> bool {
    [16, 32, 64, 128].contains(&head_size)
}

/// The shaders' sizes for heads of `head_size`, which must be [supported](supports).
pub fn sizes(head_size: usize) -> [(&'static str, u32); 10] {
    let matrices = head_size / 16;
    [
        ("SIZE", head_size),
        ("CARRIED", 0),
        ("ROWS", matrices.min(4)),          // a subgroup's matrices down a result
        ("COLUMNS", (matrices / 4).max(1)), // and across it
        ("RHS", (8 * head_size + 64).max(640)),
        ("LOADS", matrices),              // vec4s of 32 rows that a thread loads
        ("STEPS", matrices.div_ceil(2)),  // of 32 columns of a head
        ("TILES", (matrices / 4).max(1)), // a subgroup's blocks of 16 rows of a state
        ("STATE", 6 * head_size),
        ("DEEP", matrices.min(2)), // matrices across such a step
    ]
    .map(|(name, n)| (name, n as u32))
}

/// From queries, keys, values and gates to `o` `[T, Hv, K]`.
pub(super) fn forward(rec: &mut Recorder, delta: &Delta, saved: &Saved, o: &Rows) {
    let Saved { mixed, gates, inverse, wu, states, .. } = *saved;
    let by_chunk = delta.by_chunk();
    let bindings = [gates.bind(2), mixed.bind(3), inverse.bind(4)];
    run(rec, delta, "delta/coop16_pairs", "gram", &bindings, by_chunk);
    let solve = Kernel::new("delta/solve", "in_place").with_sizes(super::sizes(delta.head_size, false));
    rec.dispatch(solve, &delta.params(), &[inverse.bind(4)], by_chunk);
    let bindings = [gates.bind(2), mixed.bind(3), inverse.bind(4), wu.bind(5)];
    let [chunks, heads, _] = by_chunk;
    run(rec, delta, "delta/coop16", "invert", &bindings, [chunks, heads, 2]);
    let bindings = [gates.bind(2), mixed.bind(3), wu.bind(4), states.bind(5)];
    run(rec, delta, "delta/coop16_scan", "forward", &bindings, delta.by_column(delta.runs()));
    let bindings = [gates.bind(2), mixed.bind(3), wu.bind(5), states.bind(6), o.bind(7)];
    run(rec, delta, "delta/coop16_pairs", "outputs", &bindings, by_chunk);
}

/// The gradients of queries, keys and values behind the convolution, of the sums of the decays' logarithms and of the rates.
pub(super) fn backward(rec: &mut Recorder, delta: &Delta, saved: &Saved, dout: &Rows, d: &Gradients) {
    let Saved { mixed, gates, inverse, wu, states, .. } = *saved;
    let Gradients { dalpha, dbeta, du, dstates, pairs, dmixed, .. } = *d;
    let by_chunk = delta.by_chunk();
    let made = [states.bind(6), dout.bind(8), du.bind(9), dstates.bind(10)];
    let bindings = [&[gates.bind(2), mixed.bind(3)], &made[..]].concat();
    run(rec, delta, "delta/coop16_pairs", "outputs_back", &bindings, by_chunk);
    let bindings = [gates.bind(2), mixed.bind(3), wu.bind(4), dstates.bind(5), dout.bind(6), du.bind(7)];
    run(rec, delta, "delta/coop16_scan", "backward", &bindings, delta.by_column(delta.runs()));
    let bindings = [gates.bind(2), inverse.bind(4), du.bind(9), dstates.bind(10), dmixed.bind(12)];
    run(rec, delta, "delta/coop16", "invert_errors", &bindings, by_chunk);
    let made = [wu.bind(5), states.bind(6), dout.bind(8), du.bind(9), dstates.bind(10)];
    let bindings = [&[gates.bind(2)], &made[..], &[pairs.bind(11), dbeta.bind(14)]].concat();
    run(rec, delta, "delta/coop16_pairs", "pair_gradients", &bindings, by_chunk);
    let of_heads = [gates.bind(2), mixed.bind(3), dmixed.bind(12), dalpha.bind(13)];
    for (entry, operands) in [
        ("query_gradients", &[states.bind(6), dout.bind(8), dstates.bind(10), pairs.bind(11)][..]),
        ("key_reads", &[states.bind(6), du.bind(9), dstates.bind(10), pairs.bind(11)]),
        ("key_writes", &[dstates.bind(10), pairs.bind(11)]),
        ("state_gradients", &[wu.bind(5), states.bind(6), dstates.bind(10)]),
    ] {
        run(rec, delta, "delta/coop16", entry, &[&of_heads[..], operands].concat(), by_chunk);
    }
}

fn run(
    rec: &mut Recorder,
    delta: &Delta,
    shader: &'static str,
    entry: &'static str,
    bindings: &[Binding],
    workgroups: [u32; 3],
) {
    delta.dispatch(rec, Kernel::new(shader, entry).with_sizes(sizes(delta.head_size)), bindings, workgroups);
}
