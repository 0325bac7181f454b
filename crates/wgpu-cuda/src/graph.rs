//! Commands that run again and again as one graph of the driver: a launch in it takes a third of the time of one by itself.

use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

use crate::command::{Command, Encoder};
use crate::driver::{CudaError, Driver};
use crate::state::{Raw, State, lock};
use crate::worker::Arguments;

/// Commands that can be recorded any number of times. The contents of their uniform buffers are those of the first time.
#[derive(Clone)]
pub struct Graph(Arc<Inner>);

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "graph of {} commands", self.0.commands.len())
    }
}

/// The commands, which keep their buffers, and the driver's graph once they ran.
pub struct Inner {
    commands: Vec<Command>,
    made: Mutex<Option<Made>>,
}

struct Made {
    state: Arc<State>,
    graph: Raw,
}

impl Drop for Made {
    fn drop(&mut self) {
        self.state.current();
        // SAFETY: nothing refers to the graph; the driver keeps it until it has run.
        unsafe { (self.state.driver.graph_exec_destroy)(self.graph.0) };
    }
}

/// Takes all commands of `encoder`.
///
/// # Panics
/// If the encoder is not of this crate's device, or holds timestamps.
pub fn graph(encoder: &wgpu::CommandEncoder) -> Graph {
    let commands = encoder.as_custom::<Encoder>().expect("an encoder of CUDA").take();
    let is_timed = |c: &Command| matches!(c, Command::Stamp { .. } | Command::Resolve { .. });
    assert!(!commands.iter().any(is_timed), "a graph has no timestamps");
    Graph(Arc::new(Inner { commands, made: Mutex::default() }))
}

/// Records the commands of `graph` behind those so far.
///
/// # Panics
/// If the encoder is not of this crate's device.
pub fn replay(encoder: &wgpu::CommandEncoder, graph: &Graph) {
    encoder.as_custom::<Encoder>().expect("an encoder of CUDA").push(Command::Graph(graph.0.clone()));
}

impl Inner {
    /// Notes that submission `index` uses the buffers of its commands.
    pub fn note(&self, index: u64) {
        self.commands.iter().for_each(|command| command.note(index));
    }

    /// Runs the commands, which become a graph the first time.
    pub fn run(&self, state: &Arc<State>, arguments: &mut Arguments) -> Result<(), CudaError> {
        let mut made = lock(&self.made);
        if made.is_none() {
            *made = Some(Made { state: state.clone(), graph: self.make(state, arguments)? });
        }
        let graph = made.as_ref().expect("made above").graph.0;
        // SAFETY: the graph is this device's, and its commands keep their buffers.
        state.driver.check(unsafe { (state.driver.graph_launch)(graph, state.stream.0) }, "cuGraphLaunch")
    }

    /// The driver's graph of the commands.
    fn make(&self, state: &State, arguments: &mut Arguments) -> Result<Raw, CudaError> {
        let mut run = |stream, command| state.run_in(stream, command, arguments);
        let record = |stream| self.commands.iter().try_for_each(|command| run(stream, command));
        let template = Template::record(state.driver, record)?;
        template.instantiate()
    }
}

/// Recorded commands of which the driver makes a graph.
pub struct Template {
    driver: &'static Driver,
    graph: Raw,
}

impl Template {
    /// What `record` does in a stream of its own: others may use the device's meanwhile.
    pub fn record(
        driver: &'static Driver,
        record: impl FnOnce(Raw) -> Result<(), CudaError>,
    ) -> Result<Template, CudaError> {
        let (mut stream, mut graph) = (null_mut(), null_mut());
        // SAFETY: the driver writes one pointer each; the stream is used here only. 2: other threads may call the driver.
        let done = unsafe {
            driver.check((driver.stream)(&mut stream, 1), "cuStreamCreate")?;
            let done = driver.check((driver.capture)(stream, 2), "cuStreamBeginCapture").and_then(|()| {
                let ran = record(Raw(stream));
                let ended = driver.check((driver.captured)(stream, &mut graph), "cuStreamEndCapture");
                ran.and(ended)
            });
            (driver.stream_destroy)(stream);
            done
        };
        let template = Template { driver, graph: Raw(graph) };
        done.map(|()| template)
    }

    /// The driver's graph.
    pub fn instantiate(&self) -> Result<Raw, CudaError> {
        let mut made = null_mut();
        // SAFETY: the driver writes one pointer.
        let code = unsafe { (self.driver.graph_instantiate)(&mut made, self.graph.0, 0) };
        self.driver.check(code, "cuGraphInstantiate").map(|()| Raw(made))
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        if !self.graph.0.is_null() {
            // SAFETY: nothing refers to its nodes any more; graphs that were made of it live on.
            unsafe { (self.driver.graph_destroy)(self.graph.0) };
        }
    }
}
