//! [`super::forward`] over the next tokens of one sequence, which continues the state of those before; for decoding.

use super::{Delta, FORWARD_RUN, Saved, binding, each_sizes, mix_sizes};
use crate::gpu::{Binding, Gpu, GpuError, Kernel, Recorder, grid};
use crate::ops::Rows;

/// The state of one layer between passes. It counts as zero before the first token.
#[derive(Clone, Debug)]
pub struct Carried {
    /// Inputs of the convolution; those of token `p` are in row `p % 4` `[4, C]`.
    pub history: wgpu::Buffer,
    /// `S` of every head `[Hv, K, K]`; nothing of a short convolution.
    pub state: wgpu::Buffer,
    /// The sequence that [`forward`] continues, and the number of bytes of each sequence in either buffer; `None` if there is one only.
    pub of: Option<(usize, [u64; 2])>,
}

impl Carried {
    /// Allocates it.
    pub fn new(gpu: &Gpu, channels: usize, values: usize, head_size: usize) -> Result<Carried, GpuError> {
        Ok(Carried {
            history: gpu.buffer("last inputs of the convolution", 16 * channels as u64)?,
            state: gpu.buffer("state of the delta net", 4 * (values * head_size) as u64)?,
            of: None,
        })
    }

    /// Allocates it for `sequences` sequences.
    pub fn for_each(
        gpu: &Gpu,
        [channels, values, head_size]: [usize; 3],
        sequences: usize,
    ) -> Result<Carried, GpuError> {
        let bytes = Carried::bytes_of_each([channels, values, head_size]);
        let [history, state] = bytes.map(|bytes| sequences as u64 * bytes);
        Ok(Carried {
            history: gpu.buffer("last inputs of the convolution", history)?,
            state: gpu.buffer("state of the delta net", state)?,
            of: Some((0, bytes)),
        })
    }

    /// Bytes of one sequence in either buffer of [`Carried::for_each`].
    pub fn bytes_of_each([channels, values, head_size]: [usize; 3]) -> [u64; 2] {
        [16 * channels, 4 * values * head_size].map(|bytes| bytes.next_multiple_of(256) as u64)
    }

    /// The state of sequence `of`.
    pub fn sequence(&self, of: usize) -> Carried {
        Carried { of: self.of.map(|(_, bytes)| (of, bytes)), ..self.clone() }
    }

    /// The parts of both buffers that [`forward`] reads and writes.
    fn bind(&self, index: u32) -> [Binding<'_>; 2] {
        let part = |i: usize| self.of.map(|(of, bytes)| (of as u64 * bytes[i], bytes[i]));
        let [history, state] = [(&self.history, part(0)), (&self.state, part(1))];
        [history, state].map(|(buffer, range)| Binding { index, buffer, range })
    }

    /// The inputs of the convolution of the sequence that a pass continues.
    pub(in crate::ops) fn bind_history(&self, index: u32) -> Binding<'_> {
        self.bind(index)[0]
    }

    /// Bytes of [`Carried::new`].
    pub fn bytes(channels: usize, values: usize, head_size: usize) -> u64 {
        (16 * channels + 4 * values * head_size) as u64
    }
}

/// `o` `[T, Hv, K]` of tokens that follow `past` (u32, `[1]`) others. All of them begin at token 0 by their bounds. One token takes
/// the recurrence itself, more take chunks.
pub fn forward(
    rec: &mut Recorder,
    delta: &Delta,
    carried: &Carried,
    past: &wgpu::Buffer,
    saved: &Saved,
    o: &Rows,
) {
    let Saved { qkv, alpha, beta, mixed, gates, inverse, wu, states, .. } = *saved;
    let (frozen, bounds, past) = (delta.frozen, binding(1, delta.bounds), binding(8, past));
    let [history, state] = carried.bind(9);
    let mut run = |shader, entry, bindings: &[_], workgroups| {
        let kernel = Kernel::new(shader, entry).with_sizes(mix_sizes(delta.head_size, true, false));
        rec.dispatch(kernel, &delta.params(), bindings, workgroups);
    };
    let bindings = [qkv.bind(2), binding(3, &frozen.taps), mixed.bind(4), past, history];
    run("delta/mix", "forward", &bindings, delta.by_heads(FORWARD_RUN));
    let values = delta.tokens.min(3) * delta.heads() * delta.head_size / 4;
    run("delta/mix", "keep", &[qkv.bind(2), past, history], grid(values.div_ceil(64)));
    let bindings = [bounds, gates.bind(2), alpha.bind(3), beta.bind(4), binding(5, &frozen.gates)];
    let threads = delta.chunks() * delta.value_heads;
    run("delta/gates", "forward", &bindings, grid(threads.div_ceil(64)));
    if delta.tokens == 1 {
        let bindings = [gates.bind(2), mixed.bind(3), o.bind(7), past, state];
        return run("delta/step", "forward", &bindings, delta.by_column(1));
    }
    let bindings = [bounds, gates.bind(2), mixed.bind(3), inverse.bind(4)];
    run("delta/solve", "forward", &bindings, delta.by_chunk());
    let bindings = [bounds, gates.bind(2), mixed.bind(3), inverse.bind(4), wu.bind(5)];
    run("delta/products", "invert", &bindings, delta.by_chunk());
    let bindings = [bounds, gates.bind(2), mixed.bind(3), wu.bind(4), states.bind(5), past, state];
    run("delta/scan", "forward", &bindings, delta.by_column(1));
    let bindings = [bounds, gates.bind(2), mixed.bind(3), wu.bind(5), states.bind(6), o.bind(7)];
    run("delta/products", "outputs", &bindings, delta.by_chunk());
}

/// `o` `[T, Hv, K]` of one more token of every sequence. `steps` has the tokens before it and its sequence, u32 `[T, 2]`; by the bounds of
/// `delta`, every token is a sample of its own.
pub fn each(
    rec: &mut Recorder,
    delta: &Delta,
    carried: &Carried,
    steps: &wgpu::Buffer,
    saved: &Saved,
    o: &Rows,
) {
    let Saved { qkv, alpha, beta, mixed, gates, .. } = *saved;
    let (frozen, bounds, steps) = (delta.frozen, binding(1, delta.bounds), binding(8, steps));
    let (history, state) = (binding(9, &carried.history), binding(9, &carried.state));
    let mut run = |shader, entry, bindings: &[_], workgroups| {
        let kernel = Kernel::new(shader, entry).with_sizes(each_sizes(delta.head_size));
        rec.dispatch(kernel, &delta.params(), bindings, workgroups);
    };
    let bindings = [qkv.bind(2), binding(3, &frozen.taps), mixed.bind(4), steps, history];
    run("delta/mix", "forward", &bindings, delta.by_heads(FORWARD_RUN));
    let values = delta.tokens * delta.heads() * delta.head_size / 4;
    run("delta/mix", "keep", &[qkv.bind(2), steps, history], grid(values.div_ceil(64)));
    let bindings = [bounds, gates.bind(2), alpha.bind(3), beta.bind(4), binding(5, &frozen.gates)];
    let threads = delta.chunks() * delta.value_heads;
    run("delta/gates", "forward", &bindings, grid(threads.div_ceil(64)));
    let [across, down, _] = delta.by_column(1);
    let bindings = [gates.bind(2), mixed.bind(3), o.bind(7), steps, state];
    run("delta/step", "forward", &bindings, [across, down, delta.tokens as u32]);
}
