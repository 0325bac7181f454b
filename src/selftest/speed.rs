//! Speed of a device: a product with quantized weights, and a copy of memory.

use web_time::Instant;

use crate::base::formats::{GgmlType, random_blocks};
use crate::gpu::{Gpu, GpuError, Recorder};
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
    /// Bytes per second that a copy reads and writes.
    pub bytes: f64,
}

/// Measures both, in some tenths of a second.
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
    let [from, to] = [gpu.buffer("self-test", copied)?, gpu.buffer("self-test", copied)?];
    let bytes = 2.0 * copied as f64 * rate(gpu, |rec| peak::copy(rec, &from, &to, copied))?;
    Ok(Speed { operations, bytes })
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
