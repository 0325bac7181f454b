//! Heads of keys and values of a latent vector. A head `[K]` has the turned part of keys, which all heads share, its own part, and zeros
//! behind: `whole[t, h] = (shared[t], own[t, h], 0)`. Values have no shared part. Backward, `down[t, h]` is the own part of `dwhole[t, h]`, and
//! `dshared[t] = Σ_h dwhole[t, h]`.

use crate::gpu::{Kernel, Recorder, grid};
use crate::ops::{Rows, View};

/// Twin of `Params` in shaders/latent/plain.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    heads: u32,
    size4: u32,
    shared4: u32,
    own4: u32,
    heads_stride4: u32,
    heads_offset4: u32,
    own_stride4: u32,
    shared_stride4: u32,
    shared_offset4: u32,
}

/// Sizes of heads, multiples of 4.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// Heads `H`.
    pub heads: usize,
    /// Values `K` of a head.
    pub size: usize,
    /// Values of the shared part.
    pub shared: usize,
    /// Values of a head's own part.
    pub own: usize,
}

impl Parts {
    fn params(&self, heads: View, own: Option<&Rows>, shared: Option<View>, rows: usize) -> Params {
        Params {
            rows: rows as u32,
            heads: self.heads as u32,
            size4: (self.size / 4) as u32,
            shared4: (self.shared / 4) as u32,
            own4: (self.own / 4) as u32,
            heads_stride4: heads.stride4(),
            heads_offset4: heads.offset4(),
            own_stride4: own.map_or(0, |own| own.all().stride4()),
            shared_stride4: shared.map_or(0, |shared| shared.stride4()),
            shared_offset4: shared.map_or(0, |shared| shared.offset4()),
        }
    }
}

/// `whole` `[T, H, K]` from `own` `[T, H, own]` and `shared` `[T, shared]`, which is only read where there is a shared part.
pub fn join(rec: &mut Recorder, parts: &Parts, whole: View, own: &Rows, shared: Option<View>, rows: usize) {
    let params = parts.params(whole, Some(own), shared, rows);
    let shared = shared.map_or(rec.unused(2), |shared| shared.rows.bind(2));
    let bindings = [own.bind(1), shared, whole.rows.bind(3)];
    let threads = rows * parts.heads * parts.size / 4;
    rec.dispatch(Kernel::new("latent/plain", "join"), &params, &bindings, grid(threads.div_ceil(64)));
}

/// `own` `[T, H, own]`, the part of each head of `heads` `[T, H, K]` behind the shared one.
pub fn part(rec: &mut Recorder, parts: &Parts, own: &Rows, heads: &Rows, rows: usize) {
    let params = parts.params(heads.all(), Some(own), None, rows);
    let threads = rows * parts.heads * parts.own / 4;
    let bindings = [heads.bind(4), own.bind(5)];
    rec.dispatch(Kernel::new("latent/plain", "part"), &params, &bindings, grid(threads.div_ceil(64)));
}

/// `shared` `[T, shared]`, the sum of the shared parts of `heads` `[T, H, K]`.
pub fn sum(rec: &mut Recorder, parts: &Parts, shared: View, heads: &Rows, rows: usize) {
    let params = parts.params(heads.all(), None, Some(shared), rows);
    let threads = rows * parts.shared / 4;
    let bindings = [heads.bind(4), shared.rows.bind(6)];
    rec.dispatch(Kernel::new("latent/plain", "sum"), &params, &bindings, grid(threads.div_ceil(64)));
}
