//! The gated product of a feed-forward block or per-layer branch, with the adapter's terms; for decoding.

use crate::base::config::Activation;
use crate::gpu::{Kernel, Recorder, grid};
use crate::ops::gated::sizes;
use crate::ops::matvec::{self, integers::Integers};
use crate::ops::{Rows, Unfinished, View};

/// Twin of `Params` in shaders/cached_gated/plain.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    width4: u32,
    gate_stride4: u32,
    up_stride4: u32,
    up_offset4: u32,
    z_offset4: u32,
    rank4: u32,
    up_z_offset4: u32,
    up_b_offset4: u32,
    up_rank4: u32,
}

/// `y = activation(gate + B·z)·(up + B·z)` for `rows` rows of `y`'s width. A row of products starts with the gate and contains the
/// `z` of both. The adapter's first member belongs to the gate; its second, if there is one, to `up`. With `integers`, the only row is stored
/// as integers too.
pub fn forward(
    rec: &mut Recorder,
    y: &Rows,
    gate: &Unfinished,
    up: View,
    activation: Activation,
    rows: usize,
    integers: Option<&Integers>,
) {
    assert!(integers.is_none() || rows == 1, "integers are for one row");
    let adapter = gate.term.as_ref();
    let gate = &gate.rows;
    let rank4 = adapter.map_or(0, |a| (a.rank / 4) as u32);
    let of_up = adapter.filter(|a| a.offsets.len() > 1).map(|a| a.member(1));
    let (up_z_offset, up_b_offset) = of_up.unwrap_or_default();
    let params = Params {
        rows: rows as u32,
        width4: (y.stride / 4) as u32,
        gate_stride4: (gate.stride / 4) as u32,
        up_stride4: up.stride4(),
        up_offset4: up.offset4(),
        z_offset4: adapter.map_or(0, |a| a.member(0).0 / 4),
        rank4,
        up_z_offset4: up_z_offset / 4,
        up_b_offset4: up_b_offset / 4,
        up_rank4: if of_up.is_some() { rank4 } else { 0 },
    };
    let b = adapter.map_or(rec.unused(3), |a| a.bind(3));
    let mut bindings = vec![gate.bind(1), up.rows.bind(2), b, y.bind(4)];
    bindings.extend(integers.map(|integers| integers.bind(5)));
    let count = rows * y.stride / 4;
    // On a device that runs many threads at once, more threads read B.
    let shared =
        rec.gpu().kernels().workgroups_to_fill() > 0 && adapter.is_some_and(|a| a.rank.is_multiple_of(16));
    let parts = if shared { 4 } else { 1 };
    let kernel = Kernel::new("cached_gated/plain", "forward")
        .with_size("DEEP", adapter.map_or(1, |a| a.deep(4, parts)))
        .with_size("PARTS", parts as u32)
        .with_size("PARTED", u32::from(shared))
        .with_size("INTEGERS", u32::from(integers.is_some()))
        .with_sizes([matvec::early(rec.gpu(), rows)])
        .with_sizes(sizes(activation));
    rec.dispatch(kernel, &params, &bindings, grid(count.div_ceil(64 / parts)));
}
