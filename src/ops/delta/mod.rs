//! The gated delta net between its projections: convolution, norms and gates, and the recurrence in chunks of [`CHUNK`] tokens.
//!
//! A head's state `S` `[K, K]` is zero before a sample's first token; a token decays it, reads it by its key, and corrects it:
//! `S ← e^g·S`, `S ← S + k·(β·(v − Sᵀ·k))ᵀ`, `o = Sᵀ·q`. In a chunk, with `D[i, j]` for what is left at token `i` of what token `j`
//! wrote and `Γ[i]` for what is left of the state before the chunk:
//!
//! ```text
//! A[i, j] = β[i]·D[i, j]·⟨k[i], k[j]⟩ for j < i      P[i, j] = D[i, j]·⟨q[i], k[j]⟩ for j <= i
//! W = (I + A)⁻¹·β·Γ·K      U = (I + A)⁻¹·β·V − W·S      O = Γ·Q·S + P·U      S' = Γ[last]·S + Σ D[last, j]·k[j]·u[j]ᵀ
//! ```
//!
//! Only `U` and `S'` wait for the chunk before. Backward is the mirror, from the states before each chunk; see
//! [`crate::reference::delta`]. Chunks begin at multiples of their length, and samples anywhere.

mod backward;
mod carried;
pub mod coop16;
pub mod cuda;
pub mod norm;

use crate::base::config::DeltaNet;
use crate::gpu::{Binding, Gpu, GpuError, Kernel, Recorder, grid};
use crate::ops::Rows;

pub use backward::backward;
pub use carried::{Carried, each, forward as forward_carried};

/// Tokens of a chunk.
pub const CHUNK: usize = 64;

/// Most runs of chunks between which the scan of a head is divided: with more, most micro-batches have no further run.
const MOST_RUNS: usize = 16;

/// Floats of the largest values of a chunk and head: see `largest_at` in shaders/common/delta_coop16.wgsl.
const LARGEST: usize = 20;

/// Twins of those in shaders/delta/mix.wgsl: tokens of a workgroup.
const FORWARD_RUN: usize = 4;
const BACKWARD_RUN: usize = 16;

/// Twin of `Params` in shaders/common/delta.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    tokens: u32,
    key_heads: u32,
    value_heads: u32,
    eps: f32,
    scale: f32,
}

/// The frozen parameters of a layer.
#[derive(Clone, Debug)]
pub struct Frozen {
    /// Weights of the convolution `[C, 4]`.
    taps: wgpu::Buffer,
    /// `a` and `dt` `[Hv, 2]`.
    gates: wgpu::Buffer,
}

impl Frozen {
    /// Uploads the convolution `[C, 4]`, `a = −exp(A_log)` `[Hv]` and `dt` `[Hv]`.
    pub fn new(gpu: &Gpu, taps: &[f32], a: &[f32], dt: &[f32]) -> Result<Frozen, GpuError> {
        let gates: Vec<[f32; 2]> = a.iter().zip(dt).map(|(a, dt)| [*a, *dt]).collect();
        Ok(Frozen { taps: gpu.upload("convolution", taps)?, gates: gpu.upload("gates", &gates)? })
    }

    /// The convolution of `channels` channels as a row `[1, C·4]`, and the other parameters of `value_heads` heads `[1, Hv·2]`.
    pub fn as_rows(&self, channels: usize, value_heads: usize) -> [Rows; 2] {
        let row = |buffer: &wgpu::Buffer, stride: usize| Rows { buffer: buffer.clone(), stride, start: 0 };
        [row(&self.taps, 4 * channels), row(&self.gates, 2 * value_heads)]
    }

    /// Parameters in rows as [`Frozen::as_rows`] gives them.
    pub fn in_rows([taps, gates]: [&Rows; 2]) -> Frozen {
        Frozen { taps: taps.buffer.clone(), gates: gates.buffer.clone() }
    }
}

/// The shape of a layer's delta net, and the micro-batch.
#[derive(Clone, Copy)]
pub struct Delta<'a> {
    /// Query and key heads `Hk`.
    pub key_heads: usize,
    /// Value heads `Hv`, each of which reads the query and key head `h mod Hk`.
    pub value_heads: usize,
    /// Head size `K`, a multiple of 4 up to [`DeltaNet::LARGEST_HEAD`](crate::base::config::DeltaNet::LARGEST_HEAD).
    pub head_size: usize,
    /// ε of the l2 norm.
    pub eps: f32,
    /// Parameters of the layer.
    pub frozen: &'a Frozen,
    /// First token of each token's sample, and the token behind its last `[T, 2]`.
    pub bounds: &'a wgpu::Buffer,
    /// Tokens `T`.
    pub tokens: usize,
}

/// Inputs of [`forward`], and what it leaves for [`backward()`].
#[derive(Clone, Copy)]
pub struct Saved<'a> {
    /// Input: queries, keys and values before the convolution `[T, C]`.
    pub qkv: &'a Rows,
    /// Input: `alpha` `[T, Hv]`.
    pub alpha: &'a Rows,
    /// Input: `beta` `[T, Hv]`.
    pub beta: &'a Rows,
    /// Queries, keys and values behind the convolution `[T, C]`; this and the others below as [`Widths`] has them.
    pub mixed: &'a Rows,
    /// Sums of the decays' logarithms, and rates `[T, 2, Hv]`: see [`gates_width`].
    pub gates: &'a Rows,
    /// `(I + A)⁻¹` `[T, Hv, 64]`.
    pub inverse: &'a Rows,
    /// `W` and `U` `[T, 2, Hv, K]`.
    pub wu: &'a Rows,
    /// States before each chunk `[N, Hv, K, K]`, and what follows them.
    pub states: &'a Rows,
    /// Scratch of [`forward`] where [`cuda`] has kernels: the values, then `U` without the state before the chunk `[T, Hv, K]`.
    pub values: &'a Rows,
}

/// Gradients of the inputs, and scratch.
#[derive(Clone, Copy)]
pub struct Gradients<'a> {
    /// Output: of queries, keys and values before the convolution `[T, C]`.
    pub dqkv: &'a Rows,
    /// Output: of `alpha` `[T, Hv]`.
    pub dalpha: &'a Rows,
    /// Output: of `beta` `[T, Hv]`.
    pub dbeta: &'a Rows,
    /// Scratch: of `U`, and of the right side of the solve `[T, 2, Hv, K]`; this and the others below but `dmixed` as
    /// [`Widths`] has them.
    pub du: &'a Rows,
    /// Scratch: of the states behind each chunk `[N, Hv, K, K]`, as wide as [`Saved::states`].
    pub dstates: &'a Rows,
    /// Scratch: of `P` and `A` `[T, 2, Hv, 64]`.
    pub pairs: &'a Rows,
    /// Scratch: of queries, keys and values by value head `[T, 3, Hv, K]`.
    pub dmixed: &'a Rows,
}

/// Columns of the buffers of [`Saved`] and [`Gradients`] that kernels store differently, in f32 values per token; those of states, per chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Widths {
    /// [`Saved::mixed`].
    pub mixed: usize,
    /// [`Saved::inverse`].
    pub inverse: usize,
    /// [`Saved::wu`].
    pub wu: usize,
    /// [`Saved::states`] and [`Gradients::dstates`].
    pub states: usize,
    /// [`Gradients::du`].
    pub du: usize,
    /// [`Gradients::pairs`].
    pub pairs: usize,
}

impl Widths {
    /// The columns for the kernels of `gpu`.
    pub fn of(gpu: &Gpu, net: &DeltaNet) -> Widths {
        match cuda::supports(gpu, net.head_size) {
            true => cuda::widths(net),
            false => Widths::f32(net),
        }
    }

    /// The columns where everything is f32. Behind the states of all chunks lie the largest values of each chunk and head, which the kernels on
    /// 16×16 matrices scale operands by.
    pub fn f32(net: &DeltaNet) -> Widths {
        let DeltaNet { value_heads, head_size, .. } = *net;
        Widths {
            mixed: net.channels(),
            inverse: value_heads * CHUNK,
            wu: 2 * net.values(),
            states: value_heads * (head_size * head_size + LARGEST),
            du: 2 * net.values(),
            pairs: 2 * value_heads * CHUNK,
        }
    }
}

/// Columns of [`Saved::gates`].
pub fn gates_width(value_heads: usize) -> usize {
    2 * value_heads.next_multiple_of(4)
}

/// Sizes of the shaders for heads of size `size`, with or without a state from earlier tokens.
pub fn sizes(size: usize, carried: bool) -> [(&'static str, u32); 5] {
    let groups = 256 / (size / 4);
    let items = 16usize.div_ceil(groups) as u32;
    let (carried, lanes) = (u32::from(carried), lanes(size) as u32);
    [
        ("SIZE", size as u32),
        ("STATE", 4 * size as u32),
        ("ITEMS", items),
        ("CARRIED", carried),
        ("LANES", lanes),
    ]
}

/// Sizes of shaders/delta/mix.wgsl. `halves`: it stores queries and keys in f16.
pub fn mix_sizes(size: usize, carried: bool, halves: bool) -> Vec<(&'static str, u32)> {
    [&sizes(size, carried)[..], &[("HALVES", u32::from(halves)), ("EACH", 0)]].concat()
}

/// Sizes of shaders/delta/mix.wgsl and step.wgsl over one token of every sequence.
pub fn each_sizes(size: usize) -> Vec<(&'static str, u32)> {
    [&sizes(size, true)[..], &[("HALVES", 0), ("EACH", 1)]].concat()
}

/// Threads of shaders/delta/mix.wgsl for a head of `size`.
fn lanes(size: usize) -> usize {
    (size / 4).next_power_of_two()
}

/// `o` `[T, Hv, K]`, the output of the recurrence.
pub fn forward(rec: &mut Recorder, delta: &Delta, saved: &Saved, o: &Rows) {
    let Saved { qkv, alpha, beta, mixed, gates, inverse, wu, states, values } = *saved;
    let frozen = delta.frozen;
    let in_cuda = cuda::supports(rec.gpu(), delta.head_size);
    let bindings = [qkv.bind(2), binding(3, &frozen.taps), mixed.bind(4), values.bind(6)];
    delta.mix(rec, "forward", &bindings[..if in_cuda { 4 } else { 3 }], FORWARD_RUN, in_cuda);
    let bindings = [gates.bind(2), alpha.bind(3), beta.bind(4), binding(5, &frozen.gates)];
    let threads = delta.chunks() * delta.value_heads;
    delta.run(rec, "delta/gates", "forward", &bindings, grid(threads.div_ceil(64)));
    if in_cuda {
        return cuda::forward(rec, delta, saved, o);
    }
    if delta.on_matrices(rec) {
        return coop16::forward(rec, delta, saved, o);
    }
    let bindings = [gates.bind(2), mixed.bind(3), inverse.bind(4)];
    delta.run(rec, "delta/solve", "forward", &bindings, delta.by_chunk());
    let bindings = [gates.bind(2), mixed.bind(3), inverse.bind(4), wu.bind(5)];
    delta.run(rec, "delta/products", "invert", &bindings, delta.by_chunk());
    let bindings = [gates.bind(2), mixed.bind(3), wu.bind(4), states.bind(5)];
    delta.run(rec, "delta/scan", "forward", &bindings, delta.by_column(delta.runs()));
    let bindings = [gates.bind(2), mixed.bind(3), wu.bind(5), states.bind(6), o.bind(7)];
    delta.run(rec, "delta/products", "outputs", &bindings, delta.by_chunk());
}

impl Delta<'_> {
    /// Heads of queries, keys and values.
    fn heads(&self) -> usize {
        2 * self.key_heads + self.value_heads
    }

    /// Whether the products run on 16×16 matrices.
    fn on_matrices(&self, rec: &Recorder) -> bool {
        rec.gpu().kernels().reads_tiles() && coop16::supports(self.head_size)
    }

    fn chunks(&self) -> usize {
        self.tokens.div_ceil(CHUNK)
    }

    /// One workgroup per chunk and value head.
    fn by_chunk(&self) -> [u32; 3] {
        [self.chunks() as u32, self.value_heads as u32, 1]
    }

    /// One workgroup per value head, 16 columns of its state, and run of chunks.
    fn by_column(&self, runs: usize) -> [u32; 3] {
        [self.value_heads as u32, self.head_size.div_ceil(16) as u32, runs as u32]
    }

    /// Runs of chunks, where no earlier tokens come before these; some may be empty.
    fn runs(&self) -> usize {
        self.chunks().min(MOST_RUNS)
    }

    /// One workgroup of shaders/delta/mix.wgsl per `run` tokens and the heads that 64 threads hold.
    fn by_heads(&self, run: usize) -> [u32; 3] {
        grid(self.tokens.div_ceil(run) * self.heads().div_ceil(64 / lanes(self.head_size)))
    }

    /// Runs a kernel of shaders/delta/mix.wgsl.
    fn mix(&self, rec: &mut Recorder, entry: &'static str, bindings: &[Binding], run: usize, halves: bool) {
        let kernel = Kernel::new("delta/mix", entry).with_sizes(mix_sizes(self.head_size, false, halves));
        self.dispatch(rec, kernel, bindings, self.by_heads(run));
    }

    /// Runs a kernel that reads the bounds at binding 1.
    fn run(
        &self,
        rec: &mut Recorder,
        shader: &'static str,
        entry: &'static str,
        bindings: &[Binding],
        workgroups: [u32; 3],
    ) {
        let kernel = Kernel::new(shader, entry).with_sizes(sizes(self.head_size, false));
        self.dispatch(rec, kernel, bindings, workgroups);
    }

    /// Runs a kernel with its sizes, which reads the bounds at binding 1.
    fn dispatch(&self, rec: &mut Recorder, kernel: Kernel, bindings: &[Binding], workgroups: [u32; 3]) {
        let bindings = [&[binding(1, self.bounds)], bindings].concat();
        rec.dispatch(kernel, &self.params(), &bindings, workgroups);
    }

    fn params(&self) -> Params {
        Params {
            tokens: self.tokens as u32,
            key_heads: self.key_heads as u32,
            value_heads: self.value_heads as u32,
            eps: self.eps,
            scale: (self.head_size as f64).powf(-0.5) as f32,
        }
    }
}

fn binding(index: u32, buffer: &wgpu::Buffer) -> Binding<'_> {
    Binding { index, buffer, range: None }
}
