//! The end of a block and the norm before the next block; for decoding.

use crate::gpu::{Kernel, Recorder};
use crate::ops::matvec::{self, integers::Integers};
use crate::ops::norm::Norm;
use crate::ops::{Rows, Unfinished};

/// Twin of `Params` in shaders/block_end/plain.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    width4: u32,
    y_stride4: u32,
    z_offset4: u32,
    rank4: u32,
    next: u32,
    ended: u32,
    eps: f32,
    scale: f32,
    next_eps: f32,
}

/// Maximum number of vec4s of a row per thread; with 256 threads, rows have up to 8192 columns.
pub const MAX_SHARES: usize = 8;
/// Threads per workgroup, or per group of a workgroup.
const THREADS: usize = 256;
/// Groups that share `B`, if the device supports workgroups of that many threads.
const GROUPS: usize = 4;

/// The norm before the next block.
#[derive(Clone, Copy)]
pub struct Next<'a> {
    /// The norm.
    pub norm: &'a Norm,
    /// The buffer that takes the normed row as integers too; only for one row.
    pub integers: Option<&'a Integers>,
}

/// The end of a block.
#[derive(Clone, Copy)]
pub struct End<'a> {
    /// The norm of its output.
    pub norm: &'a Norm,
    /// Factor of the sum.
    pub scale: f32,
    /// The norm before the next block.
    pub next: Option<Next<'a>>,
    /// Whether the stream before is in `normed`, where [`crate::ops::matvec::forward_ended`] left it.
    pub ended: bool,
}

impl<'a> End<'a> {
    /// The sum without a factor, and nothing after it.
    pub fn of(norm: &'a Norm) -> End<'a> {
        End { norm, scale: 1.0, next: None, ended: false }
    }
}

/// `stream = scale·(stream + norm(y + B·z))` for `rows` rows of `[rows, D]`; with `next`, also `normed = next(stream)`. A row
/// of products starts with `y` `[rows, D]` and contains `z`.
pub fn forward(
    rec: &mut Recorder,
    stream: &Rows,
    normed: &Rows,
    y: &Unfinished,
    End { norm, scale, next, ended }: End,
    rows: usize,
) {
    let up = y.term.as_ref();
    let y = &y.rows;
    let params = Params {
        width4: (norm.width / 4) as u32,
        y_stride4: (y.stride / 4) as u32,
        z_offset4: up.map_or(0, |u| u.member(0).0 / 4),
        rank4: up.map_or(0, |u| (u.rank / 4) as u32),
        next: u32::from(next.is_some()),
        ended: u32::from(ended),
        eps: if norm.identity { next.map_or(0.0, |next| next.norm.eps) } else { norm.eps },
        scale,
        next_eps: next.map_or(0.0, |next| next.norm.eps),
    };
    let b = up.map_or(rec.unused(2), |u| u.bind(2));
    // The kernel reads them in any case, without checks on GPUs: where there are none, a row that is as long takes their place.
    let next_weights = match (next, &norm.weight) {
        (None, None) => y.bind(4),
        _ => next.map_or(norm, |next| next.norm).weights(rec, 4),
    };
    let integers = next.and_then(|next| next.integers);
    assert!(integers.is_none() || rows == 1, "integers are for one row");
    let mut bindings = vec![y.bind(1), b, next_weights, stream.bind(5), normed.bind(6)];
    bindings.extend(norm.weights_of_norm(rec, 3));
    bindings.extend(integers.map(|integers| integers.bind(7)));
    let shares = norm.width.div_ceil(4 * 256);
    assert!(
        shares <= MAX_SHARES,
        "rows have {} columns, at most {} are supported",
        norm.width,
        MAX_SHARES * 1024
    );
    let gpu = rec.gpu();
    let groups = if up
        .is_some_and(|u| gpu.threads_to_share() >= THREADS * GROUPS && u.rank.is_multiple_of(4 * GROUPS))
    {
        GROUPS
    } else {
        1
    };
    let kernel = Kernel::new("block_end/plain", "forward")
        .with_size("SHARES", shares as u32)
        .with_size("DEEP", up.map_or(1, |u| u.deep(MAX_SHARES / shares, groups)))
        .with_size("THREADS", (THREADS * groups) as u32)
        .with_size("GROUPED", u32::from(groups > 1))
        .with_size("INTEGERS", u32::from(integers.is_some()))
        .with_size("TWO_EPS", u32::from(params.next_eps != params.eps && next.is_some()))
        .with_sizes([norm.size(), matvec::early(gpu, rows)]);
    rec.dispatch(kernel, &params, &bindings, [rows as u32, 1, 1]);
}
