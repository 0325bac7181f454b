//! One case of an operation: its shapes, and what is run and compared for each.

use super::bench::Bench;
use crate::gpu::{Gpu, GpuError};
use crate::ops::op::Variant;

/// The kernels that a case is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Every device.
    Any,
    /// Products that read rows of f32.
    Rows,
    /// Products on matrices of 16×16, which read f16 tiles.
    Tiles,
    /// Long products in CUDA.
    Cuda,
}

/// A case of an operation.
#[derive(Clone, Copy)]
pub struct Case {
    /// The operation's folder.
    pub op: &'static str,
    /// Its part.
    pub name: &'static str,
    /// The kernels that it is for.
    pub needs: Needs,
    /// The variants that the tests run it on.
    pub variants: &'static [Variant],
    /// The shapes to run, and their check.
    pub shapes: &'static dyn Run,
}

impl Case {
    /// Whether the kernels of `gpu` run it.
    pub fn is_for(&self, gpu: &Gpu) -> bool {
        match self.needs {
            Needs::Any => true,
            Needs::Rows => !gpu.kernels().reads_tiles(),
            Needs::Tiles => gpu.kernels().reads_tiles(),
            Needs::Cuda => gpu.kernels().cuda().is_some(),
        }
    }
}

/// Runs the kernels of one shape and notes what they must have written.
pub type Check<S> = fn(&mut Bench, &S) -> Result<(), GpuError>;

/// The shapes of a case.
pub struct Shapes<S: 'static> {
    /// Small and odd ones, which the self-test of a device runs.
    pub small: &'static [S],
    /// Those that only the tests run.
    pub more: &'static [S],
    /// Runs one of them.
    pub check: Check<S>,
}

/// The shapes of a case, those of the tests combined from others.
pub struct Combined<S: 'static> {
    /// As of [`Shapes`].
    pub small: &'static [S],
    /// As of [`Shapes`].
    pub more: fn() -> Vec<S>,
    /// As of [`Shapes`].
    pub check: Check<S>,
}

/// A case of the self-test alone.
pub struct Once(pub fn(&mut Bench) -> Result<(), GpuError>);

/// Shapes of any kind.
pub trait Run: Sync {
    /// Numbers of shapes that the self-test runs, and that only the tests run.
    fn counts(&self) -> [usize; 2];

    /// Runs the kernels of shape `index`, of the self-test's and those of the tests behind them.
    ///
    /// # Errors
    /// The device's error.
    fn run(&self, b: &mut Bench, index: usize) -> Result<(), GpuError>;
}

impl<S: Sync> Run for Shapes<S> {
    fn counts(&self) -> [usize; 2] {
        [self.small.len(), self.more.len()]
    }

    fn run(&self, b: &mut Bench, index: usize) -> Result<(), GpuError> {
        let shape =
            self.small.iter().chain(self.more).nth(index).expect("an index below the sum of the counts");
        (self.check)(b, shape)
    }
}

impl<S: Sync> Run for Combined<S> {
    fn counts(&self) -> [usize; 2] {
        [self.small.len(), (self.more)().len()]
    }

    fn run(&self, b: &mut Bench, index: usize) -> Result<(), GpuError> {
        match self.small.get(index) {
            Some(shape) => (self.check)(b, shape),
            None => (self.check)(b, &(self.more)()[index - self.small.len()]),
        }
    }
}

impl Run for Once {
    fn counts(&self) -> [usize; 2] {
        [1, 0]
    }

    fn run(&self, b: &mut Bench, _index: usize) -> Result<(), GpuError> {
        (self.0)(b)
    }
}
