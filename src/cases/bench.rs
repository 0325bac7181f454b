//! One case under way: it makes buffers, runs kernels, and notes what they must have written.

use std::cell::RefCell;

use super::block::{self, AROUND, Block, Layout, Margins, POISON, Place};
use super::tolerance::{EXACT, HALF, PRODUCT, Tolerance};
use super::weight;
use crate::base::formats::GgmlType;
use crate::gpu::{Gpu, GpuError, Recorder, Tier};
use crate::ops::pack::Packed;
use crate::ops::{Param, Weight};

/// The expected values of one buffer.
struct Expected {
    name: String,
    layout: Layout,
    width: usize,
    values: Vec<f64>,
    /// Numbers of values that are compared together, with their tolerances.
    pieces: Vec<(usize, Tolerance)>,
    /// Factors of the rows before they are compared; empty where all are 1.
    levels: Vec<f64>,
}

/// Runs work as often as it takes to time it.
type Timer<'g> = Box<dyn Fn(&dyn Fn(&mut Recorder<'g>)) -> Result<(), GpuError> + 'g>;

/// Runs of the kernels under test.
enum Mode<'g> {
    /// Once; what they write is compared.
    Compared,
    /// Not at all: they are collected.
    Ahead(Box<RefCell<Recorder<'g>>>),
    /// As often as the timer runs them.
    Timed(Timer<'g>),
}

/// One case under way.
pub struct Bench<'g> {
    /// The device with the kernels under test.
    pub gpu: &'g Gpu,
    /// Whether the device must compute as exactly as the tests ask for, not only as the self-test does.
    strict: bool,
    expected: Vec<Expected>,
    /// Pairs of results with the same bits.
    same: Vec<(String, [Layout; 2])>,
    mode: Mode<'g>,
}

impl<'g> Bench<'g> {
    /// For the self-test: nothing noted yet.
    pub fn new(gpu: &'g Gpu) -> Bench<'g> {
        Bench { gpu, strict: false, expected: Vec::new(), same: Vec::new(), mode: Mode::Compared }
    }

    /// For tests.
    pub fn strict(gpu: &'g Gpu) -> Bench<'g> {
        Bench { strict: true, ..Bench::new(gpu) }
    }

    /// Runs nothing, and collects the kernels for [`Bench::compile`].
    pub fn ahead(gpu: &'g Gpu) -> Bench<'g> {
        Bench { mode: Mode::Ahead(Box::new(RefCell::new(Recorder::ahead(gpu)))), ..Bench::new(gpu) }
    }

    /// Hands what [`Bench::run`] gets to `timer`, which may run it more than once, and compares nothing.
    pub fn timed(
        gpu: &'g Gpu,
        timer: impl Fn(&dyn Fn(&mut Recorder<'g>)) -> Result<(), GpuError> + 'g,
    ) -> Bench<'g> {
        Bench { mode: Mode::Timed(Box::new(timer)), ..Bench::new(gpu) }
    }

    /// Compiles the collected kernels in parallel.
    ///
    /// # Errors
    /// The device's error.
    pub fn compile(self) -> Result<(), GpuError> {
        match self.mode {
            Mode::Ahead(rec) => rec.into_inner().compile().map(drop),
            _ => Ok(()),
        }
    }

    /// Whether what the kernels write is compared: without that, no case needs the reference.
    pub fn compares(&self) -> bool {
        matches!(self.mode, Mode::Compared)
    }

    /// Whether a timer runs the kernels.
    pub fn is_timed(&self) -> bool {
        matches!(self.mode, Mode::Timed(_))
    }

    /// Timed kernels read and write whole rows, as those of a step do.
    fn margins(&self, margins: Margins) -> Margins {
        if self.is_timed() { (0, 0) } else { margins }
    }

    /// The tolerance of products.
    pub fn operands(&self) -> Tolerance {
        if self.gpu.kernels().tier() == Tier::F32 { PRODUCT } else { HALF }
    }

    /// Records the kernels under test and submits them, or has them timed.
    ///
    /// # Errors
    /// The device's error.
    pub fn run(&self, work: impl Fn(&mut Recorder<'g>)) -> Result<(), GpuError> {
        match &self.mode {
            Mode::Timed(timer) => timer(&work),
            _ => self.untimed(work),
        }
    }

    /// Records what stands beside the kernels under test, and submits it.
    ///
    /// # Errors
    /// The device's error.
    pub fn untimed(&self, work: impl Fn(&mut Recorder<'g>)) -> Result<(), GpuError> {
        if let Mode::Ahead(rec) = &self.mode {
            work(&mut rec.borrow_mut());
            return Ok(());
        }
        let mut rec = Recorder::new(self.gpu);
        work(&mut rec);
        rec.submit()
    }

    /// An input whose surroundings are NaN, which no product with zero hides.
    ///
    /// # Errors
    /// The device's error, as of the others.
    pub fn input(&self, width: usize, values: &[f32]) -> Result<Block, GpuError> {
        self.input_within((0, 0), width, values)
    }

    /// An input between margins of NaN.
    pub fn input_within(&self, margins: Margins, width: usize, values: &[f32]) -> Result<Block, GpuError> {
        Block::input(self.gpu, self.margins(margins), width, values)
    }

    /// An output, poisoned.
    pub fn output(&self, width: usize, height: usize) -> Result<Block, GpuError> {
        self.output_within((0, 0), width, height)
    }

    /// An output between margins that must not change, poisoned.
    pub fn output_within(&self, margins: Margins, width: usize, height: usize) -> Result<Block, GpuError> {
        Block::output(self.gpu, self.margins(margins), width, height)
    }

    /// An input that is overwritten or added to.
    pub fn in_out(&self, width: usize, values: &[f32]) -> Result<Block, GpuError> {
        self.in_out_within((0, 0), width, values)
    }

    /// Columns that are added to, between margins that must not change.
    pub fn in_out_within(&self, margins: Margins, width: usize, values: &[f32]) -> Result<Block, GpuError> {
        Block::in_out(self.gpu, self.margins(margins), width, values)
    }

    /// A matrix of the adapter in the middle of a larger buffer.
    pub fn param(&self, cols: usize, values: &[f32]) -> Result<Param, GpuError> {
        block::param(self.gpu, cols, values)
    }

    /// A random matrix of a weight format on the device, and its values.
    pub fn weight(&self, ty: GgmlType, rows: usize, cols: usize) -> Result<(Weight, Vec<f64>), GpuError> {
        weight::random(self.gpu, ty, rows, cols, false)
    }

    /// Notes what `block` must hold; everything around it must be as it was.
    pub fn expect(&mut self, name: impl Into<String>, block: &Block, values: Vec<f64>, tolerance: Tolerance) {
        let pieces = vec![(values.len(), tolerance)];
        self.note(name.into(), block.whole(), block.width, values, pieces);
    }

    /// Notes what `block` must hold, each row with a tolerance of its own.
    pub fn expect_each_row(
        &mut self,
        name: impl Into<String>,
        block: &Block,
        values: Vec<f64>,
        tolerance: impl Fn(usize) -> Tolerance,
    ) {
        let pieces = (0..block.height).map(|row| (block.width, tolerance(row))).collect();
        self.note(name.into(), block.whole(), block.width, values, pieces);
    }

    /// Notes what `block` must hold, rows of different sizes multiplied by `level` before they are compared together.
    pub fn expect_leveled(
        &mut self,
        name: impl Into<String>,
        block: &Block,
        values: &[f64],
        tolerance: Tolerance,
        level: impl Fn(usize) -> f64,
    ) {
        let levels: Vec<f64> = (0..block.height).map(level).collect();
        self.expect(name, block, leveled(values, block.width, &levels), tolerance);
        self.expected.last_mut().expect("it was noted").levels = levels;
    }

    /// Notes what the rows of `block` must hold for which `of` is true; other rows may hold anything.
    pub fn expect_rows(
        &mut self,
        name: impl Into<String>,
        block: &Block,
        of: impl Fn(usize) -> bool,
        values: Vec<f64>,
        tolerance: Tolerance,
    ) {
        let pieces = vec![(values.len(), tolerance)];
        self.note(name.into(), block.of_rows(of), block.width, values, pieces);
    }

    /// Notes what the rows of an output must hold for which `of` is true, each compared alone; other rows keep their poison.
    pub fn expect_only_rows(
        &mut self,
        name: impl Into<String>,
        block: &Block,
        of: impl Fn(usize) -> bool,
        values: Vec<f64>,
        tolerance: Tolerance,
    ) {
        let pieces = vec![(block.width, tolerance); values.len() / block.width];
        self.note(name.into(), block.of_rows_among(AROUND, of), block.width, values, pieces);
    }

    /// Notes what `count` columns of `block` from `first` on must hold; the others may hold anything.
    pub fn expect_columns(
        &mut self,
        name: &str,
        block: &Block,
        first: usize,
        count: usize,
        values: Vec<f64>,
        tolerance: Tolerance,
    ) {
        let pieces = vec![(values.len(), tolerance)];
        self.note(name.into(), block.of_columns(first..first + count, Place::Value), count, values, pieces);
    }

    /// Notes what all columns of `block` from `first` on must hold, rows multiplied by `level` before they are compared together.
    pub fn expect_columns_leveled(
        &mut self,
        name: &str,
        block: &Block,
        first: usize,
        values: &[f64],
        tolerance: Tolerance,
        level: impl Fn(usize) -> f64,
    ) {
        let (count, levels) = (block.width - first, (0..block.height).map(level).collect::<Vec<f64>>());
        self.expect_columns(name, block, first, count, leveled(values, count, &levels), tolerance);
        self.expected.last_mut().expect("it was noted").levels = levels;
    }

    /// Notes that two blocks hold the same bits.
    pub fn expect_same(&mut self, name: impl Into<String>, block: &Block, other: &Block) {
        self.same.push((name.into(), [block.whole(), other.whole()]));
    }

    /// Notes that `count` columns of an output from `first` on keep their poison; the others may hold anything.
    pub fn expect_columns_kept(&mut self, name: &str, block: &Block, first: usize, count: usize) {
        let layout = block.of_columns(first..first + count, AROUND);
        self.note(name.into(), layout, 1, Vec::new(), vec![(0, EXACT)]);
    }

    /// Notes what the start of a buffer without guards must hold.
    pub fn expect_start(
        &mut self,
        name: &str,
        buffer: &wgpu::Buffer,
        values: Vec<f64>,
        tolerance: Tolerance,
    ) {
        self.expect_from(name, buffer, 0, values, tolerance);
    }

    /// Notes what a buffer without guards must hold from float `first` on.
    pub fn expect_from(
        &mut self,
        name: &str,
        buffer: &wgpu::Buffer,
        first: usize,
        values: Vec<f64>,
        tolerance: Tolerance,
    ) {
        let places = [vec![Place::Any; first], vec![Place::Value; values.len()]].concat();
        let layout = Layout { buffer: buffer.clone(), places };
        let pieces = vec![(values.len(), tolerance)];
        self.note(name.into(), layout, values.len(), values, pieces);
    }

    /// Notes the two norms of an update, which lie behind five other figures.
    pub fn expect_norms(&mut self, state: &wgpu::Buffer, norms: [f64; 2], tolerance: Tolerance) {
        for (at, norm) in (5..).zip(norms) {
            self.expect_from(&format!("norm {}", at - 4), state, at, vec![norm], tolerance);
        }
    }

    /// Notes which bits the start of a buffer without guards must hold.
    pub fn expect_bits(&mut self, name: &str, buffer: &wgpu::Buffer, bits: impl IntoIterator<Item = u32>) {
        let places = bits.into_iter().map(Place::Kept).collect();
        let layout = Layout { buffer: buffer.clone(), places };
        self.note(name.into(), layout, 1, Vec::new(), vec![(0, EXACT)]);
    }

    /// Notes what the first floats of an output of one row must hold; the rest keeps its poison.
    pub fn expect_first(
        &mut self,
        name: impl Into<String>,
        block: &Block,
        values: Vec<f64>,
        tolerance: Tolerance,
    ) {
        self.expect_behind(name, block, 0, values, tolerance);
    }

    /// Notes what an output of one row must hold behind its first `before` floats; all others keep their poison.
    pub fn expect_behind(
        &mut self,
        name: impl Into<String>,
        block: &Block,
        before: usize,
        values: Vec<f64>,
        tolerance: Tolerance,
    ) {
        let (layout, pieces) =
            (block.of_range(before..before + values.len()), vec![(values.len(), tolerance)]);
        self.note(name.into(), layout, values.len(), values, pieces);
    }

    /// Notes that an output of one row keeps its poison from float `from` on.
    pub fn expect_kept(&mut self, name: impl Into<String>, block: &Block, from: usize) {
        self.note(name.into(), block.any_before(from), 1, Vec::new(), vec![(0, EXACT)]);
    }

    /// Fills packed rows with NaN.
    pub fn make_stale(&self, packed: &Packed, width: usize, height: usize) {
        let stale = vec![u32::MAX; width.next_multiple_of(64) * height.next_multiple_of(16) / 2];
        self.gpu.write(packed.bind(0).buffer, &stale);
    }

    /// Notes that packed rows are zero behind the last column and row, which products read.
    pub fn expect_nothing_behind(
        &mut self,
        name: impl Into<String>,
        packed: &Packed,
        width: usize,
        height: usize,
    ) {
        self.note(name.into(), block::behind(packed, width, height), 1, Vec::new(), vec![(0, EXACT)]);
    }

    /// Notes what a matrix of the adapter must hold.
    pub fn expect_param(
        &mut self,
        name: impl Into<String>,
        param: &Param,
        values: Vec<f64>,
        tolerance: Tolerance,
    ) {
        let pieces = vec![(values.len(), tolerance)];
        self.note(name.into(), block::of_param(param), param.cols, values, pieces);
    }

    fn note(
        &mut self,
        name: String,
        layout: Layout,
        width: usize,
        values: Vec<f64>,
        pieces: Vec<(usize, Tolerance)>,
    ) {
        self.expected.push(Expected { name, layout, width, values, pieces, levels: Vec::new() });
    }

    /// Reads every buffer and compares; returns the largest error as a share of what is allowed.
    ///
    /// # Errors
    /// The first buffer that is wrong, in words, or the device's error.
    pub async fn verdict(self) -> Result<f64, String> {
        let mut worst = 0f64;
        for expected in &self.expected {
            let found = expected.layout.read(self.gpu, &expected.name).await?;
            worst = worst.max(expected.compare(&found, self.strict)?);
        }
        for (name, layouts) in &self.same {
            let [found, other] =
                [layouts[0].read(self.gpu, name).await?, layouts[1].read(self.gpu, name).await?];
            let differ = |(one, other): (&f64, &f64)| one.to_bits() != other.to_bits();
            if let Some(i) = found.iter().zip(&other).position(differ) {
                return Err(format!("{name}: value {i} is {}, expected exactly {}", found[i], other[i]));
            }
        }
        Ok(worst)
    }
}

impl Expected {
    fn compare(&self, found: &[f64], strict: bool) -> Result<f64, String> {
        let (name, count) = (&self.name, self.values.len());
        match found.iter().filter(|x| **x == f64::from(POISON)).count() {
            0 => {}
            left => return Err(format!("{name}: {left} of {count} values were not written")),
        }
        let leveled = (!self.levels.is_empty()).then(|| leveled(found, self.width, &self.levels));
        let found = leveled.as_deref().unwrap_or(found);
        let named = |error: String| format!("{name}: {error}");
        let (mut worst, mut at) = (0f64, 0);
        for (count, tolerance) in &self.pieces {
            let piece = at..at + count;
            let tolerance = if strict { *tolerance } else { tolerance.of_device() };
            let shares = tolerance.compare(self.width, &found[piece.clone()], &self.values[piece]);
            worst = shares.map_err(named)?.into_iter().fold(worst, f64::max);
            at += count;
        }
        assert_eq!(at, count, "each value is in one piece");
        Ok(worst)
    }
}

/// Rows, each times its factor.
fn leveled(rows: &[f64], width: usize, levels: &[f64]) -> Vec<f64> {
    rows.chunks(width).zip(levels).flat_map(|(row, level)| row.iter().map(move |x| level * x)).collect()
}
