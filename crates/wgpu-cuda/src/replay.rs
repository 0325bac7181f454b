//! Runs of kernels that come again, such as those of a training step. A run that came before becomes a graph of the driver. From then on, only
//! what differs from the last time is handed to the driver: sizes of grids, addresses and values of kernels.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Arc, Weak};

use crate::cache::{Cache, Found};
use crate::command::{Command, Encoder};
use crate::driver::{CudaError, Driver, Node};
use crate::graph::Template;
use crate::launch::{Size, Start};
use crate::pipeline::PipelineData;
use crate::state::{Raw, State, lock};
use crate::worker::Arguments;

/// Least kernels of a run that becomes a graph.
pub const LEAST: usize = 16;

/// Says that the kernels of this submission are likely to come again in their order. The encoder is the submission's first.
///
/// # Panics
/// If the encoder is not of this crate's device.
pub fn repeats(encoder: &wgpu::CommandEncoder) {
    encoder.as_custom::<Encoder>().expect("an encoder of CUDA").push(Command::Repeats);
}

/// A kernel of a run: what of its launch no graph can change.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// The address of its function.
    function: usize,
    start: Start,
    words: u32,
    arguments: u32,
}

/// The kernels of a run with everything that decides what they do.
#[derive(Default)]
pub struct Calls {
    kernels: Vec<Kernel>,
    sizes: Vec<Size>,
    arguments: Arguments,
    /// The end of each kernel's words and arguments.
    ends: Vec<[usize; 2]>,
}

/// Runs that came before, and their graphs.
pub type Replays = Cache<Kernel, Graph>;

/// A graph of the driver, and its kernels as they are in it.
pub struct Graph {
    driver: &'static Driver,
    graph: Raw,
    /// Its nodes are those of the graph.
    _template: Template,
    nodes: Vec<Raw>,
    sizes: Vec<Size>,
    words: Vec<u64>,
    /// Pipelines whose modules it uses; those of other kernels live as long as the device.
    pipelines: Vec<Weak<PipelineData>>,
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the graph, and the context is that of this thread; the driver keeps it until it has run.
        unsafe { (self.driver.graph_exec_destroy)(self.graph.0) };
    }
}

/// Kernels at the start of `commands` that may be launched as one.
pub fn kernels_ahead(commands: &[Command]) -> usize {
    let is_kernel = |command: &Command| match command {
        Command::Dispatch { pipeline, .. } => !pipeline.function.0.is_null(),
        Command::Launch(launch) => launch.timer.is_none(),
        _ => false,
    };
    commands.iter().position(|command| !is_kernel(command)).unwrap_or(commands.len())
}

impl Calls {
    fn clear(&mut self) {
        self.kernels.clear();
        self.sizes.clear();
        self.arguments.clear();
        self.ends.clear();
    }

    /// Adds a kernel that [`kernels_ahead`] counts.
    fn add(&mut self, state: &State, command: &Command) -> Result<(), CudaError> {
        let [words, arguments] = self.arguments.lengths();
        let (function, size, start) = match command {
            Command::Dispatch { pipeline, groups, grid } => {
                self.arguments.add(pipeline, groups)?;
                let start = Start { waits: true, early: pipeline.early };
                (pipeline.function, Size { grid: *grid, threads: pipeline.threads, shared: 0 }, start)
            }
            Command::Launch(launch) => {
                let kernel = launch.kernel(state)?;
                self.arguments.add_bytes(&launch.parameter()?);
                (kernel.function, launch.size(), Start { waits: kernel.waits, early: false })
            }
            _ => return Err(CudaError::misuse("only kernels are launched as one")),
        };
        let ends = self.arguments.lengths();
        let function = function.0.expose_provenance();
        let [words, arguments] = [ends[0] - words, ends[1] - arguments].map(|length| length as u32);
        self.kernels.push(Kernel { function, start, words, arguments });
        self.sizes.push(size);
        self.ends.push(ends);
        Ok(())
    }

    /// Words of a kernel.
    fn words(&self, index: usize) -> std::ops::Range<usize> {
        let end = self.ends[index][0];
        end - self.kernels[index].words as usize..end
    }

    /// Pointers to the arguments of a kernel.
    fn pointers(&mut self, index: usize) -> Vec<*mut c_void> {
        let end = self.ends[index][1];
        self.arguments.pointers(end - self.kernels[index].arguments as usize..end)
    }
}

impl State {
    /// Launches a run of kernels as a graph, if it has come before. Returns whether it has: otherwise nothing is launched.
    pub fn replay(&self, run: &[Command], calls: &mut Calls) -> Result<bool, CudaError> {
        if !self.graphs || run.len() < LEAST || !self.copies_are_joined() {
            return Ok(false);
        }
        calls.clear();
        if run.iter().try_for_each(|command| calls.add(self, command)).is_err() {
            return Ok(false); // its launch reports the error
        }
        let mut replays = lock(&self.replays);
        let kernels = calls.kernels.clone();
        let mut again = false;
        let done = match replays.find(&kernels, Graph::is_alive) {
            Found::Nothing => return Ok(false),
            Found::Graph(graph) => graph.update(calls).and_then(|()| graph.launch(self.stream)),
            Found::Again => {
                again = true;
                Ok(())
            }
        };
        let done = match again && done.is_ok() {
            true if !replays.make_room(kernels.len()) => return Ok(false),
            true => Graph::new(self, run, calls).and_then(|graph| {
                graph.launch(self.stream)?;
                replays.keep(&kernels, Some(graph));
                Ok(())
            }),
            false => done,
        };
        match done {
            Ok(()) => Ok(true),
            Err(error) if error.is_loss() => Err(error),
            Err(_) => {
                replays.keep(&kernels, None);
                Ok(false)
            }
        }
    }
}

impl Graph {
    /// The graph of `calls`, which are those of `run`.
    fn new(state: &State, run: &[Command], calls: &mut Calls) -> Result<Graph, CudaError> {
        let mut nodes = Vec::with_capacity(run.len());
        let template = Template::record(state.driver, |stream| {
            (0..run.len()).try_for_each(|index| {
                nodes.push(calls.capture(state, stream, index)?);
                Ok(())
            })
        })?;
        let graph = template.instantiate()?;
        let (sizes, words) = (calls.sizes.clone(), calls.arguments.words().to_vec());
        let pipelines = pipelines(run);
        Ok(Graph { driver: state.driver, _template: template, graph, nodes, sizes, words, pipelines })
    }

    /// Whether the modules of all its kernels are loaded.
    fn is_alive(&self) -> bool {
        self.pipelines.iter().all(|pipeline| pipeline.strong_count() > 0)
    }

    /// Gives it the sizes and arguments of `calls`. What runs already keeps its own.
    fn update(&mut self, calls: &mut Calls) -> Result<(), CudaError> {
        for index in 0..self.nodes.len() {
            let words = calls.words(index);
            let same = self.sizes[index] == calls.sizes[index]
                && self.words[words.clone()] == calls.arguments.words()[words.clone()];
            if !same {
                let mut pointers = calls.pointers(index);
                let function = calls.kernels[index].function;
                let function = std::ptr::with_exposed_provenance_mut(function);
                let node = Node::new(function, &calls.sizes[index], pointers.as_mut_ptr());
                // SAFETY: there is an argument for every parameter, which is read before the call returns.
                let code =
                    unsafe { (self.driver.graph_set)(self.graph.0, self.nodes[index].0, &raw const node) };
                self.driver.check(code, "cuGraphExecKernelNodeSetParams")?;
                self.sizes[index] = calls.sizes[index];
                self.words[words.clone()].copy_from_slice(&calls.arguments.words()[words]);
            }
        }
        Ok(())
    }

    fn launch(&self, stream: Raw) -> Result<(), CudaError> {
        // SAFETY: the graph is this device's; the buffers of its kernels live until the stream is past them.
        self.driver.check(unsafe { (self.driver.graph_launch)(self.graph.0, stream.0) }, "cuGraphLaunch")
    }
}

impl Calls {
    /// Launches a kernel in a stream that is captured. Returns its node.
    fn capture(&mut self, state: &State, stream: Raw, index: usize) -> Result<Raw, CudaError> {
        let Kernel { function, start, .. } = self.kernels[index];
        let function = Raw(std::ptr::with_exposed_provenance_mut(function));
        let mut pointers = self.pointers(index);
        let (driver, size) = (state.driver, &self.sizes[index]);
        // SAFETY: there is an argument for every parameter, which is read before the call returns.
        let code = unsafe { state.launch(stream, function, size, start, pointers.as_mut_ptr(), null_mut()) };
        driver.check(code, "a kernel of a graph")?;
        let (mut status, mut nodes, mut count) = (0, std::ptr::null(), 0);
        // SAFETY: the driver writes one value each, and the nodes stay until the next call.
        unsafe {
            let code = (driver.capture_info)(
                stream.0,
                &mut status,
                null_mut(),
                null_mut(),
                &raw mut nodes,
                &mut count,
            );
            driver.check(code, "cuStreamGetCaptureInfo")?;
            match count {
                1 => Ok(Raw(*nodes)),
                _ => Err(CudaError::misuse("a captured kernel is not one node")),
            }
        }
    }
}

/// The pipelines of a run, each once.
fn pipelines(run: &[Command]) -> Vec<Weak<PipelineData>> {
    let mut found: Vec<&Arc<PipelineData>> = run
        .iter()
        .filter_map(|command| match command {
            Command::Dispatch { pipeline, .. } => Some(pipeline),
            _ => None,
        })
        .collect();
    found.sort_by_key(|pipeline| Arc::as_ptr(pipeline));
    found.dedup_by_key(|pipeline| Arc::as_ptr(pipeline));
    found.into_iter().map(Arc::downgrade).collect()
}
