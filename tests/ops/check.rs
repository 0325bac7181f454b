//! Buffers with guards around them that must be neither read nor written, and the comparison with the reference.

use libtest_mimic::Failed;
use pollster::block_on;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rullama_train::gpu::{Gpu, Recorder};
use rullama_train::ops::Param;
use rullama_train::ops::Rows;
use rullama_train::ops::View;

pub type Outcome = Result<(), Failed>;

/// The value around every output, and in it before the kernel runs.
pub const UNTOUCHED: f32 = -12345.678;
/// Floats behind every buffer: more than a workgroup's tile of a row.
const GUARD: usize = 512;

/// Uniform in [-1, 1), fixed by the seed.
pub fn values(seed: u64, len: usize) -> Vec<f32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..len).map(|_| 2.0 * random.random::<f32>() - 1.0).collect()
}

/// The values in f64, for the reference.
pub fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| f64::from(x)).collect()
}

/// `y + x`, for a backward that adds to a buffer.
pub fn sum(y: &[f64], x: &[f64]) -> Vec<f64> {
    assert_eq!(y.len(), x.len());
    y.iter().zip(x).map(|(y, x)| y + x).collect()
}

pub fn scaled(scale: f32, x: &[f64]) -> Vec<f64> {
    x.iter().map(|x| f64::from(scale) * x).collect()
}

/// Records `work` and submits it.
pub fn run<'g>(gpu: &'g Gpu, work: impl FnOnce(&mut Recorder<'g>)) -> Outcome {
    let mut rec = Recorder::new(gpu);
    work(&mut rec);
    Ok(rec.submit()?)
}

/// Columns left and right of a [`Block`], multiples of 4.
pub type Margins = (usize, usize);

/// `[height, width]` in rows that may be wider, with guards after them. The columns up to the next multiple of 4 are zero.
pub struct Block {
    pub rows: Rows,
    offset: usize,
    width: usize,
    height: usize,
}

impl Block {
    /// An input. Everything around it is NaN, which no product with zero hides.
    pub fn input(gpu: &Gpu, margins: Margins, width: usize, values: &[f32]) -> Block {
        Block::new(gpu, margins, width, values, f32::NAN, 0.0)
    }

    /// An output.
    pub fn output(gpu: &Gpu, margins: Margins, width: usize, height: usize) -> Block {
        Block::new(gpu, margins, width, &vec![UNTOUCHED; width * height], UNTOUCHED, UNTOUCHED)
    }

    /// An input and output that holds `values`.
    pub fn in_out(gpu: &Gpu, margins: Margins, width: usize, values: &[f32]) -> Block {
        Block::new(gpu, margins, width, values, UNTOUCHED, 0.0)
    }

    fn new(gpu: &Gpu, (left, right): Margins, width: usize, values: &[f32], around: f32, pad: f32) -> Block {
        let (height, padded) = (values.len() / width, width.next_multiple_of(4));
        let stride = left + padded + right;
        let mut all = vec![around; height * stride + GUARD];
        for (row, values) in values.chunks(width).enumerate() {
            let at = row * stride + left;
            all[at..at + width].copy_from_slice(values);
            all[at + width..at + padded].fill(pad);
        }
        let buffer = gpu.upload("test", &all).expect("test buffers are small");
        Block { rows: Rows { buffer, stride, start: 0 }, offset: left, width, height }
    }

    pub fn view(&self) -> View<'_> {
        self.rows.from(self.offset)
    }

    /// Reads the values, after checking the guards.
    pub fn read(&self, gpu: &Gpu, case: &str) -> Result<Vec<f64>, Failed> {
        let stride = self.rows.stride;
        let all: Vec<f32> = block_on(gpu.read(&self.rows.buffer, self.height * stride + GUARD))?;
        let mut found = Vec::with_capacity(self.height * self.width);
        for (i, &x) in all.iter().enumerate() {
            let (row, column) = (i / stride, i % stride);
            let expected = match column.checked_sub(self.offset) {
                Some(c) if row < self.height && c < self.width => {
                    found.push(f64::from(x));
                    continue;
                }
                Some(c) if row < self.height && c < self.width.next_multiple_of(4) => 0.0,
                _ => UNTOUCHED,
            };
            if x.to_bits() != expected.to_bits() {
                let place = format!("row {row} of {}, column {column} of {stride}", self.height);
                return Err(format!(
                    "{case}: {place}, outside of the output: expected {expected}, found {x}"
                )
                .into());
            }
        }
        Ok(found)
    }
}

/// A matrix of the adapter in the middle of a larger buffer.
pub struct Held {
    pub param: Param,
    len: usize,
}

impl Held {
    const BEFORE: usize = 128;

    pub fn new(gpu: &Gpu, cols: usize, values: &[f32]) -> Held {
        let mut all = vec![UNTOUCHED; Self::BEFORE + values.len() + GUARD];
        all[Self::BEFORE..Self::BEFORE + values.len()].copy_from_slice(values);
        let buffer = gpu.upload("test", &all).expect("test buffers are small");
        let param = Param { buffer, offset: 4 * Self::BEFORE as u64, rows: values.len() / cols, cols };
        Held { param, len: values.len() }
    }

    /// Reads the matrix, after checking the guards.
    pub fn read(&self, gpu: &Gpu, case: &str) -> Result<Vec<f64>, Failed> {
        let all: Vec<f32> = block_on(gpu.read(&self.param.buffer, Self::BEFORE + self.len + GUARD))?;
        let inside = Self::BEFORE..Self::BEFORE + self.len;
        for (i, x) in all.iter().enumerate() {
            if !inside.contains(&i) && *x != UNTOUCHED {
                return Err(format!(
                    "{case}: float {i} outside of {inside:?}: expected {UNTOUCHED}, found {x}"
                )
                .into());
            }
        }
        Ok(wide(&all[inside]))
    }
}

/// The largest errors that are allowed.
#[derive(Clone, Copy)]
pub struct Tolerance {
    /// Norm of the difference, relative to the norm of the expected values.
    pub norm: f64,
    /// Error of one element, relative to itself …
    pub relative: f64,
    /// … plus relative to the largest element.
    pub absolute: f64,
}

/// All comparisons of one test.
pub struct Check {
    what: &'static str,
    tolerance: Tolerance,
    cases: usize,
    worst: (f64, f64),
}

impl Check {
    pub fn new(what: &'static str, tolerance: Tolerance) -> Check {
        Check { what, tolerance, cases: 0, worst: (0.0, 0.0) }
    }

    /// Compares `[height, width]` values.
    pub fn close(&mut self, case: &str, width: usize, found: &[f64], expected: &[f64]) -> Outcome {
        self.close_to(case, width, found, expected, 0.0)
    }

    /// Compares sums whose terms, of about `size`, may cancel.
    pub fn close_to(
        &mut self,
        case: &str,
        width: usize,
        found: &[f64],
        expected: &[f64],
        size: f64,
    ) -> Outcome {
        let what = format!("{} {case}", self.what);
        if found.len() != expected.len() {
            return Err(format!("{what}: expected {} values, found {}", expected.len(), found.len()).into());
        }
        let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
        let floor = size * (expected.len() as f64).sqrt();
        let scale = norm(&mut expected.iter().copied()).max(floor).max(1e-30);
        let error = norm(&mut found.iter().zip(expected).map(|(f, e)| f - e)) / scale;
        let largest = expected.iter().fold(size, |m, x| m.max(x.abs())).max(1e-30);
        let Tolerance { norm, relative, absolute } = self.tolerance;
        for (i, (f, e)) in found.iter().zip(expected).enumerate() {
            let allowed = relative * e.abs() + absolute * largest;
            self.worst.1 = self.worst.1.max((f - e).abs() / allowed);
            let close = (f - e).abs() <= allowed; // false for NaN
            if !close {
                let place = format!("[{}, {}] of [{}, {width}]", i / width, i % width, found.len() / width);
                return Err(format!(
                    "{what}: {place}: expected {e:e}, found {f:e}, at most {allowed:.1e} apart (norm: {error:.1e} apart)"
                )
                .into());
            }
        }
        let close = error <= norm;
        if !close {
            return Err(format!("{what}: relative error {error:.2e}, expected at most {norm:.0e}").into());
        }
        self.cases += 1;
        self.worst.0 = self.worst.0.max(error);
        Ok(())
    }

    /// Prints the worst errors.
    pub fn done(self) -> Outcome {
        assert!(self.cases > 0, "{}: nothing was compared", self.what);
        let Check { what, cases, worst, tolerance } = self;
        let share = 100.0 * worst.1;
        println!(
            "{what}: {cases} cases, worst {:.1e} of {:.0e}, element at {share:.0} %",
            worst.0, tolerance.norm
        );
        Ok(())
    }
}
