//! What train, check and eval share: opening everything that the recipe names, and the device.

use std::time::Instant;

use anyhow::{Result, anyhow};
use rullama_train::adapter::Loaded;
use rullama_train::adapter::lora::Adapter;
use rullama_train::files;
use rullama_train::gpu::{Gpu, GpuError};
use rullama_train::model::{Model, Plan};
use rullama_train::recipe::{Recipe, Switch};
use rullama_train::run::{self, Data, OpenBase, PreparedRun};
use rullama_train::train::Trainer;

use super::device::Device;
use super::laps::Laps;
use super::show;

/// Layers whose experts are copied to measure what that takes.
const COPIED: usize = 4;

/// Everything that lies on the host.
pub struct Session {
    pub frozen: OpenBase,
    pub prepared: PreparedRun,
}

impl Session {
    /// Opens the base, reads the data, plans every step, and opens the adapter that training starts from.
    pub fn start(recipe: &Recipe) -> Result<(Session, Loaded)> {
        // A place that cannot be written is better known before anything else.
        files::check_folder(&recipe.output.dir)?;
        let frozen = OpenBase::open(recipe)?;
        let wait = show::wait("reading the data");
        let data = Data::read(recipe, &frozen)?;
        wait.finish_and_clear();
        let prepared = PreparedRun::plan(recipe, &frozen, data)?;
        let initial = run::initial_adapter(recipe, &frozen.base)?;
        Ok((Session { frozen, prepared }, initial))
    }

    /// [`Session::start`] and [`Session::device`] at the same time.
    pub fn start_on_device(recipe: &Recipe) -> (Result<(Session, Loaded)>, Result<Device>) {
        std::thread::scope(|scope| {
            let gpu = scope.spawn(|| Session::device(recipe));
            (Session::start(recipe), gpu.join().expect("errors of a device are returned"))
        })
    }

    /// Opens the device that the recipe names.
    pub fn device(recipe: &Recipe) -> Result<Device> {
        let (backend, name) = (recipe.device.backend, recipe.device.gpu.as_deref());
        let gpu = Device::open(backend, name, false)?;
        gpu.choose(recipe.device.kernels)?;
        Ok(gpu)
    }

    /// Uploads the base, as far as there is to be room for it.
    pub fn model(&self, recipe: &Recipe, gpu: &Gpu, adapter: &Adapter) -> Result<Model<'_>> {
        let PreparedRun { capacity, positions, .. } = self.prepared;
        let base = &self.frozen.base;
        let loading = run::load(gpu, base, recipe, adapter, capacity, positions, |_| ());
        Ok(pollster::block_on(loading)?)
    }

    /// What it costs that experts stay in host memory, in words: from the time that copying some of them takes.
    pub fn offload(&self, gpu: &Gpu, model: &Model, plan: &Plan) -> Result<Option<String>> {
        let started = Instant::now();
        let copied = pollster::block_on(model.copy_experts(gpu, COPIED))?;
        let seconds = started.elapsed().as_secs_f64();
        Ok((copied > 0).then(|| {
            let rate = copied as f64 / seconds;
            format!(
                "copying {} of them took {seconds:.2} s, {}/s: {:.2} s a micro-batch, as far as the device has nothing to \
                 compute meanwhile",
                show::bytes(copied),
                show::bytes(rate as u64),
                plan.offloaded.training as f64 / rate
            )
        }))
    }

    /// [`PreparedRun::try_longest`] with kernels compiled ahead; in words, what it took.
    pub fn dry_pass(&self, recipe: &Recipe, trainer: &Trainer, laps: &mut Laps) -> Result<String> {
        let largest = run::largest(&self.prepared.steps, &self.prepared.data.train);
        let compiled = pollster::block_on(trainer.compile(&largest, &run::optimizer(recipe)))?;
        laps.lap(show::count(compiled, "kernel"));
        let started = Instant::now();
        let longest = pollster::block_on(self.prepared.try_longest(trainer))?;
        let (tokens, seconds) = (show::count(longest, "token"), started.elapsed().as_secs_f64());
        laps.lap("the longest batch");
        Ok(format!("the longest batch, {tokens}, forward and backward in {seconds:.1} s"))
    }

    fn has_experts(&self) -> bool {
        self.frozen.base.config().layers.iter().any(|l| l.experts.is_some())
    }

    /// How evenly the experts of a mixture worked on the last batch, in words.
    pub fn experts(&self, trainer: &Trainer) -> Result<Option<String>> {
        let experts = self.frozen.base.config().layers.iter().find_map(|l| l.experts);
        let loads = pollster::block_on(trainer.expert_loads())?;
        Ok(experts.zip(loads).map(|(experts, loads)| {
            format!(
                "{} of {} work on a token; the busiest took {:.1} % of a layer's choices ({:.1} % would be even), {:.1} % of \
                 all had none",
                experts.used,
                experts.count,
                100.0 * loads.busiest(),
                100.0 / experts.count as f64,
                100.0 * loads.idle()
            )
        }))
    }

    /// Allocates what training needs.
    pub fn trainer<'a>(
        &self,
        recipe: &Recipe,
        gpu: &'a Gpu,
        model: &'a Model<'a>,
        adapter: &Adapter,
    ) -> Result<Trainer<'a>> {
        let (dropout, recompute) = (run::dropout(recipe), run::recompute(recipe));
        Trainer::new(gpu, model, adapter, self.prepared.capacity, dropout, recompute).map_err(|error| match error {
            GpuError::OverLimit { needed, .. } => {
                let gib = recipe.train.memory_limit.unwrap_or_default();
                let (least, tokens) = (show::bytes(needed), show::count(self.prepared.capacity.tokens, "token"));
                let layers = model.offloaded();
                let how = match (&layers[..], recipe.train.offload_experts) {
                    ([], Switch::Off) if self.has_experts() => {
                        "every layer recomputed and train.offload_experts = false"
                    }
                    ([], _) => "every layer recomputed",
                    _ => "every layer recomputed and all experts in host memory",
                };
                anyhow!(
                    "train.memory_limit is {gib} GiB, and passes over {tokens} need {least} with {how}; lower \
                     data.max_seq_len or train.batch_size, or raise the limit"
                )
            }
            error => error.into(),
        })
    }
}
