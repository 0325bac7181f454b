//! Speed of a device: a product with quantized weights, attention, and a copy of memory.

use web_time::Instant;

use crate::base::formats::{GgmlType, random_blocks};
use crate::gpu::{Gpu, GpuError, Recorder};
use crate::ops::attention::{self, Attention};
use crate::ops::linear::{coop16, tiled};
use crate::ops::pack::Packed;
use crate::ops::{Rows, Weight, peak};

/// Seconds that a measurement takes at least.
const LEAST: f64 = 0.1;
/// Most repetitions in one submission.
const MOST: usize = 4096;

/// The rates of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Operations per second of a product with weights in Q4_K.
    pub operations: f64,
    /// Operations per second of causal attention, forward.
    pub attention: f64,
    /// Bytes per second that a copy reads and writes.
    pub bytes: f64,
}

/// Share of attention in the operations of a step of 2 048 tokens.
const ATTENTION: f64 = 0.1;

impl Speed {
    /// Operations per second of a step's products and attention together.
    pub fn of_step(&self) -> f64 {
        1.0 / ((1.0 - ATTENTION) / self.operations + ATTENTION / self.attention)
    }
}

/// Measures all, in some tenths of a second.
///
/// # Errors
/// The device's error.
pub fn measure(gpu: &Gpu) -> Result<Speed, GpuError> {
    let software = gpu.is_software();
    let (tokens, width, copied) = if software { (64, 512, 16 << 20) } else { (1024, 4096, 256 << 20) };
    let copied = copied.min(gpu.max_binding_bytes()) / 64 * 64;
    let blocks = random_blocks(GgmlType::Q4_K, width * width / 256, 1);
    let weight = Weight::upload(gpu, "self-test", GgmlType::Q4_K, width, width, &blocks)?;
    let [x, y] = [Rows::new(gpu, "self-test", tokens, width)?, Rows::new(gpu, "self-test", tokens, width)?];
    let packed = Packed::new(gpu, "self-test", tokens, width)?;
    let product = |rec: &mut Recorder| match gpu.kernels().reads_tiles() {
        true => coop16::forward(rec, y.all(), &packed, &weight, 1.0, None, tokens),
        false => tiled::forward(rec, y.all(), x.all(), &weight, 1.0, None, tokens),
    };
    let operations = 2.0 * (tokens * width * width) as f64 * rate(gpu, product)?;
    let attention = attention_rate(gpu)?;
    let [from, to] = [gpu.buffer("self-test", copied)?, gpu.buffer("self-test", copied)?];
    let bytes = 2.0 * copied as f64 * rate(gpu, |rec| peak::copy(rec, &from, &to, copied))?;
    Ok(Speed { operations, attention, bytes })
}

/// Operations per second of attention over one sample, with heads as large as a Gemma's on a GPU.
fn attention_rate(gpu: &Gpu) -> Result<f64, GpuError> {
    let (tokens, heads, head_size) = if gpu.is_software() { (128, 2, 64) } else { (1024, 8, 256) };
    let kv_heads = heads / 2;
    let (wide, narrow) = (heads * head_size, kv_heads * head_size);
    let bounds = gpu.upload("self-test", &vec![[0, tokens as u32]; tokens])?;
    let shape = Attention::of_sample([heads, kv_heads, head_size], tokens, &bounds);
    let rows = |width: usize| Rows::new(gpu, "self-test", tokens, width);
    let (out, lse, q, k, v) = (rows(wide)?, rows(heads)?, rows(wide)?, rows(narrow)?, rows(narrow)?);
    let packed = |width: usize| Packed::new(gpu, "self-test", tokens, width);
    let (packed_q, packed_k, packed_v) = (packed(wide)?, packed(narrow)?, packed(narrow)?);
    let operands = attention::coop16::Operands { q: &packed_q, k: &packed_k, v: &packed_v };
    let tiled = out.clone().into();
    // Two products of each query with the keys before it.
    let operations = 2.0 * (heads * head_size * tokens * (tokens + 1)) as f64;
    let work = |rec: &mut Recorder| match gpu.kernels().reads_tiles() {
        true => attention::coop16::forward(rec, &shape, &tiled, &lse, operands),
        false => shape.forward(rec, &out, &lse, &q, &k, &v),
    };
    Ok(operations * rate(gpu, work)?)
}

/// Repetitions of `work` per second.
fn rate<'g>(gpu: &'g Gpu, work: impl Fn(&mut Recorder<'g>)) -> Result<f64, GpuError> {
    let mut repeat = 1;
    loop {
        gpu.wait()?;
        let mut rec = Recorder::new(gpu);
        let started = Instant::now();
        (0..repeat).for_each(|_| work(&mut rec));
        rec.submit()?;
        gpu.wait()?;
        let seconds = started.elapsed().as_secs_f64();
        // The first round compiles.
        if (seconds >= LEAST && repeat > 1) || repeat >= MOST {
            return Ok(repeat as f64 / seconds);
        }
        let wanted = (1.5 * LEAST / seconds * repeat as f64).ceil() as usize;
        repeat = wanted.clamp(2 * repeat, 16 * repeat).min(MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::Speed;

    #[test]
    fn attention_counts_by_its_share_of_a_step() {
        let speed = |operations, attention| Speed { operations, attention, bytes: 1.0 }.of_step();
        assert!((speed(2e12, 2e12) - 2e12).abs() < 1.0);
        // Products that are 20 % faster do not outweigh attention that takes five times as long.
        assert!(speed(1.2e12, 0.2e12) < speed(1e12, 1e12));
        assert!(speed(1.2e12, 0.9e12) > speed(1e12, 1e12));
    }
}
