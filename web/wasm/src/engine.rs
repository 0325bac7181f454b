//! The queue of requests. Consecutive requests on the same base share it and, if they need the model, the uploaded model.

use std::rc::Rc;

use futures_channel::mpsc::{self, UnboundedReceiver, UnboundedSender};
use futures_channel::oneshot;
use js_sys::Function;
use rullama_train::base::Base;
use rullama_train::gpu::{Gpu, GpuError, GpuOptions};
use rullama_train::model::Model;
use rullama_train::recipe::{Recipe, Syntax, Template};
use rullama_train::run::OpenBase;
use serde::Serialize;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{future_to_promise, spawn_local};

use crate::control::Control;
use crate::events::Event;
use crate::export;
use crate::measure;
use crate::problem::DEVICE;
use crate::samples;
use crate::source::{ByteSource, Ranges, text};
use crate::talk;
use crate::train::{self, Opened};
use crate::tree;
use crate::types::{GpuInfo, GpuLimits, Problem, Request};

/// Minimum number of positions that a model is uploaded with, so that most later requests can use it.
const POSITIONS: usize = 4096;

/// Settings for looking at samples while the user's recipe has an error.
const ANY_RECIPE: &str = "model.base = \"tiny\"\ndata.train = \"samples\"\noutput.dir = \"runs/mine\"";

/// Error of requests that need a GPU where there is none.
const NO_GPU: &str = "this needs a GPU, and none is open; open the page in a browser with WebGPU";

#[wasm_bindgen(start)]
fn start() {
    // A panic throws a JavaScript error with its message, which the worker's error handler gets.
    std::panic::set_hook(Box::new(|info| wasm_bindgen::throw_str(&format!("internal error: {info}"))));
}

/// The device, if there is one, and the queue of requests for it.
#[wasm_bindgen]
pub struct Engine {
    gpu: Option<Rc<Gpu>>,
    jobs: UnboundedSender<Job>,
}

#[wasm_bindgen]
impl Engine {
    /// Opens the GPU with all that it offers, or only with what every browser with WebGPU guarantees.
    pub async fn open(guaranteed: bool) -> Result<Engine, JsValue> {
        let options = GpuOptions { webgpu_limits: guaranteed, ..GpuOptions::default() };
        let gpu = Gpu::open(options).await.map_err(|e| to_js(&Problem::from(e)))?;
        let gpu = Rc::new(gpu);
        let (jobs, queue) = mpsc::unbounded();
        spawn_local(serve(gpu.clone(), queue));
        Ok(Engine { gpu: Some(gpu), jobs })
    }

    /// An engine without a GPU, which reads samples and does nothing else.
    #[wasm_bindgen(js_name = withoutGpu)]
    pub fn without_gpu() -> Engine {
        let (jobs, queue) = mpsc::unbounded();
        spawn_local(serve_samples(queue));
        Engine { gpu: None, jobs }
    }

    /// Describes the device; undefined without one.
    #[wasm_bindgen(unchecked_return_type = "GpuInfo")]
    pub fn gpu(&self) -> JsValue {
        let Some(gpu) = &self.gpu else { return JsValue::UNDEFINED };
        let limits = gpu.limits();
        to_js(&GpuInfo {
            name: gpu.description(),
            software: gpu.is_software(),
            kernels: gpu.kernels().to_string(),
            failed_self_test: gpu.failed_self_test().map(str::to_string),
            limits: GpuLimits {
                max_buffer_size: limits.max_buffer_size,
                max_storage_buffer_binding_size: limits.max_storage_buffer_binding_size,
                max_storage_buffers_per_shader_stage: limits.max_storage_buffers_per_shader_stage,
                max_compute_workgroup_storage_size: limits.max_compute_workgroup_storage_size,
            },
        })
    }

    /// Runs `request` after the requests before it. `on_event` is called with every event or piece of a reply.
    pub fn run(
        &self,
        #[wasm_bindgen(unchecked_param_type = "Request")] request: JsValue,
        source: ByteSource,
        control: &Control,
        on_event: Function,
    ) -> js_sys::Promise {
        let (answer, answered) = oneshot::channel();
        let parsed =
            serde_wasm_bindgen::from_value(request).map_err(|e| Problem::new(format!("the request: {e}")));
        let sent = parsed.and_then(|request| {
            let job = Job {
                request: Some(request),
                source: Some(source),
                control: control.clone(),
                on_event,
                answer,
            };
            self.jobs.unbounded_send(job).map_err(|_| Problem::new("the engine has stopped"))
        });
        future_to_promise(async move {
            sent.map_err(|problem| to_js(&problem))?;
            let answer = answered.await.unwrap_or_else(|_| Err(Problem::new("the engine has stopped")));
            answer.map_err(|problem| to_js(&problem))
        })
    }

    /// Releases the device. Running requests fail.
    pub fn destroy(&self) {
        self.gpu.iter().for_each(|gpu| gpu.destroy());
    }
}

/// A request in the queue.
struct Job {
    request: Option<Request>,
    source: Option<ByteSource>,
    control: Control,
    on_event: Function,
    answer: oneshot::Sender<Answer>,
}

type Answer = Result<JsValue, Problem>;

/// The device and the uploaded model, which jobs use.
pub struct Stage<'a> {
    pub gpu: &'a Gpu,
    pub frozen: &'a OpenBase,
    pub model: &'a Model<'a>,
}

/// What a job needs.
#[derive(Clone, PartialEq)]
struct Wanted {
    key: String,
    template: Template,
    /// Positions of the model on the device; `None` if the job does not use it.
    positions: Option<usize>,
}

impl Wanted {
    /// Whether a base that was opened for `self` also serves `other`.
    fn covers(&self, other: &Wanted) -> bool {
        self.key == other.key && self.template == other.template
    }
}

/// Runs jobs until the engine is dropped.
async fn serve(gpu: Rc<Gpu>, mut queue: UnboundedReceiver<Job>) {
    let mut next = None;
    loop {
        let job = match next.take() {
            Some(job) => job,
            None => match queue.recv().await {
                Ok(job) => job,
                Err(_) => return,
            },
        };
        // Measurements need no tokenizer and their own model.
        next = match job.request {
            Some(Request::Measure { .. }) => job.measure(&gpu).await,
            _ => on_one_base(&gpu, job, &mut queue).await,
        };
    }
}

/// Runs jobs that read samples until the engine is dropped. Others fail.
async fn serve_samples(mut queue: UnboundedReceiver<Job>) {
    while let Ok(mut job) = queue.recv().await {
        let answer = match job.wanted() {
            Ok(wanted) if wanted.positions.is_none() => match job.open(&wanted).await {
                Ok(frozen) => job.read(None, &frozen),
                Err(problem) => Err(problem),
            },
            Ok(_) => Err(Problem::new(NO_GPU)),
            Err(problem) => Err(problem),
        };
        job.end(answer);
    }
}

/// Opens the base of `first`, then runs `first` and all jobs on the same base. Returns the first job that needs another.
async fn on_one_base(gpu: &Gpu, mut first: Job, queue: &mut UnboundedReceiver<Job>) -> Option<Job> {
    let wanted = match first.wanted() {
        Ok(wanted) => wanted,
        Err(problem) => return first.end(Err(problem)),
    };
    let frozen = match first.open(&wanted).await {
        Ok(frozen) => frozen,
        Err(problem) => return first.end(Err(problem)),
    };
    let mut model: Option<Model> = None;
    let (mut job, mut positions) = (first, wanted.positions);
    loop {
        let answer = match positions {
            None => job.read(Some(gpu), &frozen),
            Some(positions) => job.with_model(gpu, &frozen, positions, &mut model).await,
        };
        job.end(with_device_loss(gpu, answer).await);
        job = queue.recv().await.ok()?;
        if let Some(Request::Measure { .. }) = job.request {
            return Some(job);
        }
        match job.wanted() {
            Ok(other) if wanted.covers(&other) => positions = other.positions,
            Ok(_) => return Some(job),
            Err(problem) => return job.end(Err(problem)),
        }
    }
}

impl Job {
    /// The base and the model that this job needs. An error if its recipe is invalid, unless it only looks at samples.
    fn wanted(&self) -> Result<Wanted, Problem> {
        let recipe = match &self.request {
            Some(Request::Check { recipe, .. } | Request::Train { recipe, .. }) => Some(parse(recipe)?),
            Some(Request::Samples { recipe, .. }) => parse(recipe).ok(),
            _ => None,
        };
        let positions = match &self.request {
            Some(Request::Check { .. } | Request::Samples { .. }) => None,
            // An estimate: prompts of `eval.samples` are short. The run itself checks the exact number.
            _ => Some(recipe.as_ref().map_or(0, |r| r.data.row().max(r.eval.max_new_tokens + 512))),
        };
        let key = self.source.as_ref().map(ByteSource::key).unwrap_or_default();
        Ok(Wanted { key, template: recipe.map_or(Template::Auto, |recipe| recipe.data.template), positions })
    }

    /// Opens the base, after making the files of the template available.
    async fn open(&mut self, wanted: &Wanted) -> Result<OpenBase, Problem> {
        let source = self.source.take().ok_or_else(|| Problem::new("the request has no base"))?;
        if let Some(
            Request::Check { files, .. } | Request::Train { files, .. } | Request::Samples { files, .. },
        ) = &self.request
            && let Template::File(_) = wanted.template
        {
            tree::fill(files.clone());
        }
        let name = source.name();
        let base = Base::stream(Box::new(Ranges::new(source)), &name).await.map_err(Problem::of_base)?;
        Ok(OpenBase::of(base, &wanted.template)?)
    }

    async fn measure(mut self, gpu: &Gpu) -> Option<Job> {
        let (source, request) = (self.source.take(), self.request.take());
        let answer = match (source, request) {
            (Some(source), Some(Request::Measure { adapter, ids, labels })) => {
                measure::measure(gpu, source, adapter, ids, labels).await.map(|measured| to_js(&measured))
            }
            _ => Err(Problem::new("the request has no base")),
        };
        self.end(with_device_loss(gpu, answer).await)
    }

    /// Runs a request that needs the model. Samples are read before the model, so that their errors show at once.
    async fn with_model<'b>(
        &mut self,
        gpu: &Gpu,
        frozen: &'b OpenBase,
        positions: usize,
        model: &mut Option<Model<'b>>,
    ) -> Answer {
        let request = self.request.take().ok_or_else(|| Problem::new("the request has run already"))?;
        let progress = |event: &Event| emit(&self.on_event, event);
        let loading = |layers| progress(&Event::Loading { layers, of: frozen.base.config().layers.len() });
        if let Request::Train { recipe, files, checkpoint } = request {
            let opened = Opened::read(frozen, &parse(&recipe)?, files)?;
            let model = upload(gpu, frozen, positions.max(opened.prepared.positions), model, loading).await?;
            let stage = Stage { gpu, frozen, model };
            train::train(&stage, &opened, checkpoint, &self.control, &progress).await?;
            return Ok(JsValue::UNDEFINED);
        }
        let model = upload(gpu, frozen, positions, model, loading).await?;
        self.run(request, &Stage { gpu, frozen, model }).await
    }

    /// Runs a request that needs no model.
    fn read(&mut self, gpu: Option<&Gpu>, frozen: &OpenBase) -> Answer {
        match self.request.take() {
            Some(Request::Samples { recipe, files }) => {
                // Without its rewards, samples would be read as something else.
                let of_rewards =
                    |problem: &Problem| problem.key.as_ref().is_some_and(|key| key.starts_with("rewards"));
                let recipe = parse(&recipe).or_else(|problem| match of_rewards(&problem) {
                    true => Err(problem),
                    false => parse(ANY_RECIPE),
                })?;
                Ok(to_js(&samples::read(frozen, &recipe, files)?))
            }
            Some(Request::Check { recipe, files }) => {
                let gpu = gpu.ok_or_else(|| Problem::new(NO_GPU))?;
                Ok(to_js(&train::check(gpu, frozen, &parse(&recipe)?, files)?))
            }
            _ => Err(Problem::new("the request has run already")),
        }
    }

    /// Runs a request with the model, other than training.
    async fn run(&self, request: Request, stage: &Stage<'_>) -> Answer {
        match request {
            Request::Chat { adapter, messages, sampling } => {
                let on_piece = |piece: &str| drop(self.on_event.call1(&JsValue::NULL, &piece.into()));
                talk::reply(stage, adapter, messages, sampling, &self.control, &on_piece).await?;
                Ok(JsValue::UNDEFINED)
            }
            Request::Export { adapter, to } => Ok(to_js(&export::export(stage, adapter, &to).await?)),
            _ => Err(Problem::new("the request does not use the shared model")),
        }
    }

    /// Sends the answer. Returns `None`, as there is no next job yet.
    fn end(self, answer: Answer) -> Option<Job> {
        // The caller may be gone.
        let _ = self.answer.send(answer);
        None
    }
}

/// Uploads the base, unless `model` is one with enough positions. `progress` gets the number of layers that are uploaded.
async fn upload<'m, 'b>(
    gpu: &Gpu,
    frozen: &'b OpenBase,
    positions: usize,
    model: &'m mut Option<Model<'b>>,
    progress: impl Fn(usize),
) -> Result<&'m Model<'b>, GpuError> {
    if model.as_ref().is_none_or(|model| model.positions() < positions) {
        *model = None; // frees its memory first
        let positions = positions.max(POSITIONS.min(frozen.base.config().context_length));
        *model = Some(Model::stream(gpu, &frozen.base, positions, progress).await?);
    }
    Ok(model.as_ref().expect("the model was just uploaded"))
}

/// Replaces a device error by "device lost" if that is the cause. The browser reports the loss slightly later than the error.
async fn with_device_loss(gpu: &Gpu, answer: Answer) -> Answer {
    let problem = match answer {
        Err(problem) if problem.kind == DEVICE => problem,
        answer => return answer,
    };
    for _ in 0..10 {
        if let Err(error @ GpuError::Lost(_)) = gpu.check() {
            return Err(error.into());
        }
        let later = js_sys::Promise::new(&mut |resolve, _| set_timeout(&resolve, 20));
        let _ = wasm_bindgen_futures::JsFuture::from(later).await;
    }
    Err(Problem { kind: "other", ..problem })
}

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_name = setTimeout)]
    fn set_timeout(then: &Function, milliseconds: u32);
}

/// Parses the recipe of a request.
fn parse(text: &str) -> Result<Recipe, Problem> {
    Ok(Recipe::parse(text, Syntax::Toml, "recipe", &[("", ""); 0])?)
}

/// Calls the listener of a job. An exception in it is thrown again.
fn emit(on_event: &Function, event: &Event) {
    if let Err(error) = on_event.call1(&JsValue::NULL, &to_js(event)) {
        wasm_bindgen::throw_str(&text(&error));
    }
}

/// Converts to a plain JavaScript object. `None` becomes null.
pub fn to_js(value: &impl Serialize) -> JsValue {
    let serializer =
        serde_wasm_bindgen::Serializer::new().serialize_missing_as_null(true).serialize_maps_as_objects(true);
    value.serialize(&serializer).expect("plain values under text keys")
}
