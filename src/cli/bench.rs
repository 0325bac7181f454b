//! Speed and memory of training steps, or of replies, on random tokens, and where the time goes.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use pollster::block_on;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rullama_train::adapter::lora::{Adapter, slots};
use rullama_train::base::Base;
use rullama_train::base::Module;
use rullama_train::data::batch::{IGNORE, MicroBatch, Sample, Step};
use rullama_train::families::Shape;
use rullama_train::gpu::Gpu;
use rullama_train::model::plan::{self, Kept, Offload, Offloaded, Passes, Plan, Recompute};
use rullama_train::model::{Model, Trainable};
use rullama_train::ops::adamw::AdamW;
use rullama_train::recipe::{Backend, Kernels};
use rullama_train::train::trainer::{Capacity, Dropout, Optimizer, Trainer};
use serde_json::json;

use super::ceilings::{self, Ceilings, attention_operations};
use super::device::Device;
use super::laps::Laps;
use super::sweep::{Series, Varied};
use super::{bench_decode, inference, show};

/// What to time.
#[derive(Args)]
pub struct BenchArgs {
    /// "tiny", an Ollama tag, the path of a .gguf, or a size of Gemma 4 (e2b, e4b, 12b, 26b-a4b, 31b), whose weights are then
    /// random and made on the device: nothing is downloaded.
    base: String,
    /// Sequences in a step.
    #[arg(long, default_value_t = 1)]
    batch: usize,
    /// Tokens in a sequence.
    #[arg(long, default_value_t = 512)]
    sequence: usize,
    /// Rank, on every linear.
    #[arg(long, default_value_t = 16)]
    rank: usize,
    /// Adapt the matrices of a mixture's experts too.
    #[arg(long)]
    experts: bool,
    /// Steps that are timed, after one that is not.
    #[arg(long, default_value_t = 3)]
    steps: usize,
    /// Share of the tokens that carry loss, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u8).range(1..=100))]
    loss_share: u8,
    /// Compute activations again in the backward pass.
    #[arg(long)]
    recompute: bool,
    /// Compute as many layers' activations again as this many GiB in all ask for.
    #[arg(long, value_name = "GIB", conflicts_with = "recompute")]
    memory_limit: Option<f64>,
    /// Leave the experts of every layer in host memory, not only those that --memory-limit has no room for.
    #[arg(long, conflicts_with = "decode")]
    offload_experts: bool,
    /// Keep to what every WebGPU browser guarantees: small bindings and buffers.
    #[arg(long)]
    webgpu_limits: bool,
    /// Time a series of steps instead, of more and more tokens, layers or width, and write charts of time and memory beside a
    /// straight line.
    #[arg(long, value_name = "WHAT", conflicts_with_all = ["decode", "experts"])]
    sweep: Option<Varied>,
    /// With --sweep: the page; unset, BASE-by-WHAT.html.
    #[arg(long, value_name = "FILE", requires = "sweep")]
    out: Option<PathBuf>,
    /// Time replies instead: so many tokens one by one, behind a prompt of --sequence, of the base and with an adapter.
    #[arg(long, value_name = "TOKENS")]
    decode: Option<usize>,
    /// With --decode: an adapter of any format, instead of one of --rank on every linear; may be given several times.
    #[arg(long = "adapter", value_name = "PATH[=WEIGHT]", requires = "decode")]
    adapters: Vec<String>,
    /// What products compute with: as device.kernels in a recipe.
    #[arg(long, value_name = "KERNELS", default_value = "auto", value_parser = kernels)]
    tier: Kernels,
    /// The same as --tier f32.
    #[arg(long, conflicts_with = "tier")]
    plain: bool,
    /// Part of the GPU's name.
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

fn kernels(name: &str) -> Result<Kernels, serde_json::Error> {
    serde_json::from_value(name.into())
}

/// Runs the steps and prints what they took.
pub fn run(args: &BenchArgs) -> Result<()> {
    if let Some(varied) = args.sweep {
        return sweep(args, varied);
    }
    let mut laps = Laps::start();
    let base = match Shape::named(&args.base) {
        Some(shape) => block_on(shape.base())?,
        None => Base::open(&args.base)?,
    };
    let config = base.config();
    let longest = config.context_length;
    if [args.batch, args.sequence, args.rank, args.steps].contains(&0) || args.sequence > longest {
        bail!("--batch, --sequence, --rank and --steps start at 1, and --sequence ends at {longest}");
    }
    let of_experts = Module::ALL.into_iter().filter(|m| args.experts && m.of_experts());
    let modules: Vec<Module> = Module::ALL_LINEAR.iter().copied().chain(of_experts).collect();
    let slots = slots(config, &modules);
    let random = || Adapter::init(&slots, args.rank, 2.0 * args.rank as f64, false, 0);
    if let Some(tokens) = args.decode {
        let positions = args.sequence + bench_decode::positions(tokens);
        if tokens == 0 || positions > longest {
            bail!(
                "--decode starts at 1, and with --sequence and some tokens to warm up ends at {longest}, found {positions}"
            );
        }
        let (adapter, origin) = match args.adapters.is_empty() {
            true => (random(), "on every linear".to_string()),
            false => (inference::read_adapters(&args.adapters, &base)?, args.adapters.join(" + ")),
        };
        let gpu = open(args)?;
        let model = block_on(Model::stream(&gpu, &base, positions, |_| ()))?;
        let (name, prompt) = (base.name(), args.sequence);
        return bench_decode::run(&gpu, &model, name, &adapter, &origin, prompt, tokens, args.json);
    }
    let step = random_step(args.batch, args.sequence, args.loss_share, config.vocab);
    if step.loss_tokens == 0 {
        bail!(
            "--loss-share {} leaves no token of {} with loss; raise one of the two",
            args.loss_share,
            args.sequence
        );
    }
    laps.lap("base");
    let gpu = open(args)?;
    laps.lap("device");
    let adapter = random();
    let mut capacity = Capacity::default();
    capacity.include(&step);
    let recompute = recompute(args);
    let offloaded = offloaded(args, &gpu, &base, &adapter, capacity, recompute)?;
    let model = block_on(Model::offloading(&gpu, &base, args.sequence, &offloaded, |_| ()))?;
    let dropout = Dropout { probability: 0.0, seed: 0 };
    let trainer = Trainer::new(&gpu, &model, &adapter, capacity, dropout, recompute)?;
    laps.lap("weights");
    let optimizer = OPTIMIZER;
    let compiled = block_on(trainer.compile(&step.micro_batches, &optimizer))?;
    laps.lap(show::count(compiled, "kernel"));
    let first = block_on(trainer.step(&step, 1, &optimizer, 1e-4))?;
    laps.lap("the first step");
    let started = Instant::now();
    for number in 0..args.steps {
        trainer.announce(&step);
        block_on(trainer.step(&step, number as u64 + 2, &optimizer, 1e-4))?;
    }
    let seconds = started.elapsed().as_secs_f64() / args.steps as f64;
    let tokens_per_second = (args.batch * args.sequence) as f64 / seconds;
    let mut kernels = Vec::new();
    if gpu.can_profile() {
        gpu.start_profile();
        block_on(trainer.step(&step, args.steps as u64 + 2, &optimizer, 1e-4))?;
        kernels = block_on(gpu.finish_profile())?.into_iter().collect();
        kernels.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds));
    }
    let memory = trainer.plan().total();
    let copies = &trainer.plan().offloaded;
    let copy_seconds = copy_seconds(&gpu, &model, copies)?;
    let operations = product_operations(&base, trainer.plan(), &step);
    let attention = attention_operations(config, trainer.plan(), args.batch, args.sequence);
    let groups = ceilings::groups(&kernels, operations, attention);
    let ceilings = Ceilings::measure(&gpu)?;
    let of_products: f64 = groups.iter().filter(|g| g.name == "products").map(|g| g.seconds).sum();
    let dispatches: usize = kernels.iter().map(|(_, t)| t.dispatches).sum();
    if args.json {
        let kernels: Vec<_> = kernels
            .iter()
            .map(|(name, t)| json!({ "kernel": name, "dispatches": t.dispatches, "seconds": t.seconds }))
            .collect();
        show::text(json!({
            "device": gpu.description(), "base": base.name(), "batch": args.batch, "sequence": args.sequence,
            "rank": args.rank, "loss_share": args.loss_share, "cooperative": gpu.matrices().is_some(), "tier": gpu.tier().to_string(), "step_seconds": seconds, "tokens_per_second": tokens_per_second,
            "first_loss": first.loss, "start_seconds": laps.json(),
            "active_parameters": active_parameters(&base), "planned_bytes": memory, "product_operations": operations,
            "product_seconds": of_products, "dispatches": dispatches, "kernels": kernels, "ceilings": ceilings.json(),
            "offloaded_layers": copies.layers, "offloaded_bytes": copies.bytes, "copied_bytes": copies.training,
            "copy_seconds": copy_seconds, "allocated_bytes": gpu.allocated_bytes(),
            "groups": groups.iter().map(|g| g.json(&ceilings)).collect::<Vec<_>>(),
        }));
        return Ok(());
    }
    show::device(&gpu);
    show::line("base", base.name());
    show::line("started", &laps);
    let sequence = show::count(args.sequence, "token");
    show::line("step", format_args!("{} × {sequence}, rank {}: {seconds:.4} s", args.batch, args.rank));
    show::line("loss", format_args!("{:.6} at first, gradient norm {:.6}", first.loss, first.grad_norm));
    show::line("speed", format_args!("{tokens_per_second:.0} tokens/s"));
    let active = active_parameters(&base);
    // A product and its transposed one, two operations a value of the matrix.
    let floor = 4.0 * active as f64 * tokens_per_second / 1e12;
    show::line(
        "work",
        format_args!(
            "{:.2} billion parameters a token; {floor:.1} TFLOP/s without attention and recomputation",
            active as f64 / 1e9
        ),
    );
    show::line("memory", format_args!("{} planned", show::bytes(memory)));
    let total: f64 = kernels.iter().map(|(_, t)| t.seconds).sum();
    if !copies.layers.is_empty() {
        let (alone, rate) = (show::bytes(copies.training), copies.training as f64 / copy_seconds);
        show::line("offload", show::offloaded(copies));
        show::line(
            "copies",
            format_args!(
                "{alone} a step, {copy_seconds:.4} s without kernels: {}/s",
                show::bytes(rate as u64)
            ),
        );
        if !kernels.is_empty() {
            let waited = (seconds - total).max(0.0);
            show::line(
                "waited",
                format_args!(
                    "{waited:.4} s of a step no kernel ran, {:.1} % of it: what copies and the host cost",
                    100.0 * waited / seconds
                ),
            );
        }
    }
    show::line(
        "ceilings",
        format_args!(
            "{:.1} GB/s copied, {:.2} TFLOP/s of {}",
            ceilings.bytes / 1e9,
            ceilings.operations / 1e12,
            Ceilings::of(&gpu)
        ),
    );
    if !kernels.is_empty() {
        let device = show::count(dispatches, "kernel run");
        show::line("device", format_args!("{total:.4} s in {device}"));
    }
    for group in &groups {
        let (seconds, share) = (group.seconds, 100.0 * group.seconds / total);
        let (rate, unit, of_ceiling) = group.rate(&ceilings);
        // Bytes are those of the buffers, which a kernel need not read to the end.
        let most = if group.operations.is_some() { "" } else { "at most " };
        let percent = 100.0 * of_ceiling;
        show::line(
            group.name,
            format_args!(
                "{seconds:.4} s, {share:.1} %: {most}{rate:.3} {unit}, {percent:.0} % of the ceiling"
            ),
        );
    }
    for (name, t) in &kernels {
        let (ms, share) = (1e3 * t.seconds, 100.0 * t.seconds / total);
        show::text(format_args!("{ms:11.3} ms  {share:5.1} %  {:5} ×  {name}", t.dispatches));
    }
    Ok(())
}

/// As most runs have it.
const OPTIMIZER: Optimizer = Optimizer {
    adam: Some(AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 }),
    weight_decay: 0.0,
    max_grad_norm: 1.0,
};

fn open(args: &BenchArgs) -> Result<Device> {
    let gpu = Device::open(Backend::Auto, args.device.as_deref(), args.webgpu_limits)?;
    gpu.choose(if args.plain { Kernels::F32 } else { args.tier })?;
    Ok(gpu)
}

fn recompute(args: &BenchArgs) -> Recompute {
    match (args.recompute, args.memory_limit) {
        (true, _) => Recompute::Always,
        (false, Some(gib)) => Recompute::Within((gib * (1u64 << 30) as f64) as u64),
        (false, None) => Recompute::Never,
    }
}

fn sweep(args: &BenchArgs, varied: Varied) -> Result<()> {
    if [args.batch, args.sequence, args.rank, args.steps].contains(&0) {
        bail!("--batch, --sequence, --rank and --steps start at 1");
    }
    let series = Series {
        varied,
        base: &args.base,
        batch: args.batch,
        sequence: args.sequence,
        rank: args.rank,
        steps: args.steps,
        loss_share: args.loss_share,
        recompute: recompute(args),
        optimizer: OPTIMIZER,
        out: args.out.as_deref(),
        json: args.json,
    };
    series.check()?;
    let gpu = open(args)?;
    series.run(&gpu)
}

/// What a step's copies of experts take by themselves.
fn copy_seconds(gpu: &Gpu, model: &Model, copies: &Offloaded) -> Result<f64> {
    if copies.training == 0 {
        return Ok(0.0);
    }
    let started = Instant::now();
    let copied = block_on(model.copy_experts(gpu, copies.layers.len()))?;
    Ok(started.elapsed().as_secs_f64() * copies.training as f64 / copied as f64)
}

/// The layers whose experts are to stay in host memory. Plans before the model is on the device, and refuses what is more than
/// `--memory-limit`.
fn offloaded(
    args: &BenchArgs,
    gpu: &Gpu,
    base: &Base,
    adapter: &Adapter,
    capacity: Capacity,
    recompute: Recompute,
) -> Result<Vec<usize>> {
    let with_experts = plan::with_experts(base);
    if args.offload_experts && with_experts.is_empty() {
        bail!("--offload-experts: {} is no mixture of experts; leave it out", base.name());
    }
    let Recompute::Within(limit) = recompute else {
        return Ok(if args.offload_experts { with_experts } else { Vec::new() });
    };
    let trainable = Trainable::new(gpu, adapter, base.config().layers.len())?;
    let offload = if args.offload_experts { Offload::All } else { Offload::Auto };
    let passes = Passes { capacity, masked: false, recompute };
    let plan = Plan::ahead(gpu, base, args.sequence, &trainable, passes, offload);
    if plan.total() > limit {
        let (gib, least) = (args.memory_limit.unwrap_or_default(), show::bytes(plan.total()));
        let shape = format_args!("{} × {}", args.batch, args.sequence);
        let experts = if plan.offloaded.layers.is_empty() { "" } else { " and all experts in host memory" };
        bail!(
            "--memory-limit is {gib} GiB, {shape} tokens need {least} with every layer recomputed{experts}; lower --sequence or \
             --batch"
        );
    }
    Ok(plan.offloaded.layers)
}

/// Of every matrix but the embeddings: its layer, and how many of its values one token is multiplied with. Of the experts those
/// that work on it.
fn products(base: &Base) -> impl Iterator<Item = (Option<usize>, &str, usize)> {
    let experts = base.config().layers.iter().find_map(|l| l.experts);
    let matrices = base.tensors().filter(|m| m.rows > 1);
    matrices.filter_map(move |m| match (m.name, experts) {
        ("token_embd" | "output" | "per_layer_token_embd", _) => None,
        (name, e) => {
            let values = m.rows * m.cols;
            let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse().ok());
            let working = e.filter(|_| name.ends_with("_exps")).map_or(values, |e| values / e.count * e.used);
            Some((layer, name, working))
        }
    })
}

/// Values of the matrices that one token is multiplied with, of the embeddings the head.
fn active_parameters(base: &Base) -> usize {
    base.config().vocab * base.config().width + products(base).map(|(_, _, values)| values).sum::<usize>()
}

/// Floating-point operations of a step's products with the frozen matrices: forward, once more where that is recomputed, and
/// backward; 2 a value and token.
fn product_operations(base: &Base, plan: &Plan, step: &Step) -> f64 {
    let tokens: usize = step.micro_batches.iter().map(MicroBatch::len).sum();
    let passes = |layer: Option<usize>, name: &str| match layer.map(|layer| plan.kept[layer]) {
        None | Some(Kept::All) => 2,
        Some(Kept::Down | Kept::Attention) if name.ends_with("ffn_down") => 2,
        Some(_) => 3,
    };
    let of_layers: usize =
        products(base).map(|(layer, name, values)| values * tokens * passes(layer, name)).sum();
    let head = 2 * base.config().vocab * base.config().width * step.loss_tokens;
    2.0 * (of_layers + head) as f64
}

/// `batch` sequences of random tokens, with loss on the last `loss_share` percent of each.
pub fn random_step(batch: usize, sequence: usize, loss_share: u8, vocab: usize) -> Step {
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let mut sample = || {
        let ids: Vec<u32> = (0..sequence).map(|_| rng.random_range(0..vocab as u32)).collect();
        // As in a chat, where the loss lies on the answer: the last tokens.
        let first = sequence - sequence * usize::from(loss_share) / 100;
        let label = |(i, &id): (usize, &u32)| if i < first { IGNORE } else { id as i32 };
        Sample { labels: ids.iter().enumerate().map(label).collect(), ids, origin: "random".into() }
    };
    let samples: Vec<Sample> = (0..batch).map(|_| sample()).collect();
    Step::new(&samples, &[(0..batch).collect()])
}
