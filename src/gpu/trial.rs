//! One product and one attention on cooperative matrices of 8×8, both ways, before anything is trained with them: what an adapter
//! reports is what its driver says, not what comes out.

use super::{Gpu, GpuError, Recorder, Tier};
use crate::base::formats::GgmlType;
use crate::ops::Rows;
use crate::ops::Weight;
use crate::ops::attention::Attention;
use crate::ops::linear;
use crate::reference;

/// `T`, `N` and `K`: more than a tile of 64×64, and than 32 steps.
const SHAPE: [usize; 3] = [68, 72, 36];

/// `T`, `H`, `G` and `K`: more than a block of 32, heads that share keys, more than 64 columns.
const HEADS: [usize; 4] = [40, 2, 1, 68];

/// How far attention's results may be from f64, by their norm: f16 gives some 1e-3.
const APART: f64 = 1e-2;

impl Gpu {
    /// Multiplies integers so small that every sum is exact, forward and transposed, on matrices of 8×8, and compares; then attends,
    /// forward and backward, and compares with f64. The device computes with what it did before, and has compiled nothing.
    ///
    /// # Errors
    /// Why these matrices are of no use: what the driver said, or the first value that differs.
    pub async fn try_matrices(&self) -> Result<(), String> {
        let before = self.tier();
        self.set_tier(Tier::Cooperative8);
        let outcome = match self.products().await {
            Ok(()) => self.attends().await,
            wrong => wrong,
        };
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
        let weight = Weight::upload(self, "trial", GgmlType::F32, n, k, bytemuck::cast_slice(&w))?;
        let (y, dx) = (Rows::new(self, "trial", t, n)?, Rows::new(self, "trial", t, k)?);
        let (x_rows, dy_rows) = (self.trial_rows(&x, k)?, self.trial_rows(&dy, n)?);
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

    fn trial_rows(&self, values: &[f32], width: usize) -> Result<Rows, GpuError> {
        Ok(Rows { buffer: self.upload("trial", values)?, ..Rows::new(self, "trial", 0, width)? })
    }

    async fn attends(&self) -> Result<(), GpuError> {
        let [t, heads, kv_heads, head_size] = HEADS;
        let (wide, narrow) = (heads * head_size, kv_heads * head_size);
        // Scores of up to 3 or so.
        let values = |width: usize, seed: usize| -> Vec<f32> {
            (0..t * width).map(|i| ((i * seed + i / width) % 17) as f32 / 16.0 - 0.5).collect()
        };
        let [q, k, v, dout] = [values(wide, 5), values(narrow, 3), values(narrow, 7), values(wide, 11)];
        let rows = |width: usize| Rows::new(self, "trial", t, width);
        let inputs = [(&q, wide), (&k, narrow), (&v, narrow)].map(|(x, width)| self.trial_rows(x, width));
        let [q_rows, k_rows, v_rows] = inputs;
        let inputs = [&q_rows?, &k_rows?, &v_rows?];
        let (dout_rows, bounds) =
            (self.trial_rows(&dout, wide)?, self.upload("trial", &vec![[0, t as u32]; t])?);
        let (out, lse, delta, dheads) = (rows(wide)?, rows(heads)?, rows(2 * heads)?, rows(wide)?);
        let gradients = [rows(wide)?, rows(narrow)?, rows(narrow)?];
        let attention = Attention {
            heads,
            kv_heads,
            head_size,
            window: None,
            bounds: &bounds,
            rows: t,
            longest: t,
            q_scale: 1.0,
            k_scale: 1.0,
        };
        let mut rec = Recorder::new(self);
        attention.forward(&mut rec, &out, &lse, inputs[0], inputs[1], inputs[2]);
        attention.backward(&mut rec, gradients.each_ref(), [&delta, &dheads], &dout_rows, inputs, &out, &lse);
        rec.submit()?;

        let [q, k, v, dout] = [q, k, v, dout].map(|x| x.into_iter().map(f64::from).collect::<Vec<f64>>());
        let starts = vec![0; t];
        let (expected, lse) = reference::attention::forward(&q, &k, &v, &starts, None, heads, kv_heads);
        let (mut dk, mut dv) = (vec![0.0; t * narrow], vec![0.0; t * narrow]);
        let (dk_mut, dv_mut) = (&mut dk, &mut dv);
        let dq = reference::attention::backward(
            &dout, &q, &k, &v, &starts, None, heads, kv_heads, &expected, &lse, dk_mut, dv_mut,
        );
        let names = ["attention", "its gradient of q", "of k", "of v"];
        let found = [&out, &gradients[0], &gradients[1], &gradients[2]];
        for ((name, rows), expected) in names.iter().zip(found).zip([expected, dq, dk, dv]) {
            near(name, &self.read(&rows.buffer, expected.len()).await?, &expected)?;
        }
        Ok(())
    }
}

fn same(what: &str, found: &[f32], expected: impl Fn(usize) -> f32) -> Result<(), GpuError> {
    let wrong = found.iter().enumerate().find(|(i, found)| **found != expected(*i));
    wrong.map_or(Ok(()), |(i, found)| {
        Err(GpuError::Device(format!("value {i} of {what} is {found}, expected {}", expected(i))))
    })
}

fn near(what: &str, found: &[f32], expected: &[f64]) -> Result<(), GpuError> {
    let differences =
        found.iter().zip(expected).map(|(found, expected)| (f64::from(*found) - expected).powi(2));
    let norm = expected.iter().map(|x| x * x).sum::<f64>().sqrt();
    let apart = differences.sum::<f64>().sqrt() / norm;
    match apart <= APART {
        true => Ok(()),
        false => Err(GpuError::Device(format!("{what} is {apart:.1e} apart, expected at most {APART:.0e}"))),
    }
}
