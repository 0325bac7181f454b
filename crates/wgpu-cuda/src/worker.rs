//! The thread that hands commands to the driver. A stream takes about a thousand launches ahead, and the call for one more waits: here nobody
//! else waits with it.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Weak};

use naga_ptx::ParamKind;

use crate::buffer::{BufferData, Memory};
use crate::command::Command;
use crate::copies::is_beside;
use crate::driver::CudaError;
use crate::launch::{self, Size, Start};
use crate::pipeline::{Bound, Group, PipelineData};
use crate::replay::{Calls, kernels_ahead};
use crate::state::{Raw, State, lock};
use crate::uploads::Bytes;

/// A piece of the thread's work. It does them in the order of the calls.
pub enum Work {
    /// The commands of a submission, and its number.
    Submit(Vec<Command>, u64),
    /// A write to a buffer, from a byte on.
    Write(Arc<BufferData>, u64, Bytes),
}

/// The arguments of a launch, and memory for them.
#[derive(Debug, Default)]
pub struct Arguments {
    /// Addresses, numbers of bytes, and contents of uniforms.
    words: Vec<u64>,
    /// The index in `words` at which each argument begins.
    starts: Vec<usize>,
}

/// Tells those who wait when the thread ends without having done all work.
struct Guard(Weak<State>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let (true, Some(state)) = (std::thread::panicking(), self.0.upgrade()) {
            state.lose(wgpu::DeviceLostReason::Unknown, "the thread of the stream ended".into());
            state.mark(u64::MAX);
        }
    }
}

/// Starts the thread, which ends when the device is gone.
pub fn start(state: &Arc<State>, work: Receiver<Work>) -> std::io::Result<()> {
    let state = Arc::downgrade(state);
    let run = move || {
        let _guard = Guard(state.clone());
        let (mut arguments, mut calls) = (Arguments::default(), Calls::default());
        for item in work {
            // The last reference ends the device.
            let Some(state) = state.upgrade() else { return };
            state.work_on(item, &mut arguments, &mut calls);
        }
    };
    std::thread::Builder::new().name("CUDA".into()).spawn(run).map(drop)
}

impl State {
    fn work_on(self: &Arc<State>, item: Work, arguments: &mut Arguments, calls: &mut Calls) {
        self.current();
        match item {
            Work::Submit(commands, index) => {
                self.run_all(&commands, arguments, calls);
                self.mark(index);
            }
            Work::Write(to, offset, bytes) => {
                if let Err(error) = self.join_copies_with(&to) {
                    self.report(error);
                }
                match &to.memory {
                    Memory::Value(host) => {
                        lock(host)[offset as usize..][..bytes.len()].copy_from_slice(bytes.as_slice());
                    }
                    Memory::Device(address) if !self.is_gone() => {
                        self.send(address + offset, bytes.as_slice());
                    }
                    _ => {}
                }
                self.give_back(bytes);
            }
        }
    }

    /// Runs the commands of a submission. Kernels that came before run as graphs, where the submission says so.
    fn run_all(self: &Arc<State>, commands: &[Command], arguments: &mut Arguments, calls: &mut Calls) {
        let repeats = matches!(commands.first(), Some(Command::Repeats));
        let mut rest = commands;
        while !rest.is_empty() && !self.is_gone() {
            let kernels = if repeats { kernels_ahead(rest) } else { 0 };
            let (run, others) = rest.split_at(kernels.max(1));
            rest = others;
            match self.replay(run, calls) {
                Ok(true) => {}
                Ok(false) => run.iter().for_each(|command| self.run_alone(command, arguments)),
                Err(error) => self.report(error),
            }
        }
    }

    /// Runs a command behind those so far.
    fn run_alone(self: &Arc<State>, command: &Command, arguments: &mut Arguments) {
        if self.is_gone() {
            return;
        }
        let ran = match command {
            Command::Copy { from, to, .. } if is_beside(from, to) => self.copy(command, None),
            command => self.join_copies_of(command).and_then(|()| match command {
                Command::Graph(graph) => graph.run(self, arguments),
                command => self.run_in(self.stream, command, arguments),
            }),
        };
        if let Err(error) = ran {
            self.report(error);
        }
    }

    /// Waits for a kernel where each is waited for, to tell which one fails.
    fn settle(&self, what: &str) -> Result<(), CudaError> {
        match self.sync {
            // SAFETY: the stream is this device's.
            true => self.driver.check(unsafe { (self.driver.synchronize)(self.stream.0) }, what),
            false => Ok(()),
        }
    }

    /// Hands a command, but no graph, to the driver.
    pub fn run_in(&self, stream: Raw, command: &Command, arguments: &mut Arguments) -> Result<(), CudaError> {
        let driver = self.driver;
        match command {
            Command::Dispatch { pipeline, groups, grid } => {
                if pipeline.function.0.is_null() {
                    return Ok(()); // its text was refused, which was reported
                }
                arguments.clear();
                arguments.add(pipeline, groups)?;
                self.dispatch(stream, pipeline, *grid, arguments)
            }
            Command::Copy { .. } => self.copy(command, Some(stream)),
            Command::Clear { buffer, offset, bytes } => {
                let Some(address) = buffer.address() else {
                    return Err(CudaError::misuse("clearing a buffer without an address"));
                };
                if offset + bytes > buffer.size.max(4) {
                    return Err(CudaError::misuse("clearing leaves its buffer"));
                }
                // SAFETY: the part lies within the buffer.
                let code = unsafe { (driver.fill)(address + offset, 0, *bytes as usize, stream.0) };
                driver.check(code, "cuMemsetD8Async")
            }
            Command::Stamp { set, index } => set.record(*index),
            Command::Resolve { set, range, to, offset } => {
                // SAFETY: the stream is this device's.
                driver.check(unsafe { (driver.synchronize)(stream.0) }, "the GPU")?;
                let bytes: Vec<u8> =
                    set.times(range.clone()).iter().flat_map(|time| time.to_le_bytes()).collect();
                let Some(address) = to.address() else {
                    return Err(CudaError::misuse("times for a buffer without an address"));
                };
                self.send(address + offset, &bytes);
                Ok(())
            }
            Command::Launch(launch) => {
                launch::run(self, stream, launch)?;
                self.settle(&launch.name.to_string_lossy())
            }
            Command::Repeats => Ok(()),
            Command::Graph(_) => Err(CudaError::misuse("a graph within a graph")),
        }
    }

    /// Copies in `stream`, or beside kernels.
    fn copy(&self, command: &Command, stream: Option<Raw>) -> Result<(), CudaError> {
        let Command::Copy { from, from_offset, to, to_offset, bytes } = command else { return Ok(()) };
        let (Some(a), Some(b)) = (to.address(), from.address()) else {
            return Err(CudaError::misuse("a copy from or to a buffer without an address"));
        };
        if from_offset + bytes > from.size.max(4) || to_offset + bytes > to.size.max(4) {
            return Err(CudaError::misuse("a copy leaves its buffer"));
        }
        let [source, target] = [b + from_offset, a + to_offset];
        let Some(stream) = stream else { return self.copy_beside([from, to], [source, target], *bytes) };
        // SAFETY: both parts lie within their buffers, which live until the stream is past them.
        let code = unsafe { (self.driver.copy)(target, source, *bytes as usize, stream.0) };
        self.driver.check(code, "cuMemcpyAsync")
    }

    fn dispatch(
        &self,
        stream: Raw,
        pipeline: &PipelineData,
        grid: [u32; 3],
        arguments: &mut Arguments,
    ) -> Result<(), CudaError> {
        let size = Size { grid, threads: pipeline.threads, shared: 0 };
        let start = Start { waits: true, early: pipeline.early };
        let mut pointers = arguments.pointers(0..pipeline.params.len());
        // SAFETY: there is an argument for every parameter, which is read before the call returns.
        let code = unsafe {
            self.launch(stream, pipeline.function, &size, start, pointers.as_mut_ptr(), null_mut())
        };
        self.driver.check(code, &pipeline.label)?;
        self.settle(&pipeline.label)
    }
}

impl Arguments {
    /// Forgets all.
    pub fn clear(&mut self) {
        self.words.clear();
        self.starts.clear();
    }

    /// The number of words, and of arguments.
    pub fn lengths(&self) -> [usize; 2] {
        [self.words.len(), self.starts.len()]
    }

    /// All words.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Adds an argument of these bytes.
    pub fn add_bytes(&mut self, bytes: &[u8]) {
        self.starts.push(self.words.len());
        self.push_bytes(bytes);
    }

    fn push_bytes(&mut self, bytes: &[u8]) {
        self.words.extend(bytes.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        }));
    }

    /// Adds the arguments of a kernel, of what is bound now.
    pub fn add(&mut self, pipeline: &PipelineData, groups: &[Option<Group>]) -> Result<(), CudaError> {
        for param in &pipeline.params {
            let (group, binding) = param.binding.unwrap_or((0, 0));
            let bound = groups
                .get(group as usize)
                .and_then(|g| g.as_ref())
                .and_then(|g| g.0.iter().find(|b| b.binding == binding));
            let missing =
                |what: &str| CudaError::misuse(format!("{}: binding {binding} {what}", pipeline.label));
            let bound = bound.ok_or_else(|| missing("is missing"))?;
            self.starts.push(self.words.len());
            match param.kind {
                ParamKind::Address { .. } => {
                    let address = bound.buffer.address().ok_or_else(|| missing("has no address"))?;
                    self.words.push(address + bound.offset);
                }
                ParamKind::Bytes => self.words.push(bound.size.min(u64::from(u32::MAX))),
                ParamKind::Value { bytes } => {
                    self.value(bound, bytes as usize).ok_or_else(|| missing("is not a uniform buffer"))?;
                }
            }
        }
        Ok(())
    }

    /// The content of a uniform, of at least `bytes`.
    fn value(&mut self, bound: &Bound, bytes: usize) -> Option<()> {
        let Memory::Value(host) = &bound.buffer.memory else { return None };
        let host = lock(host);
        let part = host.get(bound.offset as usize..)?.get(..bytes)?;
        self.push_bytes(part);
        Some(())
    }

    /// Pointers to some arguments, which are valid until more are added.
    pub fn pointers(&mut self, arguments: Range<usize>) -> Vec<*mut c_void> {
        let words = self.words.as_mut_ptr();
        // SAFETY: every start lies within the words.
        self.starts[arguments].iter().map(|start| unsafe { words.add(*start) }.cast()).collect()
    }
}
