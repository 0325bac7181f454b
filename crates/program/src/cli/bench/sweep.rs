//! `bench --sweep`: time and memory of a step for growing tokens, layers, width or memory limit, as a page with charts.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use clap::ValueEnum;
use pollster::block_on;
use rullama_train::base::{Base, Module};
use rullama_train::families::{self, Shape};
use rullama_train::files;
use rullama_train::gpu::Gpu;
use rullama_train::model::plan::{Passes, Plan, Recompute};
use rullama_train::model::{Model, Trainable};
use rullama_train::report::{Point, Sweep};
use rullama_train::train::ranks::Ranks;
use rullama_train::train::{Capacity, Dropout, Trainer};
use serde_json::{Value, json};

use super::{OPTIMIZER, check_sequence, random, steps};
use crate::cli::output;
use crate::cli::setup::tuning::{self, Tuning};

/// The dimension that grows.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub enum Varied {
    /// Tokens per sequence, doubling up to --sequence.
    Tokens,
    /// Number of layers of a published size, with the same ratio of layer kinds.
    Layers,
    /// Width of a published size; the feed-forward width grows in proportion.
    Width,
    /// The memory limit, from the smallest plan to the one that recomputes nothing, or to --memory-limit.
    Memory,
}

impl Varied {
    fn name(self) -> &'static str {
        match self {
            Varied::Tokens => "tokens",
            Varied::Layers => "layers",
            Varied::Width => "width",
            Varied::Memory => "memory",
        }
    }
}

/// Number of times that the sequence length doubles.
const DOUBLINGS: u32 = 5;

/// Number of memory limits.
const LIMITS: u32 = 6;

/// A series of measurements.
pub struct Series<'a> {
    pub varied: Varied,
    /// Name of the base, like the argument of `bench`.
    pub base: &'a str,
    pub batch: usize,
    pub sequence: usize,
    pub rank: usize,
    pub steps: usize,
    pub loss_share: u8,
    pub recompute: Recompute,
    /// The page to write; `None` for the default name.
    pub out: Option<&'a Path>,
    pub tuning: Tuning,
    pub json: bool,
}

impl Series<'_> {
    /// Checks the options. Needs no device.
    pub fn check(&self) -> Result<()> {
        files::check_file(&self.page())?;
        match self.varied {
            Varied::Tokens => (),
            Varied::Layers | Varied::Width => return self.shape().map(drop),
            Varied::Memory if self.recompute == Recompute::Always => {
                bail!("--sweep memory varies what is recomputed; leave --recompute out")
            }
            Varied::Memory => return Ok(()),
        }
        // The shortest sequence needs two tokens: with one there is nothing to predict.
        let least = 2 << DOUBLINGS;
        if self.sequence < least {
            bail!("--sweep tokens needs --sequence {least} or more, found {}", self.sequence);
        }
        Ok(())
    }

    /// The path of the page.
    fn page(&self) -> PathBuf {
        let base = Path::new(self.base).file_stem().unwrap_or_default().to_string_lossy();
        let file = format!("{base}-by-{}.html", self.varied.name());
        self.out.map_or_else(|| file.into(), Path::to_path_buf)
    }

    /// Measures every point, writes the page, and prints the results.
    pub fn run(&self, gpu: &Gpu) -> Result<()> {
        let bar = output::spinner("timing steps");
        let points = match self.varied {
            Varied::Tokens => self.by_tokens(gpu)?,
            Varied::Layers => self.by_shape(gpu, &self.shape()?.by_layers(), |shape| shape.layers)?,
            Varied::Width => self.by_shape(gpu, &self.shape()?.by_width(), |shape| shape.width)?,
            Varied::Memory => self.by_memory(gpu)?,
        };
        bar.finish_and_clear();
        let under = self.description(gpu);
        let sweep = Sweep { varied: self.varied.name(), under: &under, points };
        files::write_atomic(&self.page(), sweep.html().as_bytes())?;
        if self.json {
            output::text(self.to_json(gpu, &sweep));
        } else {
            self.print(gpu, &sweep);
        }
        Ok(())
    }

    /// The shape of a step: `4 × 2 048 tokens`.
    fn rows(&self) -> String {
        match self.varied {
            Varied::Tokens => format!("{} of growing length", output::count(self.batch, "sequence")),
            _ => format!("{} × {}", self.batch, output::count(self.sequence, "token")),
        }
    }

    /// The text below the page's title.
    fn description(&self, gpu: &Gpu) -> String {
        format!(
            "{}: {}, rank {} on every linear layer, {} % loss tokens, mean of {}. {}, kernels: {}",
            self.base,
            self.rows(),
            self.rank,
            self.loss_share,
            output::count(self.steps, "step"),
            gpu.description(),
            gpu.kernels().tier(),
        )
    }

    fn to_json(&self, gpu: &Gpu, sweep: &Sweep) -> Value {
        json!({
            "device": gpu.description(), "base": self.base, "varied": self.varied.name(), "batch": self.batch, "sequence": self.sequence,
            "rank": self.rank, "loss_share": self.loss_share, "cooperative_matrices": gpu.kernels().matrices().is_some(),
            "kernel_variant": gpu.kernels().tier().to_string(), "points": sweep.json(), "page": self.page(),
        })
    }

    fn print(&self, gpu: &Gpu, sweep: &Sweep) {
        output::device(gpu);
        output::line("base", self.base);
        output::line("step", format_args!("{}, rank {}", self.rows(), self.rank));
        for point in &sweep.points {
            let against = match sweep.of_line(point) {
                Some([time, memory]) => {
                    let percent = |share: f64| format!("{:+.1} %", 100.0 * (share - 1.0));
                    format!("time {} and memory {} against linear growth", percent(time), percent(memory))
                }
                None => {
                    format!("{} tokens/s", output::grouped((point.tokens as f64 / point.seconds) as usize))
                }
            };
            output::line(
                self.varied.name(),
                format_args!(
                    "{}: {:.4} s per step, {:.3} µs per token, {}; {against}",
                    self.place(point),
                    point.seconds,
                    1e6 * point.seconds / point.tokens as f64,
                    output::bytes(point.bytes),
                ),
            );
        }
        output::line("written", self.page().display());
    }

    /// The value of the varied quantity.
    fn place(&self, point: &Point) -> String {
        match self.varied {
            Varied::Memory => output::bytes((point.at as u64) << 20),
            _ => output::grouped(point.at),
        }
    }

    fn shape(&self) -> Result<Shape> {
        let named = Shape::named(self.base).or_else(|| families::small_shape(self.base));
        named.ok_or_else(|| {
            anyhow!(
                "--sweep {} needs a published size ({}, or tiny for a quick test), found {}",
                self.varied.name(),
                families::shape_names().join(", "),
                self.base
            )
        })
    }

    fn by_tokens(&self, gpu: &Gpu) -> Result<Vec<Point>> {
        let base = random::open_base(self.base)?;
        let model = block_on(Model::stream(gpu, &base, self.sequence, |_| ()))?;
        let lengths = (0..=DOUBLINGS).rev().map(|n| self.sequence >> n);
        lengths.map(|length| self.point(gpu, &base, &model, length, length, self.recompute)).collect()
    }

    /// Limits in MiB, each larger than the one before by the same factor.
    fn by_memory(&self, gpu: &Gpu) -> Result<Vec<Point>> {
        let base = random::open_base(self.base)?;
        check_sequence(&base, self.sequence)?;
        let model = block_on(Model::stream(gpu, &base, self.sequence, |_| ()))?;
        let adapter = random::adapter(base.config(), Module::ALL_LINEAR, self.rank);
        let trainable = Trainable::new(gpu, &adapter, base.config())?;
        let mut capacity = Capacity::default();
        capacity.include(&random::batches(
            self.batch,
            self.sequence,
            self.loss_share,
            1,
            base.config().vocab,
        )?);
        let bytes = |recompute| {
            Plan::new(gpu, &model, &trainable, Passes { capacity, masked: false, recompute }).total()
        };
        // Rounded up to MiB, so that the ends fit.
        let mib = |recompute| bytes(recompute).div_ceil(1 << 20);
        let (least, most) = (mib(Recompute::Within(0)), mib(self.recompute));
        if least >= most {
            bail!("--sweep memory starts at {least} MiB, with every layer recomputed; raise --memory-limit");
        }
        let factor = most as f64 / least as f64;
        let limit =
            |i: u32| (least as f64 * factor.powf(f64::from(i) / f64::from(LIMITS - 1))).round() as u64;
        let limits = (0..LIMITS).map(limit);
        limits
            .map(|mib| {
                self.point(gpu, &base, &model, mib as usize, self.sequence, Recompute::Within(mib << 20))
            })
            .collect()
    }

    fn by_shape(&self, gpu: &Gpu, shapes: &[Shape], at: fn(&Shape) -> usize) -> Result<Vec<Point>> {
        let point = |shape: &Shape| {
            let base = block_on(shape.base())?;
            let model = block_on(Model::stream(gpu, &base, self.sequence, |_| ()))?;
            self.point(gpu, &base, &model, at(shape), self.sequence, self.recompute)
        };
        shapes.iter().map(point).collect()
    }

    /// Times steps of sequences of `sequence` tokens.
    fn point(
        &self,
        gpu: &Gpu,
        base: &Base,
        model: &Model,
        at: usize,
        sequence: usize,
        recompute: Recompute,
    ) -> Result<Point> {
        check_sequence(base, sequence)?;
        let step = random::batches(self.batch, sequence, self.loss_share, 1, base.config().vocab)?;
        let adapter = random::adapter(base.config(), Module::ALL_LINEAR, self.rank);
        let mut capacity = Capacity::default();
        capacity.include(&step);
        let make = || Ok(Trainer::new(gpu, model, &adapter, capacity, Dropout::NONE, recompute)?);
        let (alone, batches) = (Ranks::alone(), &step.micro_batches);
        let trainer = tuning::tuned(gpu, &self.tuning, &alone, batches, &OPTIMIZER, make)?;
        block_on(trainer.compile(batches, &OPTIMIZER))?;
        steps::warm_up(&trainer, &step, &step)?;
        let seconds = steps::mean_seconds(&trainer, &step, self.steps)?;
        Ok(Point { at, tokens: self.batch * sequence, seconds, bytes: trainer.plan().total() })
    }
}
