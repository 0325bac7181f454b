//! Opens everything that a recipe names, and the device: shared by train, check and eval.

use std::rc::Rc;
use std::time::Instant;

use anyhow::{Result, anyhow};
use rullama_train::adapter::Loaded;
use rullama_train::adapter::lora::Adapter;
use rullama_train::data::batch::MicroBatch;
use rullama_train::files;
use rullama_train::gpu::{Gpu, GpuError, GpuOptions, KernelSetting};
use rullama_train::model::plan::Share;
use rullama_train::model::{Model, Plan};
use rullama_train::recipe::{Recipe, Switch};
use rullama_train::run::distill::pass;
use rullama_train::run::distill::teacher::Teacher;
use rullama_train::run::{self, Identity, OpenBase, PreparedRun, Ready, wording};
use rullama_train::train::ranks::Ranks;
use rullama_train::train::{TrainError, Trainer};

use super::base_digest;
use super::device::Device;
use super::timings::Timings;
use super::tuning::{self, Tuning};
use crate::cli::train::run_file;
use crate::cli::{bus_error, output};

/// Number of layers whose matrices are copied to measure the copy rate.
const COPIED_LAYERS: usize = 4;

/// Base, data and steps, in host memory.
pub struct Session {
    /// The recipe with the row length that base and samples require.
    pub recipe: Recipe,
    pub frozen: OpenBase,
    pub prepared: PreparedRun,
    /// The second model that the base learns from.
    pub teacher: Option<Teacher>,
}

/// The result of running the longest batch.
pub struct DryPass {
    /// Its description.
    pub text: String,
    /// Speed of forward and backward.
    pub tokens_per_second: f64,
}

impl Session {
    /// Opens the base, reads the data, plans every step, and loads or initialises the adapter that training starts from.
    pub fn start(recipe: &Recipe) -> Result<(Session, Loaded)> {
        // Check first whether the output folder can be written.
        files::check_folder(&recipe.output.dir)?;
        Session::read(recipe)
    }

    /// [`Session::start`] for a process that writes nothing.
    pub fn read(recipe: &Recipe) -> Result<(Session, Loaded)> {
        let frozen = OpenBase::open(recipe)?;
        bus_error::name(frozen.base.gguf().file());
        let spinner = output::spinner("reading the data");
        let Ready { recipe, prepared, initial } = Ready::read(recipe, &frozen)?;
        spinner.finish_and_clear();
        let teacher = Teacher::open(&recipe, &frozen.base)?;
        Ok((Session { recipe, frozen, prepared, teacher }, initial))
    }

    /// Runs [`Session::start`] and [`Session::device`] in parallel.
    pub fn start_on_device(recipe: &Recipe) -> (Result<(Session, Loaded)>, Result<Device>) {
        Session::start_as(recipe, &Ranks::alone())
    }

    /// [`Session::start_on_device`] as one of several processes: only the first checks the output folder, and each takes a device of its
    /// own.
    pub fn start_as(recipe: &Recipe, ranks: &Ranks) -> (Result<(Session, Loaded)>, Result<Device>) {
        let (place, first) = (ranks.local(), ranks.is_first());
        let device = &recipe.device;
        let open = || {
            let opened = Device::open(GpuOptions { place, ..device.options() }, device.kernels)?;
            Ok(match device.kernels {
                KernelSetting::Auto => opened.keeping(&run_file::read(&recipe.output.dir)),
                _ => opened,
            })
        };
        std::thread::scope(|scope| {
            let gpu = scope.spawn(open);
            let session = if first { Session::start(recipe) } else { Session::read(recipe) };
            (session, gpu.join().expect("opening a device returns errors, it does not panic"))
        })
    }

    /// Opens the device that the recipe names.
    pub fn device(recipe: &Recipe) -> Result<Device> {
        Session::open_device(recipe, recipe.device.kernels)
    }

    /// Opens the device that the recipe names, to run the kernels of `setting`.
    pub fn open_device(recipe: &Recipe, setting: KernelSetting) -> Result<Device> {
        Device::open(recipe.device.options(), setting)
    }

    /// Sets `train.memory_limit` to what the device has, but for 1 GiB, if the recipe sets none and the run does not fit as it is. Returns
    /// a notice then.
    pub fn limit_memory(&mut self, gpu: &Gpu, adapter: &Adapter) -> Result<Option<String>> {
        let recipe = &self.recipe;
        let Some(memory) = gpu.memory().filter(|_| recipe.train.memory_limit.is_none()) else {
            return Ok(None);
        };
        let PreparedRun { capacity, positions, .. } = self.prepared;
        let planned = run::plan(gpu, &self.frozen.base, recipe, adapter, capacity, positions)?.total();
        let free = memory.saturating_sub(run::FREE);
        if planned <= free {
            return Ok(None);
        }
        let gib = (free as f64 / f64::from(1 << 30) * 10.0).floor() / 10.0;
        self.recipe.train.memory_limit = Some(gib);
        self.recipe.train.gradient_checkpointing = Switch::Auto;
        Ok(Some(format!(
            "{} would be needed, and this GPU has {}: trains as with train.memory_limit = {gib}",
            output::bytes(planned),
            output::bytes(memory)
        )))
    }

    /// Lets the teacher, if there is one, read all samples of the run, and keeps what it says in memory. Before [`Session::model`], so that one
    /// model is loaded at a time.
    pub fn learn_in_memory(&self, recipe: &Recipe, gpu: &Gpu) -> Result<()> {
        let Some(teacher) = &self.teacher else { return Ok(()) };
        let job = self.prepared.lessons(recipe, &self.frozen, teacher);
        let bar = output::Progress::new("teacher", job.header.rows);
        let progress = |done: usize, _| -> Result<bool, TrainError> {
            bar.set_position(done);
            Ok(true)
        };
        let rows = pollster::block_on(pass::in_memory(gpu, recipe, &job, progress))?;
        bar.finish_and_clear();
        rows.iter().for_each(|rows| self.prepared.learn(rows));
        Ok(())
    }

    /// The run's identity.
    pub fn identity(&self, initial: &Adapter) -> Identity {
        let identity = self.prepared.identity(&self.frozen, initial);
        let teacher = self.teacher.as_ref().map(|teacher| teacher.base.fingerprint().weights);
        Identity { teacher, ..identity }
    }

    /// Uploads the base. Experts that do not fit stay in host memory.
    pub fn model(&self, recipe: &Recipe, gpu: &Gpu, adapter: &Adapter) -> Result<Model<'_>> {
        let PreparedRun { capacity, positions, .. } = self.prepared;
        let base = &self.frozen.base;
        let loading = run::load(gpu, base, recipe, adapter, capacity, positions, |_| ());
        Ok(pollster::block_on(loading)?)
    }

    /// [`Session::model`], and meanwhile the digest of the base's contents.
    pub fn model_and_contents(
        &self,
        recipe: &Recipe,
        gpu: &Gpu,
        adapter: &Adapter,
    ) -> Result<(Model<'_>, String)> {
        std::thread::scope(|scope| {
            let contents = scope.spawn(|| base_digest::of(&self.frozen.base));
            let model = self.model(recipe, gpu, adapter)?;
            Ok((model, contents.join().expect("a digest does not panic")))
        })
    }

    /// Measures how long copying matrices to the GPU takes, and describes it; `None` if all are on the GPU.
    pub fn offload(&self, gpu: &Gpu, model: &Model, plan: &Plan) -> Result<Option<String>> {
        let started = Instant::now();
        let copied = pollster::block_on(model.copy_layers(gpu, COPIED_LAYERS))?;
        let seconds = started.elapsed().as_secs_f64();
        Ok((copied > 0).then(|| {
            let rate = copied as f64 / seconds;
            format!(
                "copied {} in {seconds:.2} s ({}/s); up to {:.2} s per micro-batch when not hidden behind compute",
                output::bytes(copied),
                output::bytes(rate as u64),
                plan.offloaded.training as f64 / rate
            )
        }))
    }

    /// Compiles the kernels, then runs [`PreparedRun::try_longest`]. Returns a description with the time it took.
    pub fn dry_pass(&self, trainer: &Trainer, timings: &mut Timings) -> Result<DryPass> {
        let largest = self.largest();
        let compiled = pollster::block_on(trainer.compile(&largest, &run::optimizer(&self.recipe)))?;
        timings.record(output::count(compiled, "kernel"));
        let started = Instant::now();
        let longest = pollster::block_on(self.prepared.try_longest(trainer))?;
        let tokens = output::count(longest, "token");
        let seconds = started.elapsed().as_secs_f64();
        timings.record("longest batch");
        let text = format!("longest batch, {tokens}: forward and backward in {seconds:.1} s");
        let all: usize = largest.iter().map(MicroBatch::len).sum();
        Ok(DryPass { text, tokens_per_second: all as f64 / seconds })
    }

    /// The micro-batches that take the most memory.
    fn largest(&self) -> Vec<MicroBatch> {
        self.prepared.largest()
    }

    fn has_experts(&self) -> bool {
        self.frozen.base.config().layers.iter().any(|l| l.experts.is_some())
    }

    /// Describes how evenly the router used the experts in the last batch; `None` for a dense base.
    pub fn experts(&self, trainer: &Trainer) -> Result<Option<String>> {
        let experts = self.frozen.base.config().layers.iter().find_map(|l| l.experts);
        let loads = pollster::block_on(trainer.expert_loads())?;
        Ok(experts.zip(loads).map(|(experts, loads)| {
            format!(
                "{} of {} experts are active per token; the busiest got {:.1} % of a layer's tokens (even share: {:.1} %); \
                 {:.1} % got none",
                experts.used,
                experts.count,
                100.0 * loads.busiest(),
                100.0 / experts.count as f64,
                100.0 * loads.idle()
            )
        }))
    }

    /// Allocates the buffers of training, for steps that this process computes alone. An error if they exceed `train.memory_limit`.
    pub fn trainer<'a>(
        &self,
        recipe: &Recipe,
        gpu: &'a Gpu,
        model: &'a Model<'a>,
        adapter: &Adapter,
    ) -> Result<Trainer<'a>> {
        let tuning = Tuning::wanted(recipe.device.tune);
        self.trainer_of(recipe, gpu, model, adapter, &Rc::new(Ranks::alone()), &tuning)
    }

    /// [`Session::trainer`], for steps that all of `ranks` compute in the ways of `tuning`.
    pub fn trainer_of<'a>(
        &self,
        recipe: &Recipe,
        gpu: &'a Gpu,
        model: &'a Model<'a>,
        adapter: &Adapter,
        ranks: &Rc<Ranks>,
        tuning: &Tuning,
    ) -> Result<Trainer<'a>> {
        let shares = run::shares(recipe, ranks.size())?;
        let make = || {
            let mut trainer = self.unshared(recipe, gpu, model, adapter)?;
            trainer.share(ranks, shares)?;
            Ok(trainer)
        };
        tuning::tuned(gpu, tuning, ranks, &self.largest(), &run::optimizer(recipe), make)
    }

    fn unshared<'a>(
        &self,
        recipe: &Recipe,
        gpu: &'a Gpu,
        model: &'a Model<'a>,
        adapter: &Adapter,
    ) -> Result<Trainer<'a>> {
        let dropout = run::dropout(recipe);
        let recompute = run::recompute(recipe);
        let trainer = Trainer::new(gpu, model, adapter, self.prepared.capacity, dropout, recompute);
        trainer.map(|trainer| trainer.with_objective(run::objective(recipe))).map_err(|error| match error {
            GpuError::OverLimit { needed, .. } => {
                let train = &recipe.train;
                let experts = match (model.on_host(), train.offload_layers, train.offload_experts) {
                    (.., Switch::Off) if self.has_experts() => " and train.offload_experts = false",
                    (_, Share::Never, _) => " and train.offload_layers = false",
                    (on_host, ..) if !on_host.layers.is_empty() => " and layers in host memory",
                    (on_host, ..) if !on_host.experts.is_empty() => " and all experts in host memory",
                    _ => "",
                };
                anyhow!(wording::over_memory_limit(recipe, self.prepared.capacity, needed, experts))
            }
            error => error.into(),
        })
    }
}
