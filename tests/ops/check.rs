//! Buffers with guards around them that must be neither read nor written, and the comparison with the reference.

use std::ops::Deref;

use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::cases;
use rullama_train::cases::bench::Bench;
use rullama_train::cases::block;
use rullama_train::cases::case::{Case, Check as OfShape};
use rullama_train::gpu::{Gpu, GpuError, Recorder};
use rullama_train::ops::Param;
use rullama_train::ops::Rows;

pub use rullama_train::cases::block::Margins;
pub use rullama_train::cases::inputs::{scaled, values, wide};
pub use rullama_train::cases::tolerance::Tolerance;

pub type Outcome = Result<(), Failed>;

/// `y + x`, for a backward that adds to a buffer.
pub fn sum(y: &[f64], x: &[f64]) -> Vec<f64> {
    rullama_train::cases::inputs::plus(y, 1.0, x)
}

/// Records `work` and submits it.
pub fn run<'g>(gpu: &'g Gpu, work: impl FnOnce(&mut Recorder<'g>)) -> Outcome {
    let mut rec = Recorder::new(gpu);
    work(&mut rec);
    Ok(rec.submit()?)
}

/// Runs all shapes of a case of the table, one after the other, with the tolerances of tests.
pub fn all_shapes(gpu: &Gpu, case: &Case) -> Outcome {
    let count = case.shapes.counts().iter().sum();
    strictly(gpu, &format!("{}/{}", case.op, case.name), count, |bench, i| case.shapes.run(bench, i))
}

/// Runs all shapes of a case, which the table of cases has for the kernels of `gpu`, or for kernels beside which they run.
pub fn of_table(gpu: &Gpu, op: &str, name: &str) -> Outcome {
    let own = || cases::all().filter(|case| (case.op, case.name) == (op, name));
    let case = own().find(|case| case.is_for(gpu)).or_else(|| own().next());
    all_shapes(gpu, case.ok_or_else(|| format!("there is no case {op}/{name}"))?)
}

/// Checks shapes one after the other, with the tolerances of tests.
pub fn each<S>(gpu: &Gpu, name: &str, shapes: &[S], check: OfShape<S>) -> Outcome {
    strictly(gpu, name, shapes.len(), |bench, i| check(bench, &shapes[i]))
}

fn strictly(
    gpu: &Gpu,
    name: &str,
    count: usize,
    run: impl Fn(&mut Bench, usize) -> Result<(), GpuError>,
) -> Outcome {
    let mut worst = 0f64;
    for i in 0..count {
        let mut bench = Bench::strict(gpu);
        run(&mut bench, i)?;
        worst = worst.max(block_on(bench.verdict())?);
    }
    println!("{name}: {count} shapes, worst {:.0} % of what is allowed", 100.0 * worst);
    Ok(())
}

/// [`block::Block`] in buffers that are read at once.
pub struct Block {
    pub rows: Rows,
    block: block::Block,
}

impl Deref for Block {
    type Target = block::Block;

    fn deref(&self) -> &block::Block {
        &self.block
    }
}

impl Block {
    pub fn input(gpu: &Gpu, margins: Margins, width: usize, values: &[f32]) -> Block {
        Block::new(block::Block::input(gpu, margins, width, values))
    }

    pub fn output(gpu: &Gpu, margins: Margins, width: usize, height: usize) -> Block {
        Block::new(block::Block::output(gpu, margins, width, height))
    }

    pub fn in_out(gpu: &Gpu, margins: Margins, width: usize, values: &[f32]) -> Block {
        Block::new(block::Block::in_out(gpu, margins, width, values))
    }

    fn new(block: Result<block::Block, GpuError>) -> Block {
        let block = block.expect("test buffers are small");
        Block { rows: block.rows().clone(), block }
    }

    /// Reads the values, after checking the guards.
    pub fn read(&self, gpu: &Gpu, case: &str) -> Result<Vec<f64>, Failed> {
        Ok(block_on(self.whole().read(gpu, case))?)
    }
}

/// A matrix of the adapter in the middle of a larger buffer.
pub struct Held {
    pub param: Param,
}

impl Held {
    pub fn new(gpu: &Gpu, cols: usize, values: &[f32]) -> Held {
        Held { param: block::param(gpu, cols, values).expect("test buffers are small") }
    }
}

/// All comparisons of one test.
pub struct Check {
    what: &'static str,
    tolerance: Tolerance,
    cases: usize,
    worst: [f64; 2],
}

impl Check {
    pub fn new(what: &'static str, tolerance: Tolerance) -> Check {
        Check { what, tolerance, cases: 0, worst: [0.0; 2] }
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
        let shares = self.tolerance.around(size).compare(width, found, expected);
        let shares = shares.map_err(|error| format!("{what}: {error}"))?;
        self.cases += 1;
        self.worst = [0, 1].map(|i| self.worst[i].max(shares[i]));
        Ok(())
    }

    /// Prints the worst errors.
    pub fn done(self) -> Outcome {
        assert!(self.cases > 0, "{}: nothing was compared", self.what);
        let [norm, element] = self.worst.map(|share| 100.0 * share);
        println!(
            "{}: {} comparisons, norm at {norm:.0} %, element at {element:.0} % of what is allowed",
            self.what, self.cases
        );
        Ok(())
    }
}
