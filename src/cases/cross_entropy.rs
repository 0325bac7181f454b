//! Softcap and cross entropy over chunks of logits.

use super::bench::Bench;
use super::case::{Case, Needs, Shapes};
use super::inputs::{values, wide};
use super::tolerance::Tolerance;
use crate::gpu::GpuError;
use crate::ops::cross_entropy::{Chunk, cap};
use crate::reference::cross_entropy::{self as reference, Adjusted};

/// A sum of V exponentials and its logarithm: some ULP of the largest logit.
const LOSS: Tolerance = Tolerance::new(2e-6, 2e-6, 1e-6);
/// exp passes the error of the log-sum-exp on, about ε·30.
const GRADIENT: Tolerance = Tolerance::new(5e-6, 2e-5, 5e-6);
/// Software tanh is good to 1e-7 of the cap, small logits included.
const CAPPED: Tolerance = Tolerance::new(5e-7, 5e-7, 5e-7);

/// A softcap of logits.
pub const SOFTCAP: f32 = 30.0;
/// A temperature of logits.
pub const WARM: f32 = 1.25;
/// Targets and losses of other rows, before those of the chunk.
const BEFORE: [usize; 2] = [5, 3];

pub const CASES: [Case; 1] = [Case {
    op: "cross_entropy",
    name: "losses, gradients, softcap",
    needs: Needs::Any,
    variants: super::F32,
    shapes: &Shapes {
        small: &[(7, 1003, 60.0)],
        // Vocabularies that are not a multiple of 4 or 64, one less than a stride, smaller than a workgroup. At 100, exp overflows unless
        // the largest value of all threads is subtracted.
        more: &[
            (1, 1003, 10.0),
            (7, 1003, 100.0),
            (65, 130, 3.0),
            (3, 5, 1.0),
            (130, 64, 100.0),
            (2, 1, 1.0),
        ],
        check: losses,
    },
}];

/// Targets of rows: the last token, the first, and some in between.
pub fn targets(rows: usize, vocab: usize) -> Vec<u32> {
    (0..rows).map(|n| ((n * 77 + 1) * (vocab - 1) % vocab) as u32).collect()
}

/// Rows, vocabulary, and the size of the logits.
type Shape = (usize, usize, f32);

/// Losses and gradients of logits, with a softcap and without, at some temperatures; the softcap alone.
fn losses(b: &mut Bench, &(rows, vocab, size): &Shape) -> Result<(), GpuError> {
    let logits: Vec<f32> = values(1, rows * vocab).iter().map(|x| size * x).collect();
    for (softcap, temperature) in
        [(None, 1.0), (Some(SOFTCAP), 1.0), (Some(SOFTCAP), WARM), (None, 0.7), (Some(SOFTCAP), 1.5)]
    {
        let logits = Logits { rows, vocab, logits: &logits, softcap, temperature };
        logits.check(b, None)?;
        for factor in [1.0, 0.0125] {
            logits.check(b, Some(factor))?;
        }
    }
    let capped = b.in_out(vocab, &logits)?;
    b.run(|rec| cap(rec, capped.rows(), vocab, SOFTCAP, rows))?;
    let expected = reference::softcap(&wide(&logits), Some(SOFTCAP.into()));
    b.expect(format!("softcap of [{rows}, {vocab}]"), &capped, expected, CAPPED.around(SOFTCAP.into()));
    Ok(())
}

/// The logits of a chunk.
struct Logits<'a> {
    rows: usize,
    vocab: usize,
    logits: &'a [f32],
    softcap: Option<f32>,
    temperature: f32,
}

impl Logits<'_> {
    /// Losses and the capped logits in place; with a factor of the coefficients, the gradients in their place.
    fn check(&self, b: &mut Bench, factor: Option<f32>) -> Result<(), GpuError> {
        let &Logits { rows, vocab, softcap, temperature, .. } = self;
        let block = b.in_out(vocab, self.logits)?;
        let ids = targets(rows, vocab);
        let [before_targets, before] = BEFORE;
        let on_device = b.gpu.upload("case", &[&vec![u32::MAX; before_targets], &ids[..]].concat())?;
        let losses = b.output((before + rows).next_multiple_of(4), 1)?;
        let coefficients = factor.map(|factor| self.coefficients(factor));
        let factors = coefficients.as_ref().map(|own| [&vec![f32::NAN; before], &own[..]].concat());
        let factors = factors.map(|factors| b.gpu.upload("case", &factors)).transpose()?;
        let chunk = Chunk {
            logits: block.rows(),
            rows,
            vocab,
            softcap,
            temperature,
            targets: (&on_device, before_targets),
            losses: (&losses.rows().buffer, before),
        };
        b.run(|rec| match &factors {
            None => chunk.forward(rec),
            Some(factors) => chunk.backward(rec, factors),
        })?;
        if !b.compares() {
            return Ok(());
        }
        let (logits, limit) = (wide(self.logits), softcap.map(f64::from));
        let adjusted = Adjusted { softcap: limit, temperature: temperature.into() };
        let name =
            format!("[{rows}, {vocab}] softcap={softcap:?} temperature={temperature} factor={factor:?}");
        // The loss is a difference of logits.
        let size = logits.iter().fold(0f64, |most, x| most.max(x.abs())).min(30.0) / f64::from(temperature);
        let expected = reference::forward(&logits, &ids, adjusted, vocab);
        b.expect_behind(format!("losses {name}"), &losses, before, expected, LOSS.around(size));
        let (expected, tolerance) = match coefficients {
            None => (reference::softcap(&logits, limit), CAPPED.around(limit.unwrap_or(0.0))),
            Some(coefficients) => {
                // With a vocabulary of one token the gradient is 1 − 1.
                let size = if vocab == 1 { factor.map_or(0.0, f64::from) } else { 0.0 };
                let coefficients = wide(&coefficients);
                let gradients = reference::backward(&coefficients, &logits, &ids, adjusted, vocab);
                (gradients, GRADIENT.around(size))
            }
        };
        b.expect(format!("logits {name}"), &block, expected, tolerance);
        Ok(())
    }

    /// One coefficient per row, around `factor`, of both signs.
    fn coefficients(&self, factor: f32) -> Vec<f32> {
        let of_row = |n: usize| if n % 5 == 4 { -factor } else { factor * (1.0 + 0.25 * (n % 3) as f32) };
        (0..self.rows).map(of_row).collect()
    }
}
