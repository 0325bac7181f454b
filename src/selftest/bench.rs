//! Buffers with guards around them, and the comparison of what the device wrote with f64.

use std::cell::RefCell;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::base::formats::{GgmlType, dequantize, random_blocks};
use crate::gpu::{Gpu, GpuError, Recorder, Tier};
use crate::ops::{Param, Rows, View, Weight};

/// Poison value: fills outputs and their guards before the kernel runs. A driver that reports success and writes nothing leaves it.
const POISON: f32 = -12345.678;
/// Floats behind every buffer.
const GUARD: usize = 512;
/// Floats before the first of a [`Param`].
const BEFORE: usize = 128;

/// Largest error of f32, relative to the largest expected value: rounding of sums of a few hundred products.
pub const F32: f64 = 2e-5;
/// Largest error where operands are rounded to f16.
pub const F16: f64 = 1e-2;

/// Largest error where one operand is rounded to integers of 16 bits.
pub const BYTES: f64 = 2e-4;

/// Uniform in [-1, 1), fixed by the seed.
pub fn values(seed: u64, len: usize) -> Vec<f32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..len).map(|_| 2.0 * random.random::<f32>() - 1.0).collect()
}

/// The values in f64.
pub fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| f64::from(x)).collect()
}

/// `y + scale·x`.
pub fn plus(y: &[f64], scale: f64, x: &[f64]) -> Vec<f64> {
    y.iter().zip(x).map(|(y, x)| y + scale * x).collect()
}

/// PCG output function, RXS-M-XS 32: shaders/common/pcg.wgsl.
pub fn pcg(value: u32) -> u32 {
    let state = value.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
    let word = ((state >> ((state >> 28) + 4)) ^ state).wrapping_mul(277_803_737);
    (word >> 22) ^ word
}

/// A part of the rows that a kernel reads or writes: `[height, width]` among four columns of guard on either side.
pub struct Block {
    rows: Rows,
    height: usize,
    width: usize,
    margin: usize,
}

impl Block {
    /// The rows, for operations that take all columns: only of blocks without margins.
    pub fn rows(&self) -> &Rows {
        &self.rows
    }

    /// The columns between the margins.
    pub fn view(&self) -> View<'_> {
        self.rows.from(self.margin)
    }
}

/// The expected content of one float of a buffer.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// The next of the expected values.
    Value,
    /// These bits.
    Kept(u32),
    /// Anything.
    Any,
}

/// Place around a result.
const AROUND: Place = Place::Kept(POISON.to_bits());

/// The expected content of one buffer.
struct Expected {
    name: String,
    buffer: wgpu::Buffer,
    places: Vec<Place>,
    values: Vec<f64>,
    tolerance: f64,
}

/// One check under way: it makes buffers, runs kernels, and notes what they must have written.
pub struct Bench<'g> {
    /// The device with the kernels under test.
    pub gpu: &'g Gpu,
    expected: Vec<Expected>,
    /// Collects the kernels, which do not run then.
    ahead: RefCell<Option<Recorder<'g>>>,
}

impl<'g> Bench<'g> {
    /// Nothing noted yet.
    pub fn new(gpu: &'g Gpu) -> Bench<'g> {
        Bench { gpu, expected: Vec::new(), ahead: RefCell::new(None) }
    }

    /// Runs nothing, and collects the kernels for [`Bench::compile`].
    pub fn ahead(gpu: &'g Gpu) -> Bench<'g> {
        Bench { ahead: RefCell::new(Some(Recorder::ahead(gpu))), ..Bench::new(gpu) }
    }

    /// Compiles the collected kernels in parallel.
    pub fn compile(self) -> Result<(), GpuError> {
        self.ahead.into_inner().map_or(Ok(()), |rec| rec.compile().map(drop))
    }

    /// The tolerance of products and attention.
    pub fn operands(&self) -> f64 {
        if self.gpu.kernels().tier() == Tier::F32 { F32 } else { F16 }
    }

    /// Records `work` and submits it.
    pub fn run(&self, work: impl FnOnce(&mut Recorder<'g>)) -> Result<(), GpuError> {
        if let Some(rec) = &mut *self.ahead.borrow_mut() {
            work(rec);
            return Ok(());
        }
        let mut rec = Recorder::new(self.gpu);
        work(&mut rec);
        rec.submit()
    }

    /// An input whose surroundings are NaN, which no product with zero hides.
    pub fn input(&self, width: usize, values: &[f32]) -> Result<Block, GpuError> {
        self.block(width, values, (0, f32::NAN, 0.0))
    }

    /// An input between columns of NaN.
    pub fn input_view(&self, width: usize, values: &[f32]) -> Result<Block, GpuError> {
        self.block(width, values, (4, f32::NAN, 0.0))
    }

    /// An output, poisoned.
    pub fn output(&self, width: usize, height: usize) -> Result<Block, GpuError> {
        self.block(width, &vec![POISON; width * height], (0, POISON, POISON))
    }

    /// An output between columns that must not change, poisoned.
    pub fn output_view(&self, width: usize, height: usize) -> Result<Block, GpuError> {
        self.block(width, &vec![POISON; width * height], (4, POISON, POISON))
    }

    /// An input that is overwritten or added to.
    pub fn in_out(&self, width: usize, values: &[f32]) -> Result<Block, GpuError> {
        self.block(width, values, (0, POISON, 0.0))
    }

    /// Columns that are added to, between columns that must not change.
    pub fn in_out_view(&self, width: usize, values: &[f32]) -> Result<Block, GpuError> {
        self.block(width, values, (4, POISON, 0.0))
    }

    fn block(
        &self,
        width: usize,
        values: &[f32],
        (margin, around, pad): (usize, f32, f32),
    ) -> Result<Block, GpuError> {
        let (height, padded) = (values.len() / width, width.next_multiple_of(4));
        let stride = padded + 2 * margin;
        let mut all = vec![around; height * stride + GUARD];
        for (row, values) in values.chunks(width).enumerate() {
            let at = row * stride + margin;
            all[at..at + width].copy_from_slice(values);
            all[at + width..at + padded].fill(pad);
        }
        let rows = Rows { buffer: self.gpu.upload("self-test", &all)?, stride, start: 0 };
        Ok(Block { rows, height, width, margin })
    }

    /// A matrix of the adapter in the middle of a larger buffer.
    pub fn param(&self, cols: usize, values: &[f32]) -> Result<Param, GpuError> {
        let mut all = vec![POISON; BEFORE + values.len() + GUARD];
        all[BEFORE..BEFORE + values.len()].copy_from_slice(values);
        let buffer = self.gpu.upload("self-test", &all)?;
        Ok(Param { buffer, offset: 4 * BEFORE as u64, rows: values.len() / cols, cols })
    }

    /// A random matrix of a weight format on the device, and its values.
    pub fn weight(&self, ty: GgmlType, rows: usize, cols: usize) -> Result<(Weight, Vec<f64>), GpuError> {
        let bytes = random_blocks(ty, rows * cols / ty.block_len(), (rows + cols) as u64);
        let truth = wide(&dequantize(ty, &bytes));
        Ok((Weight::upload(self.gpu, "self-test", ty, rows, cols, &bytes)?, truth))
    }

    /// Notes what `block` must hold; everything around it must be as it was.
    pub fn expect(&mut self, name: impl Into<String>, block: &Block, values: Vec<f64>, tolerance: f64) {
        assert_eq!(values.len(), block.height * block.width, "one value per element");
        self.expect_rows(name, block, |_| true, values, tolerance);
    }

    /// Notes what the rows of `block` must hold for which `of` is true; other rows may hold anything.
    pub fn expect_rows(
        &mut self,
        name: impl Into<String>,
        block: &Block,
        of: impl Fn(usize) -> bool,
        values: Vec<f64>,
        tolerance: f64,
    ) {
        let Block { height, width, margin, .. } = *block;
        let stride = block.rows.stride;
        let place = |i: usize| {
            let (row, column) = (i / stride, (i % stride).checked_sub(margin));
            match column {
                _ if row >= height => AROUND,
                _ if !of(row) => Place::Any,
                Some(column) if column < width => Place::Value,
                Some(column) if column < width.next_multiple_of(4) => Place::Kept(0),
                _ => AROUND,
            }
        };
        let places = (0..height * stride + GUARD).map(place).collect();
        self.note(name.into(), &block.rows.buffer, places, values, tolerance);
    }

    /// Notes what `count` columns of `block` from `first` on must hold; the others may hold anything.
    pub fn expect_columns(
        &mut self,
        name: &str,
        block: &Block,
        first: usize,
        count: usize,
        values: Vec<f64>,
        tolerance: f64,
    ) {
        let stride = block.rows.stride;
        let within = |i: usize| (first..first + count).contains(&(i % stride));
        let place = |i: usize| match i / stride < block.height {
            true if within(i) => Place::Value,
            true => Place::Any,
            false => AROUND,
        };
        let places = (0..block.height * stride + GUARD).map(place).collect();
        self.note(name.into(), &block.rows.buffer, places, values, tolerance);
    }

    /// Notes what the start of a buffer without guards must hold.
    pub fn expect_start(&mut self, name: &str, buffer: &wgpu::Buffer, values: Vec<f64>, tolerance: f64) {
        let places = vec![Place::Value; values.len()];
        self.note(name.into(), buffer, places, values, tolerance);
    }

    /// Notes the two norms of an update, which lie behind five other figures.
    pub fn expect_norms(&mut self, state: &wgpu::Buffer, norms: [f64; 2]) {
        for (at, norm) in (5..).zip(norms) {
            let places = (0..=at).map(|i| if i == at { Place::Value } else { Place::Any }).collect();
            self.note(format!("norm {}", at - 4), state, places, vec![norm], F32);
        }
    }

    /// Notes which bits the start of a buffer without guards must hold.
    pub fn expect_bits(&mut self, name: &str, buffer: &wgpu::Buffer, bits: impl IntoIterator<Item = u32>) {
        let places = bits.into_iter().map(Place::Kept).collect();
        self.note(name.into(), buffer, places, Vec::new(), 0.0);
    }

    /// Notes what the first floats of an output of one row must hold; the rest keeps its poison.
    pub fn expect_first(&mut self, name: impl Into<String>, block: &Block, values: Vec<f64>, tolerance: f64) {
        let all = block.rows.stride + GUARD;
        let places = (0..all).map(|i| if i < values.len() { Place::Value } else { AROUND }).collect();
        self.note(name.into(), &block.rows.buffer, places, values, tolerance);
    }

    /// Notes what a matrix of the adapter must hold.
    pub fn expect_param(&mut self, name: impl Into<String>, param: &Param, values: Vec<f64>, tolerance: f64) {
        let inside = BEFORE..BEFORE + values.len();
        let all = inside.end + GUARD;
        let places = (0..all).map(|i| if inside.contains(&i) { Place::Value } else { AROUND }).collect();
        self.note(name.into(), &param.buffer, places, values, tolerance);
    }

    fn note(
        &mut self,
        name: String,
        buffer: &wgpu::Buffer,
        places: Vec<Place>,
        values: Vec<f64>,
        tolerance: f64,
    ) {
        self.expected.push(Expected { name, buffer: buffer.clone(), places, values, tolerance });
    }

    /// Reads every buffer and compares; returns the largest error as a share of what is allowed.
    ///
    /// # Errors
    /// The first buffer that is wrong, in words, or the device's error.
    pub async fn verdict(self) -> Result<f64, String> {
        let mut worst = 0f64;
        for expected in &self.expected {
            let read = self.gpu.read::<f32>(&expected.buffer, expected.places.len()).await;
            worst = worst.max(expected.compare(&read.map_err(|error| error.to_string())?)?);
        }
        Ok(worst)
    }
}

impl Expected {
    fn compare(&self, all: &[f32]) -> Result<f64, String> {
        let (name, count) = (&self.name, self.values.len());
        let largest = self.values.iter().fold(0f64, |most, x| most.max(x.abs()));
        let allowed = self.tolerance * largest;
        let (mut worst, mut values) = (0f64, self.values.iter().enumerate());
        let unwritten = all
            .iter()
            .zip(&self.places)
            .filter(|(x, place)| **place == Place::Value && x.to_bits() == POISON.to_bits());
        match unwritten.count() {
            0 => {}
            left => return Err(format!("{name}: {left} of {count} values were not written")),
        }
        for (at, (found, place)) in all.iter().zip(&self.places).enumerate() {
            match *place {
                Place::Any => {}
                Place::Kept(bits) if found.to_bits() == bits => {}
                Place::Kept(bits) => {
                    let kept = f32::from_bits(bits);
                    return Err(format!("{name}: float {at} is {found:e}, expected exactly {kept:e}"));
                }
                Place::Value => {
                    let (i, expected) = values.next().expect("one value for each place");
                    let error = (f64::from(*found) - expected).abs();
                    if error.is_nan() || error > allowed {
                        return Err(format!(
                            "{name}: value {i} of {count} is {found:e}, expected {expected:e} within {allowed:.1e}"
                        ));
                    }
                    worst = worst.max(if allowed > 0.0 { error / allowed } else { 0.0 });
                }
            }
        }
        assert!(values.next().is_none(), "one place for each value");
        Ok(worst)
    }
}
