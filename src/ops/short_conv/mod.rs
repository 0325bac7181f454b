//! The gated short convolution between its projections: `y[t] = c[t]·Σ_j w[j]·u[t − n + 1 + j]` with `u = b·x`, over the tokens of a sample. A row
//! of `bcx` has `b`, `c` and `x`.
//!
//! The convolution of delta nets is another kernel: it has SiLU and norms of heads in the place of the gates.

use crate::base::config::ShortConv;
use crate::gpu::{Binding, Gpu, GpuError, Kernel, Recorder, grid};
use crate::ops::Rows;
use crate::ops::delta::Carried;

/// Twin of `Params` in shaders/short_conv/plain.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    tokens: u32,
    channels4: u32,
    in4: u32,
    out4: u32,
}

/// The frozen weights of a layer.
#[derive(Clone, Debug)]
pub struct Taps {
    /// `[C, 4]`, zeros in front of fewer than four.
    weights: wgpu::Buffer,
}

impl Taps {
    /// Uploads `weights` `[C, n]` of a convolution of this shape.
    pub fn new(gpu: &Gpu, shape: &ShortConv, weights: &[f32]) -> Result<Taps, GpuError> {
        let most = ShortConv::MOST_TAPS;
        let mut padded = vec![0.0; most * shape.channels];
        for (to, from) in padded.chunks_exact_mut(most).zip(weights.chunks_exact(shape.taps)) {
            to[most - shape.taps..].copy_from_slice(from);
        }
        Ok(Taps { weights: gpu.upload("convolution", &padded)? })
    }

    /// The weights of `channels` channels as a row `[1, C·4]`.
    pub fn as_rows(&self, channels: usize) -> Rows {
        Rows { buffer: self.weights.clone(), stride: ShortConv::MOST_TAPS * channels, start: 0 }
    }

    /// Weights in a row as [`Taps::as_rows`] gives them.
    pub fn in_rows(rows: &Rows) -> Taps {
        Taps { weights: rows.buffer.clone() }
    }
}

/// The convolution of a layer, and the tokens of a pass.
#[derive(Clone, Copy)]
pub struct Convolution<'a> {
    /// Channels `C`, a multiple of 4.
    pub channels: usize,
    /// Weights.
    pub taps: &'a Taps,
    /// Tokens `T`.
    pub tokens: usize,
}

/// Sizes of the shader. `carried`: tokens that follow others; `each`: one of every sequence.
pub fn sizes(carried: bool, each: bool) -> [(&'static str, u32); 2] {
    [("CARRIED", u32::from(carried)), ("EACH", u32::from(each))]
}

/// `y` `[T, C]` from `bcx` `[T, 3, C]`. `bounds`: first token of each token's sample, and the token behind its last `[T, 2]`.
pub fn forward(rec: &mut Recorder, conv: &Convolution, y: &Rows, bcx: &Rows, bounds: &wgpu::Buffer) {
    let bindings = [binding(1, bounds), bcx.bind(2), conv.taps(), y.bind(4)];
    conv.run(rec, "forward", [false, false], &bindings, [bcx, y], conv.tokens);
}

/// `dbcx` from `dy`; `bounds` as in [`forward`].
pub fn backward(
    rec: &mut Recorder,
    conv: &Convolution,
    dbcx: &Rows,
    dy: &Rows,
    bcx: &Rows,
    bounds: &wgpu::Buffer,
) {
    let bindings = [binding(1, bounds), bcx.bind(2), conv.taps(), dy.bind(5), dbcx.bind(6)];
    conv.run(rec, "backward", [false, false], &bindings, [bcx, dy], conv.tokens);
}

/// `y` of tokens of one sequence that follow `past` (u32, `[1]`) others.
pub fn forward_carried(
    rec: &mut Recorder,
    conv: &Convolution,
    carried: &Carried,
    past: &wgpu::Buffer,
    y: &Rows,
    bcx: &Rows,
) {
    let (past, history) = (binding(8, past), carried.bind_history(9));
    let bindings = [bcx.bind(2), conv.taps(), y.bind(4), past, history];
    conv.run(rec, "forward", [true, false], &bindings, [bcx, y], conv.tokens);
    conv.run(rec, "keep", [true, false], &[bcx.bind(2), past, history], [bcx, y], conv.tokens.min(3));
}

/// `y` of one more token of every sequence. `steps` has the tokens before it and its sequence, u32 `[T, 2]`.
pub fn each(
    rec: &mut Recorder,
    conv: &Convolution,
    carried: &Carried,
    steps: &wgpu::Buffer,
    y: &Rows,
    bcx: &Rows,
) {
    let (steps, history) = (binding(8, steps), binding(9, &carried.history));
    let bindings = [bcx.bind(2), conv.taps(), y.bind(4), steps, history];
    conv.run(rec, "forward", [true, true], &bindings, [bcx, y], conv.tokens);
    conv.run(rec, "keep", [true, true], &[bcx.bind(2), steps, history], [bcx, y], conv.tokens);
}

impl<'a> Convolution<'a> {
    fn taps(&self) -> Binding<'a> {
        binding(3, &self.taps.weights)
    }

    /// Runs a kernel with a thread for every four channels of `rows` tokens.
    fn run(
        &self,
        rec: &mut Recorder,
        entry: &'static str,
        [carried, each]: [bool; 2],
        bindings: &[Binding],
        [bcx, y]: [&Rows; 2],
        rows: usize,
    ) {
        let params = Params {
            tokens: self.tokens as u32,
            channels4: (self.channels / 4) as u32,
            in4: (bcx.stride / 4) as u32,
            out4: (y.stride / 4) as u32,
        };
        let kernel = Kernel::new("short_conv/plain", entry).with_sizes(sizes(carried, each));
        rec.dispatch(kernel, &params, bindings, grid((rows * self.channels / 4).div_ceil(64)));
    }
}

fn binding(index: u32, buffer: &wgpu::Buffer) -> Binding<'_> {
    Binding { index, buffer, range: None }
}
