//! `bench --sweep`: what a step costs while tokens, layers or width grow, as a page with charts.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use clap::ValueEnum;
use pollster::block_on;
use rullama_train::adapter::lora::{Adapter, slots};
use rullama_train::base::Base;
use rullama_train::base::Module;
use rullama_train::families::{self, Shape};
use rullama_train::files;
use rullama_train::gpu::Gpu;
use rullama_train::model::Model;
use rullama_train::model::plan::Recompute;
use rullama_train::report::{Point, Sweep};
use rullama_train::train::trainer::{Capacity, Dropout, Optimizer, Trainer};
use serde_json::json;

use super::bench::random_step;
use super::show;

/// What is varied.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub enum Varied {
    /// Tokens of a sequence, doubled up to --sequence.
    Tokens,
    /// Layers of a size of Gemma 4, in the same mixture.
    Layers,
    /// Width of a size of Gemma 4, feed-forwards in proportion.
    Width,
}

impl Varied {
    fn name(self) -> &'static str {
        match self {
            Varied::Tokens => "tokens",
            Varied::Layers => "layers",
            Varied::Width => "width",
        }
    }
}

/// Doublings from the shortest sequence to the longest.
const DOUBLINGS: u32 = 5;

/// What is measured.
pub struct Series<'a> {
    pub varied: Varied,
    /// As `bench` takes it.
    pub base: &'a str,
    pub batch: usize,
    pub sequence: usize,
    pub rank: usize,
    pub steps: usize,
    pub loss_share: u8,
    pub recompute: Recompute,
    pub optimizer: Optimizer,
    /// Where the page goes.
    pub out: Option<&'a Path>,
    pub json: bool,
}

impl Series<'_> {
    /// Refuses what no device could measure.
    pub fn check(&self) -> Result<()> {
        files::check_file(&self.page())?;
        if self.varied != Varied::Tokens {
            return self.shape().map(drop);
        }
        // A sequence of one token has nothing to predict.
        let least = 2 << DOUBLINGS;
        if self.sequence < least {
            let (part, sequence) = (1 << DOUBLINGS, self.sequence);
            bail!(
                "--sweep tokens begins with 1/{part} of --sequence, which is {sequence}; raise it to {least} or more"
            );
        }
        Ok(())
    }

    /// Where the page goes.
    fn page(&self) -> PathBuf {
        let base = Path::new(self.base).file_stem().unwrap_or_default().to_string_lossy();
        let file = format!("{base}-by-{}.html", self.varied.name());
        self.out.map_or_else(|| file.into(), Path::to_path_buf)
    }

    /// Measures, shows, and writes the page.
    pub fn run(&self, gpu: &Gpu) -> Result<()> {
        let (varied, out) = (self.varied.name(), self.page());
        let points = match self.varied {
            Varied::Tokens => self.by_tokens(gpu)?,
            Varied::Layers => self.by_shape(gpu, &self.shape()?.by_layers(), |shape| shape.layers)?,
            Varied::Width => self.by_shape(gpu, &self.shape()?.by_width(), |shape| shape.width)?,
        };
        let rows = match self.varied {
            Varied::Tokens => format!("{} of a growing length", show::count(self.batch, "sequence")),
            _ => format!("{} × {}", self.batch, show::count(self.sequence, "token")),
        };
        let under = format!(
            "{}: {rows}, rank {} on every linear, loss on {} % of the tokens, the mean of {}. {}, kernels: {}",
            self.base,
            self.rank,
            self.loss_share,
            show::count(self.steps, "step"),
            gpu.description(),
            gpu.tier(),
        );
        let sweep = Sweep { varied, under: &under, points };
        files::write_atomic(&out, sweep.html().as_bytes())?;
        if self.json {
            show::text(json!({
                "device": gpu.description(), "base": self.base, "varied": varied, "batch": self.batch, "rank": self.rank,
                "loss_share": self.loss_share, "cooperative": gpu.matrices().is_some(), "tier": gpu.tier().to_string(),
                "points": sweep.json(), "page": out,
            }));
            return Ok(());
        }
        show::device(gpu);
        show::line("base", self.base);
        show::line("step", format_args!("{rows}, rank {}", self.rank));
        for point in &sweep.points {
            let [time, memory] = sweep.of_line(point).map(|share| format!("{:+.1} %", 100.0 * (share - 1.0)));
            show::line(
                varied,
                format_args!(
                    "{}: {:.4} s a step ({time} off a straight line), {:.3} µs a token, {} ({memory})",
                    show::grouped(point.at),
                    point.seconds,
                    1e6 * point.seconds / point.tokens as f64,
                    show::bytes(point.bytes),
                ),
            );
        }
        show::line("written", out.display());
        Ok(())
    }

    fn shape(&self) -> Result<Shape> {
        let named = Shape::named(self.base).or_else(|| families::small_shape(self.base));
        named.ok_or_else(|| {
            anyhow!(
                "--sweep {} varies a size of Gemma 4 with random weights: e2b, e4b, 12b, 26b-a4b, 31b, or tiny for a trial; \
                 found {}",
                self.varied.name(),
                self.base
            )
        })
    }

    fn by_tokens(&self, gpu: &Gpu) -> Result<Vec<Point>> {
        let base = match Shape::named(self.base) {
            Some(shape) => block_on(shape.base())?,
            None => Base::open(self.base)?,
        };
        let model = block_on(Model::stream(gpu, &base, self.sequence, |_| ()))?;
        let lengths = (0..=DOUBLINGS).rev().map(|n| self.sequence >> n);
        lengths.map(|length| self.point(gpu, &base, &model, length, length)).collect()
    }

    fn by_shape(&self, gpu: &Gpu, shapes: &[Shape], at: fn(&Shape) -> usize) -> Result<Vec<Point>> {
        let point = |shape: &Shape| {
            let base = block_on(shape.base())?;
            let model = block_on(Model::stream(gpu, &base, self.sequence, |_| ()))?;
            self.point(gpu, &base, &model, at(shape), self.sequence)
        };
        shapes.iter().map(point).collect()
    }

    /// Times steps after one that is not.
    fn point(&self, gpu: &Gpu, base: &Base, model: &Model, at: usize, sequence: usize) -> Result<Point> {
        let longest = base.config().context_length;
        if sequence > longest {
            bail!("--sequence {sequence}: {} ends at {longest} tokens", self.base);
        }
        let step = random_step(self.batch, sequence, self.loss_share, base.config().vocab);
        if step.loss_tokens == 0 {
            bail!(
                "--loss-share {} leaves no token of {sequence} with loss; raise one of the two",
                self.loss_share
            );
        }
        let slots = slots(base.config(), Module::ALL_LINEAR);
        let adapter = Adapter::init(&slots, self.rank, 2.0 * self.rank as f64, false, 0);
        let mut capacity = Capacity::default();
        capacity.include(&step);
        let trainer = Trainer::new(gpu, model, &adapter, capacity, Dropout::NONE, self.recompute)?;
        block_on(trainer.compile(&step.micro_batches, &self.optimizer))?;
        block_on(trainer.step(&step, 1, &self.optimizer, 1e-4))?;
        let started = Instant::now();
        for number in 0..self.steps {
            trainer.announce(&step);
            block_on(trainer.step(&step, number as u64 + 2, &self.optimizer, 1e-4))?;
        }
        let seconds = started.elapsed().as_secs_f64() / self.steps as f64;
        Ok(Point { at, tokens: self.batch * sequence, seconds, bytes: trainer.plan().total() })
    }
}
