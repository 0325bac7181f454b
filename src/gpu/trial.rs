//! One product on cooperative matrices of 8×8, both ways, before anything is trained with them: what an adapter reports is what
//! its driver says, not what comes out.

use super::{Gpu, GpuError, Recorder, Tier};
use crate::ops::{Rows, Weight, linear};
use crate::weights::quant::GgmlType;

/// `T`, `N` and `K`: more than a tile of 64×64, and than 32 steps.
const SHAPE: [usize; 3] = [68, 72, 36];

impl Gpu {
    /// Multiplies integers so small that every sum is exact, forward and transposed, on matrices of 8×8, and compares. The device
    /// computes with what it did before, and has compiled nothing.
    ///
    /// # Errors
    /// Why these matrices are of no use: what the driver said, or the first value that differs.
    pub async fn try_matrices(&self) -> Result<(), String> {
        let before = self.tier();
        self.set_tier(Tier::Cooperative8);
        let outcome = self.products().await;
        self.set_tier(before);
        self.pipelines.clear();
        // A driver that cannot compile a kernel of these has not failed anything else.
        let reported = self.forget_reported();
        let reason = reported.or(outcome.err().map(|error| error.to_string()));
        reason.map_or(Ok(()), |text| Err(text.split_whitespace().collect::<Vec<_>>().join(" ")))
    }

    async fn products(&self) -> Result<(), GpuError> {
        let [t, n, k] = SHAPE;
        let integers = |rows: usize, cols: usize, seed: usize| -> Vec<f32> {
            (0..rows * cols).map(|i| ((i * seed + i / cols) % 7) as f32 - 3.0).collect()
        };
        let [x, w, dy] = [integers(t, k, 5), integers(n, k, 3), integers(t, n, 2)];
        let rows = |values: &[f32], width: usize| -> Result<Rows, GpuError> {
            Ok(Rows { buffer: self.upload("trial", values)?, ..Rows::new(self, "trial", 0, width)? })
        };
        let weight = Weight::upload(self, "trial", GgmlType::F32, n, k, bytemuck::cast_slice(&w))?;
        let (y, dx) = (Rows::new(self, "trial", t, n)?, Rows::new(self, "trial", t, k)?);
        let (x_rows, dy_rows) = (rows(&x, k)?, rows(&dy, n)?);
        let mut rec = Recorder::new(self);
        linear::forward(&mut rec, y.all(), x_rows.all(), &weight, 1.0, None, t);
        linear::backward(&mut rec, dx.all(), dy_rows.all(), &weight, 1.0, None, t, false);
        rec.submit()?;

        let y: Vec<f32> = self.read(&y.buffer, t * n).await?;
        let dx: Vec<f32> = self.read(&dx.buffer, t * k).await?;
        let x_by_w = |i: usize| (0..k).map(|c| x[i / n * k + c] * w[i % n * k + c]).sum();
        let dy_by_w = |i: usize| (0..n).map(|r| dy[i / k * n + r] * w[r * k + i % k]).sum();
        same("x·Wᵀ", &y, x_by_w)?;
        same("dy·W", &dx, dy_by_w)
    }
}

fn same(what: &str, found: &[f32], expected: impl Fn(usize) -> f32) -> Result<(), GpuError> {
    let wrong = found.iter().enumerate().find(|(i, found)| **found != expected(*i));
    wrong.map_or(Ok(()), |(i, found)| {
        Err(GpuError::Device(format!("value {i} of {what} is {found}, expected {}", expected(i))))
    })
}
