//! Times kernels with timestamp queries, and prints their rates.

use std::fmt::Display;

use anyhow::Result;
use pollster::block_on;
use rullama_train::cases::bench::Bench;
use rullama_train::gpu::profile::KernelTime;
use rullama_train::gpu::{Gpu, GpuError, Recorder};

use super::peak::Peak;

/// Timed tries; the best counts.
const TRIES: usize = 3;
/// Seconds of a try, about.
const SECONDS: f64 = 0.02;

/// Floating-point operations of the kernels whose names match; the rate of other kernels is in bytes.
type Operations<'a> = &'a [(&'static str, f64)];

/// Times kernels against the peak rates of a device.
#[derive(Clone, Copy)]
pub struct Timer<'g> {
    pub gpu: &'g Gpu,
    pub peak: &'g Peak,
}

impl<'g> Timer<'g> {
    /// Times the kernels that one shape of a case has under test.
    pub fn case(
        self,
        name: impl Display,
        operations: Operations,
        run: impl FnOnce(&mut Bench<'g>) -> Result<(), GpuError>,
    ) -> Result<()> {
        if self.begins(name) {
            let operations = operations.to_vec();
            run(&mut Bench::timed(self.gpu, move |work| self.measure(&operations, work)))?;
        }
        Ok(())
    }

    /// Times a series of dispatches.
    pub fn time(
        self,
        name: impl Display,
        operations: Operations,
        work: impl Fn(&mut Recorder<'g>),
    ) -> Result<()> {
        if self.begins(name) {
            self.measure(operations, &work)?;
        }
        Ok(())
    }

    /// Prints a name; whether the device has what times its kernels.
    fn begins(self, name: impl Display) -> bool {
        println!("  {name}");
        if !self.gpu.can_profile() {
            println!("    the device has no timestamps");
        }
        self.gpu.can_profile()
    }

    /// Prints the time of each kernel of `work` in one run.
    fn measure(self, operations: Operations, work: &dyn Fn(&mut Recorder<'g>)) -> Result<(), GpuError> {
        // The first run compiles.
        self.profile(work, 1)?;
        let mut best = self.profile(work, 1)?;
        let once: f64 = best.iter().map(|(_, t)| t.seconds).sum();
        let repeat = match self.gpu.is_software() {
            true => 1,
            false => (SECONDS / once.max(1e-6)).ceil().clamp(1.0, 200.0) as usize,
        };
        for _ in 0..TRIES {
            for (best, (_, time)) in best.iter_mut().zip(self.profile(work, repeat)?) {
                if time.seconds < best.1.seconds {
                    best.1 = time;
                }
            }
        }
        for (kernel, time) in &best {
            self.print(operations, kernel, time);
        }
        Ok(())
    }

    fn print(self, operations: Operations, kernel: &str, KernelTime { seconds, bytes, .. }: &KernelTime) {
        let operations = operations.iter().find(|(pattern, _)| is_of(kernel, pattern));
        let (rate, unit, share) = match operations {
            Some((_, operations)) => {
                let rate = operations / seconds;
                (rate / 1e12, "TFLOP/s", rate / self.peak.operations)
            }
            // An upper bound: a kernel need not read all of its buffers.
            None => {
                let rate = *bytes as f64 / seconds;
                (rate / 1e9, "GB/s at most", rate / self.peak.bytes)
            }
        };
        let (ms, percent) = (1e3 * seconds, 100.0 * share);
        println!("    {ms:10.4} ms  {rate:9.3} {unit:12}  {percent:4.0} % of the peak  {kernel}");
    }

    /// Seconds and bytes by kernel, for one of `repeat` runs.
    fn profile(
        self,
        work: &dyn Fn(&mut Recorder<'g>),
        repeat: usize,
    ) -> Result<Vec<(String, KernelTime)>, GpuError> {
        self.gpu.start_profile();
        let mut rec = Recorder::new(self.gpu);
        (0..repeat).for_each(|_| work(&mut rec));
        rec.submit()?;
        let of_one = |(kernel, time): (String, KernelTime)| {
            let (seconds, bytes) = (time.seconds / repeat as f64, time.bytes / repeat as u64);
            (kernel, KernelTime { seconds, bytes, ..time })
        };
        Ok(block_on(self.gpu.finish_profile())?.into_iter().map(of_one).collect())
    }
}

/// Whether a kernel's name matches a pattern: its start, or its start and a part after it, around a `*`.
fn is_of(kernel: &str, pattern: &str) -> bool {
    let (start, part) = pattern.split_once('*').unwrap_or((pattern, ""));
    kernel.strip_prefix(start).is_some_and(|rest| rest.contains(part))
}
