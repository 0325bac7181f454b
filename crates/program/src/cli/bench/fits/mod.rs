//! `bench --fits`: the longest sequence that a GPU of each usual size can train, and with `--time` its speed there.

mod speed;
mod table;

use anyhow::{Result, bail};
use rullama_train::base::Base;
use rullama_train::families::shape_names;
use rullama_train::gpu::{Gpu, Place};
use rullama_train::model::Trainable;
use rullama_train::model::plan::{Offload, Passes, Plan, Recompute};
use rullama_train::run;
use rullama_train::train::Capacity;
use serde_json::{Value, json};

use super::{BenchArgs, random};
use crate::cli::output;
use speed::{Speed, Stopwatch};
use table::Table;

/// Usual sizes of GPU memory, in GiB, although they are sold as GB.
const SIZES: [u64; 5] = [6, 8, 12, 16, 24];
/// Only powers of two are tried.
const SEQUENCES: [usize; 10] = [131_072, 65_536, 32_768, 16_384, 8192, 4096, 2048, 1024, 512, 256];
/// Bytes of the longest buffer of a GPU, for plans on a software renderer, whose buffers are shorter.
const LONGEST: u64 = u32::MAX as u64;
/// The argument that stands for every published size.
const ALL: &str = "all";

/// A sequence that fits, and how fast it trains.
struct Fit {
    tokens: usize,
    plan: Plan,
    /// With `--time`, where the experts fit in usual host memory.
    speed: Option<Speed>,
}

/// Prints the longest sequence for each size. Without `--time` it allocates neither weights nor activations.
pub fn run(args: &BenchArgs) -> Result<()> {
    if args.time == Some(0) {
        bail!("--time must be at least 1");
    }
    let device = args.open_gpu(Place::ALONE)?;
    let gpu = device.with_kernels(device.kernels().without_software()); // it plans for GPUs
    let gpu = if device.is_software() { gpu.with_buffers_of(LONGEST) } else { gpu };
    let mut table = args.out.as_deref().map(|path| Table::open(path, under(args, &gpu))).transpose()?;
    if !args.json {
        output::device(&gpu);
    }
    let names = if args.base == ALL { shape_names() } else { vec![args.base.as_str()] };
    for name in names {
        if table.as_ref().is_some_and(|table| table.has(name)) {
            continue;
        }
        let found = of_base(args, &gpu, name)?;
        if let Some(table) = &mut table {
            table.add(name, &found)?;
        }
    }
    if let (Some(path), false) = (&args.out, args.json) {
        output::line("written", path.display());
    }
    Ok(())
}

/// The device and the settings, which all rows of a table share.
fn under(args: &BenchArgs, gpu: &Gpu) -> String {
    format!(
        "{}, kernels: {}; {} per pass, rank {}, {} % loss tokens, sequences of at most {} tokens timed",
        gpu.description(),
        gpu.kernels(),
        output::count(args.batch, "row"),
        args.rank,
        args.loss_share,
        args.time.unwrap_or(0),
    )
}

/// Finds and prints what fits of one base.
fn of_base(args: &BenchArgs, gpu: &Gpu, name: &str) -> Result<Vec<(u64, Option<Fit>)>> {
    let base = random::open_base(name)?;
    if !args.json {
        let rows = output::count(args.batch, "row");
        output::line("step", format_args!("{name}, {rows} per pass, rank {}", args.rank));
    }
    let planner = Planner::new(args, gpu, &base)?;
    let mut stopwatch = Stopwatch::new(args, gpu, &base);
    let mut found = Vec::new();
    for size in SIZES {
        let limit = (size << 30) - run::FREE;
        let mut fit = planner.longest(limit)?;
        if let (Some(fit), Some(most)) = (&mut fit, args.time) {
            let tokens = fit.tokens.min(most);
            fit.speed = stopwatch.speed(tokens, limit, &planner.plan(limit, tokens)?)?;
        }
        if !args.json {
            output::line(&format!("{size} GB"), fit.as_ref().map_or("does not fit".into(), Fit::describe));
        }
        found.push((size, fit));
    }
    if args.json {
        output::text(json!({
            "base": name, "batch": args.batch, "rank": args.rank, "device": gpu.description(),
            "kernel_variant": gpu.kernels().tier().to_string(), "sizes": found.iter().map(to_json).collect::<Value>(),
        }));
    }
    Ok(found)
}

impl Fit {
    fn describe(&self) -> String {
        let mut text = output::count(self.tokens, "token");
        if let Some(speed) = &self.speed {
            text += &format!(", {:.0} tokens/s", speed.per_second());
            if speed.tokens < self.tokens {
                text += &format!(" with {}", output::count(speed.tokens, "token"));
            }
        }
        match self.plan.offloaded.bytes {
            0 => text,
            bytes => format!("{text}, with {} of matrices in host memory", output::bytes(bytes)),
        }
    }
}

fn to_json((size, fit): &(u64, Option<Fit>)) -> Value {
    let fit = fit.as_ref();
    let speed = fit.and_then(|fit| fit.speed.as_ref());
    json!({
        "gigabytes": size, "tokens": fit.map(|fit| fit.tokens),
        "planned_bytes": fit.map(|fit| fit.plan.total()), "host_bytes": fit.map(|fit| fit.plan.offloaded.bytes),
        "timed_tokens": speed.map(|speed| speed.tokens), "tokens_per_second": speed.map(Speed::per_second),
    })
}

/// Plans steps of one base within a limit.
struct Planner<'a> {
    args: &'a BenchArgs,
    gpu: &'a Gpu,
    base: &'a Base,
    adapter: Trainable,
}

impl<'a> Planner<'a> {
    fn new(args: &'a BenchArgs, gpu: &'a Gpu, base: &'a Base) -> Result<Planner<'a>> {
        let adapter = random::adapter(base.config(), &args.modules(), args.rank);
        let adapter = Trainable::new(gpu, &adapter, base.config())?;
        // Uploads of adapters that no step reads would pile up otherwise.
        gpu.send_uploads(None)?;
        gpu.wait()?;
        Ok(Planner { args, gpu, base, adapter })
    }

    /// The longest sequence whose step takes at most `limit` bytes.
    fn longest(&self, limit: u64) -> Result<Option<Fit>> {
        for tokens in SEQUENCES.into_iter().filter(|&tokens| tokens <= self.base.config().context_length) {
            let plan = self.plan(limit, tokens)?;
            if plan.total() <= limit {
                return Ok(Some(Fit { tokens, plan, speed: None }));
            }
        }
        Ok(None)
    }

    /// The plan of a step of `tokens` tokens per sequence within `limit` bytes.
    fn plan(&self, limit: u64, tokens: usize) -> Result<Plan> {
        let BenchArgs { batch, accumulate, loss_share, .. } = *self.args;
        let mut capacity = Capacity::default();
        capacity.include(&random::batches(batch, tokens, loss_share, accumulate, self.base.config().vocab)?);
        let passes = Passes { capacity, masked: false, recompute: Recompute::Within(limit) };
        Ok(Plan::ahead(self.gpu, self.base, tokens, &self.adapter, passes, Offload::AUTO))
    }
}
