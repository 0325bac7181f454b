//! Draws from the softmax of rows of logits at a temperature: a token of each, and its probability.

use crate::gpu::{Binding, Gpu, GpuError, Kernel, Recorder};
use crate::ops::Rows;

/// Twin of `Params` in shaders/categorical/plain.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    count: u32,
    stride4: u32,
    segment4: u32,
}

/// Segments of a row; twin of `SEGMENTS` in shaders/categorical/plain.wgsl.
const SEGMENTS: usize = 64;
/// Bytes of the sums of a segment.
const PART: usize = 12;
/// Largest reciprocal of a temperature: 0 times an infinite one would be NaN.
const COLDEST: f64 = 1e30;

/// The choice of a row's token.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct Draw {
    point: f32,
    coldness: f32,
}

impl Draw {
    /// The likeliest token, the first one among equals.
    pub const LIKELIEST: Draw = Draw { point: -1.0, coldness: 1.0 };

    /// The token at which the running sum of the probabilities passes `point`, from 0 to 1, at a temperature above 0.
    pub fn at(point: f64, temperature: f64) -> Draw {
        Draw { point: point as f32, coldness: temperature.recip().min(COLDEST) as f32 }
    }
}

/// A row's token, and figures of the row `x`: `softmax(x / temperature)[i] = exp((x[i] − largest) / temperature) / sum`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct Drawn {
    /// The token.
    pub id: u32,
    /// Its logit.
    pub value: f32,
    /// The token with the largest logit.
    pub likeliest: u32,
    /// The largest logit.
    pub largest: f32,
    /// `Σ exp((x − largest) / temperature)`, without a temperature `Σ exp(x − largest)`. NaN if a value is NaN or infinite.
    pub sum: f32,
}

impl Drawn {
    /// Whether the row's values make a softmax.
    pub fn is_sound(&self) -> bool {
        self.largest.is_finite() && self.sum.is_finite() && self.sum > 0.0
    }

    /// Natural logarithm of the token's probability, with the `draw` that chose it.
    pub fn logprob(&self, draw: Draw) -> f64 {
        let below = f64::from(self.value) - f64::from(self.largest);
        below * f64::from(draw.coldness) - f64::from(self.sum).ln() + 0.0
    }
}

/// The buffers of draws from `rows` rows at most.
pub struct Categorical {
    /// A [`Draw`] for each row.
    pub draws: wgpu::Buffer,
    parts: wgpu::Buffer,
    /// A [`Drawn`] for each row.
    pub results: wgpu::Buffer,
}

impl Categorical {
    /// Allocates the buffers.
    pub fn new(gpu: &Gpu, rows: usize) -> Result<Categorical, GpuError> {
        let [draws, parts, results] = Categorical::bytes_of(rows).map(|bytes| bytes as u64);
        Ok(Categorical {
            draws: gpu.buffer("draws", draws)?,
            parts: gpu.buffer("sums of segments", parts)?,
            results: gpu.buffer("drawn tokens", results)?,
        })
    }

    /// Bytes of the buffers for `rows` rows.
    pub fn bytes_of(rows: usize) -> [usize; 3] {
        [rows * size_of::<Draw>(), rows * SEGMENTS * PART, rows * size_of::<Drawn>()]
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        [&self.draws, &self.parts, &self.results].iter().map(|buffer| buffer.size()).sum()
    }

    /// Draws one of the first `count` values of each of the first `rows` rows.
    pub fn forward(&self, rec: &mut Recorder, values: &Rows, count: usize, rows: usize) {
        let params = Params {
            count: count as u32,
            stride4: (values.stride / 4) as u32,
            segment4: count.div_ceil(4 * SEGMENTS) as u32,
        };
        let bound = |index, buffer| Binding { index, buffer, range: None };
        let [draws, parts] = [bound(2, &self.draws), bound(3, &self.parts)];
        let groups = [SEGMENTS as u32, rows as u32, 1];
        let kernel = Kernel::new("categorical/plain", "forward");
        rec.dispatch(kernel, &params, &[values.bind(1), draws, parts], groups);
        let kernel = Kernel::new("categorical/plain", "finish");
        let bindings = [values.bind(1), draws, parts, bound(4, &self.results)];
        rec.dispatch(kernel, &params, &bindings, [rows as u32, 1, 1]);
    }
}
