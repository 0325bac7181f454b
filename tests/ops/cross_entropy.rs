//! Softcap and cross entropy over chunks of logits.

use rullama_train::gpu::Gpu;
use rullama_train::ops::cross_entropy::{Chunk, cap};
use rullama_train::reference;
use rullama_train::reference::cross_entropy::Adjusted;

use super::check::{Block, Check, Outcome, Tolerance, UNTOUCHED, run, values, wide};

/// A sum of V exponentials and its logarithm: some ULP of the largest logit.
const LOSS: Tolerance = Tolerance { norm: 2e-6, relative: 2e-6, absolute: 1e-6 };
/// exp passes the error of the log-sum-exp on, about ε·30.
const GRADIENT: Tolerance = Tolerance { norm: 5e-6, relative: 2e-5, absolute: 5e-6 };
/// Software tanh is good to 1e-7 of the cap, small logits included.
const CAPPED: Tolerance = Tolerance { norm: 5e-7, relative: 5e-7, absolute: 5e-7 };

/// Rows, vocabulary (not a multiple of 4 or 64, one less than a stride, smaller than a workgroup), size of the
/// logits: at 100, exp overflows unless the largest value of all threads is subtracted.
const SHAPES: [(usize, usize, f32); 6] =
    [(1, 1003, 10.0), (7, 1003, 100.0), (65, 130, 3.0), (3, 5, 1.0), (130, 64, 100.0), (2, 1, 1.0)];

struct Case {
    name: String,
    rows: usize,
    vocab: usize,
    softcap: Option<f32>,
    temperature: f32,
    logits: Vec<f32>,
    /// Targets of this chunk; on the device five others precede them.
    targets: Vec<u32>,
}

const TARGETS_BEFORE: usize = 5;
const LOSSES_BEFORE: usize = 3;

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (rows, vocab, size) in SHAPES {
        for (softcap, temperature) in [(None, 1.0), (Some(30.0), 1.0), (None, 0.7), (Some(30.0), 1.5)] {
            let logits = values(1, rows * vocab).iter().map(|x| size * x).collect();
            // The last id, the first, and some in between.
            let targets = (0..rows).map(|n| ((n * 77 + 1) * (vocab - 1) % vocab) as u32).collect();
            let name = format!(
                "rows={rows} V={vocab} logits up to {size} softcap={softcap:?} temperature={temperature}"
            );
            cases.push(Case { name, rows, vocab, softcap, temperature, logits, targets });
        }
    }
    cases
}

impl Case {
    /// One coefficient per row, around `factor`, of both signs.
    fn coefficients(&self, factor: f32) -> Vec<f32> {
        let of_row = |n: usize| if n % 5 == 4 { -factor } else { factor * (1.0 + 0.25 * (n % 3) as f32) };
        (0..self.rows).map(of_row).collect()
    }

    /// Runs forward, or backward with `coefficients`; returns the losses and what then stands in place of the logits.
    fn run(
        &self,
        gpu: &Gpu,
        coefficients: Option<&[f32]>,
    ) -> Result<(Vec<f64>, Vec<f64>), libtest_mimic::Failed> {
        let logits = Block::in_out(gpu, (0, 0), self.vocab, &self.logits);
        let targets: Vec<u32> = [u32::MAX; TARGETS_BEFORE].into_iter().chain(self.targets.clone()).collect();
        let targets = gpu.upload("targets", &targets)?;
        let places = LOSSES_BEFORE + self.rows;
        let losses = Block::output(gpu, (0, 0), places.next_multiple_of(4), 1);
        let chunk = Chunk {
            logits: &logits.rows,
            rows: self.rows,
            vocab: self.vocab,
            softcap: self.softcap,
            temperature: self.temperature,
            targets: (&targets, TARGETS_BEFORE),
            losses: (&losses.rows.buffer, LOSSES_BEFORE),
        };
        let before = [f32::NAN; LOSSES_BEFORE];
        let coefficients = coefficients.map(|own| gpu.upload("coefficients", &[&before[..], own].concat()));
        let coefficients = coefficients.transpose()?;
        run(gpu, |rec| match &coefficients {
            None => chunk.forward(rec),
            Some(coefficients) => chunk.backward(rec, coefficients),
        })?;
        let found = losses.read(gpu, &self.name)?;
        let around = found[..LOSSES_BEFORE].iter().chain(&found[places..]);
        if around.clone().any(|&x| x != f64::from(UNTOUCHED)) {
            return Err(format!("cross_entropy {}: losses of other rows were written", self.name).into());
        }
        Ok((found[LOSSES_BEFORE..places].to_vec(), logits.read(gpu, &self.name)?))
    }

    fn adjusted(&self) -> Adjusted {
        Adjusted { softcap: self.softcap(), temperature: self.temperature.into() }
    }

    fn softcap(&self) -> Option<f64> {
        self.softcap.map(f64::from)
    }
}

/// Losses, and the capped logits in place.
pub fn forward(gpu: &Gpu) -> Outcome {
    let mut loss_check = Check::new("cross_entropy forward, loss", LOSS);
    let mut logits_check = Check::new("cross_entropy forward, logits", CAPPED);
    for c in cases() {
        let logits = wide(&c.logits);
        let (losses, capped) = c.run(gpu, None)?;
        let expected = reference::cross_entropy::forward(&logits, &c.targets, c.adjusted(), c.vocab);
        // The loss is a difference of logits.
        let size = logits.iter().fold(0.0, |m: f64, x| m.max(x.abs())).min(30.0) / f64::from(c.temperature);
        loss_check.close_to(&c.name, 1, &losses, &expected, size)?;
        let expected = reference::cross_entropy::softcap(&logits, c.softcap());
        logits_check.close_to(&c.name, c.vocab, &capped, &expected, c.softcap().unwrap_or(0.0))?;
    }
    loss_check.done()?;
    logits_check.done()
}

/// Losses, and `coefficient·∂loss/∂logits` in place.
pub fn backward(gpu: &Gpu) -> Outcome {
    let mut loss_check = Check::new("cross_entropy backward, loss", LOSS);
    let mut check = Check::new("cross_entropy backward, dlogits", GRADIENT);
    for c in cases() {
        for factor in [1.0, 0.0125] {
            let name = format!("{} factor={factor}", c.name);
            let logits = wide(&c.logits);
            let coefficients = c.coefficients(factor);
            let (losses, dlogits) = c.run(gpu, Some(&coefficients))?;
            let expected = reference::cross_entropy::forward(&logits, &c.targets, c.adjusted(), c.vocab);
            let size =
                logits.iter().fold(0.0, |m: f64, x| m.max(x.abs())).min(30.0) / f64::from(c.temperature);
            loss_check.close_to(&name, 1, &losses, &expected, size)?;
            let expected = reference::cross_entropy::backward(
                &wide(&coefficients),
                &logits,
                &c.targets,
                c.adjusted(),
                c.vocab,
            );
            // With a vocabulary of one token the gradient is 1 − 1.
            let size = if c.vocab == 1 { f64::from(factor) } else { 0.0 };
            check.close_to(&name, c.vocab, &dlogits, &expected, size)?;
        }
    }
    loss_check.done()?;
    check.done()
}

/// The softcap alone.
pub fn softcap(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("cross_entropy cap", CAPPED);
    for c in cases() {
        let Some(softcap) = c.softcap else { continue };
        let logits = Block::in_out(gpu, (0, 0), c.vocab, &c.logits);
        run(gpu, |rec| cap(rec, &logits.rows, c.vocab, softcap, c.rows))?;
        let expected = reference::cross_entropy::softcap(&wide(&c.logits), c.softcap());
        check.close_to(&c.name, c.vocab, &logits.read(gpu, &c.name)?, &expected, f64::from(softcap))?;
    }
    check.done()
}
