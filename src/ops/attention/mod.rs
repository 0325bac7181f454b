//! Causal, windowed, grouped-query attention over packed samples; the backward recomputes the probabilities.

pub mod coop16;
pub mod coop16_backward;
pub mod coop16_rows;
pub mod cuda;

use crate::gpu::{Binding, Kernel, Products, Recorder, grid};
use crate::ops::Rows;
use crate::ops::act::Act;
use crate::ops::pass::Pass;
use crate::ops::row_factors;

/// Largest head size that the kernels hold in registers.
pub const MAX_HEAD_SIZE: usize = 512;

/// Twin of `Params` in shaders/attention/tiled.wgsl, which imports it from shaders/common/attention.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    heads: u32,
    kv_heads: u32,
    window: u32,
    q_scale: f32,
    k_scale: f32,
    scale: f32,
}

/// The shape of a layer's attention over a micro-batch.
#[derive(Clone, Copy)]
pub struct Attention<'a> {
    /// Query heads `H`.
    pub heads: usize,
    /// Key/value heads `G`.
    pub kv_heads: usize,
    /// Head size `K`, a multiple of 4, at most [`MAX_HEAD_SIZE`].
    pub head_size: usize,
    /// Sliding window.
    pub window: Option<usize>,
    /// One more score of each head, to which no value belongs, `[H]`. Backward is that without sinks, given the `out` and `lse`
    /// with them.
    pub sinks: Option<&'a wgpu::Buffer>,
    /// First row and one past the last row of each token's sample, `[T, 2]` u32.
    pub bounds: &'a wgpu::Buffer,
    /// `c` of `c·tanh(s/c)` on the scores; `None` without.
    pub softcap: Option<f32>,
    /// `T`.
    pub rows: usize,
    /// Tokens of the longest sample.
    pub longest: usize,
    /// The power of two by which queries become operands in f16, [`crate::ops::rms_norm::Norm::scale`].
    pub q_scale: f32,
    /// The power of two by which keys become operands in f16.
    pub k_scale: f32,
}

/// `out` `[T, H, K]` and the row log-sum-exp `lse` `[T, H]` from `q` `[T, H, K]`, `k` and `v` `[T, G, K]`. Nothing is computed
/// where `out` is kept already.
pub fn forward(p: &mut Pass, shape: &Attention, out: &Act, lse: &Act, [q, k, v]: [&Act; 3]) {
    if out.is_kept() {
        return;
    }
    let lse = lse.rows();
    if let Some(operands) = coop16::Operands::of(q, k, v) {
        return coop16::forward(p.rec.now(), shape, out, lse, operands);
    }
    shape.forward(p.rec.now(), &out.staging(), lse, q.rows(), k.rows(), v.rows());
    out.store(p.rec.now(), p.tokens);
}

/// `dq` (overwritten), `dk` and `dv` (added to) from `dout`, which is scratch afterwards.
pub fn backward(
    p: &mut Pass,
    shape: &Attention,
    [dq, dk, dv]: [&Act; 3],
    dout: &Act,
    [q, k, v]: [&Act; 3],
    out: &Act,
    lse: &Act,
) {
    let gradients = [dq.rows(), dk.rows(), dv.rows()];
    let halves = p.rec.take_halves(dout);
    let (dout, lse) = (dout.rows(), lse.rows());
    let scratch = p.scratch;
    let dheads = &scratch.dheads;
    if let (Some(coop16), Some(operands)) = (&scratch.attention, coop16::Operands::of(q, k, v)) {
        return coop16.backward(p.rec.now(), shape, gradients, dheads, (dout, halves), operands, out, lse);
    }
    let out = out.f32(p.rec.now(), p.tokens);
    let delta = &scratch.delta.reshaped(2 * shape.heads);
    let qkv = [q.rows(), k.rows(), v.rows()];
    shape.backward(p.rec.now(), gradients, [delta, dheads], dout, qkv, &out, lse);
}

/// `dout` of [`backward`] over the queries `q`, which a product may leave [in f16](Act::in_halves) where the kernels take that.
pub fn gradient_of(p: &Pass, shape: &Attention, dout: &Act, q: &Act) -> Act {
    let tiled = p.scratch.attention.is_some() && q.tiles().is_some();
    let reads_halves = tiled && cuda::supports(p.rec.gpu(), shape.head_size, shape.softcap);
    if reads_halves { dout.clone().in_halves() } else { dout.clone() }
}

/// The shader of a variant; helpers such as `delta` are shared.
enum Shader {
    /// shaders/attention/tiled.wgsl
    Plain,
    /// shaders/attention/software.wgsl, on registers of so many lanes.
    Simd(u32),
    /// shaders/attention/coop8.wgsl, on subgroups of so many lanes.
    Matrices(u32),
}

fn shader(rec: &Recorder) -> Shader {
    let kernels = rec.gpu().kernels();
    match (kernels.products(), kernels.software_lanes()) {
        (Products::Coop8 { lanes }, _) => Shader::Matrices(lanes),
        (_, Some(lanes)) if !half(rec) => Shader::Simd(lanes),
        _ => Shader::Plain,
    }
}

/// Whether operands are f16.
fn half(rec: &Recorder) -> bool {
    rec.gpu().kernels().half_operands()
}

/// The shaders' size for a softcap of scores: the bits of its f32, 0 without.
pub(in crate::ops) fn cap(softcap: Option<f32>) -> u32 {
    softcap.map_or(0, f32::to_bits)
}

/// Index of the binding of the sinks.
const SINKS: u32 = 10;

/// Query rows per workgroup; 16 gives the best occupancy on an H200.
const OWN_ROWS: usize = 16;
/// Rows that a workgroup of shaders/attention/coop8.wgsl makes results for.
const COOP8_OWN_ROWS: usize = 32;

/// Columns of the sums that a thread with few registers holds: with four rows of 64 columns, no GPU that was tried spills.
const FEW_COLUMNS: usize = 256;

/// Workgroups that share the columns of a head's sums.
fn passes(head_size: usize, few_registers: bool) -> usize {
    if few_registers { head_size.div_ceil(FEW_COLUMNS) } else { 1 }
}

/// The sizes of the shader for heads of `head_size`, a multiple of 4, at most [`MAX_HEAD_SIZE`]. In f32 it takes the 16 KiB of
/// workgroup memory that every WebGPU device has.
pub fn sizes(head_size: usize, half: bool, few_registers: bool) -> Vec<(&'static str, u32)> {
    // Short rows of f16 have enough.
    let few_registers = few_registers && (head_size > 64 || !half);
    let threads = if half || few_registers { 128 } else { 64 };
    let slice4 = if half && !few_registers { 8 } else { 4 };
    let staged = OWN_ROWS + 32;
    let passes = passes(head_size, few_registers);
    let sizes = [
        ("HEAD4", head_size / 4),
        ("FEW", few_registers.into()),
        // A first column that the compiler knows saves registers.
        ("SPLIT", (passes > 1).into()),
        ("THREADS", threads),
        ("ROWS", OWN_ROWS / (threads / 16)),
        ("PARTS", 512 / threads),
        ("COLS", head_size.div_ceil(64).div_ceil(passes)),
        ("SLICE4", slice4),
        ("LOADS", (staged * slice4).div_ceil(threads)),
        ("STAGE", (staged * (slice4 + 1)).max(512)),
    ]
    .map(|(name, n)| (name, n as u32));
    [&sizes[..], &[row_factors::size(half)]].concat()
}

/// The sizes of shaders/attention/coop8.wgsl beside its lanes.
pub fn coop8_sizes(head_size: usize) -> [(&'static str, u32); 2] {
    [("HEAD4", (head_size / 4) as u32), ("COLS", head_size.div_ceil(64) as u32)]
}

impl<'a> Attention<'a> {
    /// Attention over one sample of `rows` tokens, whose `bounds` are given, without window, sinks and softcap. Queries and keys have
    /// their own scale.
    pub fn of_sample(
        [heads, kv_heads, head_size]: [usize; 3],
        rows: usize,
        bounds: &'a wgpu::Buffer,
    ) -> Attention<'a> {
        Attention {
            heads,
            kv_heads,
            head_size,
            window: None,
            sinks: None,
            softcap: None,
            bounds,
            rows,
            longest: rows,
            q_scale: 1.0,
            k_scale: 1.0,
        }
    }

    fn dispatch(&self, rec: &mut Recorder, entry: &'static str, bindings: &[Binding], workgroups: [u32; 3]) {
        let params = Params {
            rows: self.rows as u32,
            heads: self.heads as u32,
            kv_heads: self.kv_heads as u32,
            window: self.window.unwrap_or(0) as u32,
            q_scale: self.q_scale,
            k_scale: self.k_scale,
            scale: 1.0 / (self.q_scale * self.k_scale),
        };
        let alike = ["delta", "sum_heads"].contains(&entry);
        let kernel = match shader(rec) {
            Shader::Simd(lanes) if !alike => Kernel::new("attention/software", entry)
                .with_lanes(lanes)
                .with_size("HEAD4", (self.head_size / 4) as u32),
            Shader::Matrices(lanes) if !alike => Kernel::new("attention/coop8", entry)
                .with_size("LANES", lanes)
                .with_sizes(coop8_sizes(self.head_size)),
            _ => Kernel::new("attention/tiled", entry).with_sizes(sizes(
                self.head_size,
                half(rec),
                rec.gpu().kernels().few_registers(),
            )),
        };
        let kernel = kernel.with_size("CAP", cap(self.softcap));
        let has_sinks = bindings.iter().any(|binding| binding.index == SINKS);
        let kernel = kernel.with_size("SINKS", u32::from(has_sinks));
        rec.dispatch(kernel, &params, bindings, workgroups);
    }

    /// Upper bound on the queries that attend to one key.
    pub(in crate::ops) fn reach(&self) -> usize {
        self.window.map_or(self.longest, |window| window.min(self.longest))
    }

    fn bounds(&self) -> Binding<'a> {
        Binding { index: 4, buffer: self.bounds, range: None }
    }

    /// The binding of the sinks, where there are any.
    fn sinks(&self) -> Option<Binding<'a>> {
        self.sinks.map(|buffer| Binding { index: SINKS, buffer, range: None })
    }

    fn blocks(&self, rec: &Recorder, heads: usize) -> [u32; 3] {
        let (block, passes) = match shader(rec) {
            Shader::Plain => (OWN_ROWS, passes(self.head_size, rec.gpu().kernels().few_registers())),
            Shader::Simd(lanes) => (2 * lanes as usize, 1),
            Shader::Matrices(_) => (COOP8_OWN_ROWS, 1),
        };
        [self.rows.div_ceil(block) as u32, heads as u32, passes as u32]
    }

    /// `out` `[T, H, K]` and the row log-sum-exp `lse` `[T, H]` from `q` `[T, H, K]`, `k` and `v` `[T, G, K]`.
    pub fn forward(&self, rec: &mut Recorder, out: &Rows, lse: &Rows, q: &Rows, k: &Rows, v: &Rows) {
        let blocks = self.blocks(rec, self.heads);
        let mut bindings = vec![q.bind(1), k.bind(2), v.bind(3), self.bounds(), out.bind(6), lse.bind(7)];
        if let Shader::Matrices(_) = shader(rec) {
            let mut bindings = vec![q.bind(1), k.bind(2), self.bounds(), lse.bind(7)];
            bindings.extend(self.sinks());
            self.dispatch(rec, "lse", &bindings, blocks);
        } else {
            bindings.extend(self.sinks());
        }
        self.dispatch(rec, "forward", &bindings, blocks);
    }

    /// `dq` (overwritten), `dk` and `dv` (added to); `delta` `[T, H, 2]` and `dheads` `[T, H, K]` are scratch.
    pub fn backward(
        &self,
        rec: &mut Recorder,
        [dq, dk, dv]: [&Rows; 3],
        [delta, dheads]: [&Rows; 2],
        dout: &Rows,
        [q, k, v]: [&Rows; 3],
        out: &Rows,
        lse: &Rows,
    ) {
        self.delta(rec, delta, dout, out);
        let saved = [q.bind(1), k.bind(2), self.bounds(), dout.bind(5), lse.bind(7), delta.bind(8)];
        fn with<'b>(saved: &[Binding<'b>], more: &[Binding<'b>]) -> Vec<Binding<'b>> {
            [saved, more].concat()
        }
        let blocks = self.blocks(rec, self.heads);
        self.dispatch(rec, "backward_q", &with(&saved, &[v.bind(3), dq.bind(6)]), blocks);
        if let Shader::Simd(_) = shader(rec) {
            let both = with(&saved, &[v.bind(3), dk.bind(6), dv.bind(9)]);
            return self.dispatch(rec, "backward_kv", &both, self.blocks(rec, self.kv_heads));
        }
        self.dispatch(rec, "backward_k", &with(&saved, &[v.bind(3), dheads.bind(6)]), blocks);
        self.sum_heads(rec, dk, dheads);
        self.dispatch(rec, "backward_v", &with(&saved, &[dheads.bind(6)]), blocks);
        self.sum_heads(rec, dv, dheads);
    }

    /// `delta = Σ dout·out`, by row and head, and what undoes the scaling of `dout`.
    fn delta(&self, rec: &mut Recorder, delta: &Rows, dout: &Rows, out: &Rows) {
        let bindings = [out.bind(1), dout.bind(5), delta.bind(8)];
        self.dispatch(rec, "delta", &bindings, grid((self.rows * self.heads).div_ceil(64)));
    }

    /// `dk` or `dv` += the gradients of the query heads that share it.
    pub(in crate::ops) fn sum_heads(&self, rec: &mut Recorder, dkv: &Rows, dheads: &Rows) {
        let count = self.rows * self.kv_heads * self.head_size / 4;
        self.dispatch(rec, "sum_heads", &[dheads.bind(1), dkv.bind(6)], grid(count.div_ceil(64)));
    }
}
