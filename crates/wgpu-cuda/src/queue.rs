//! The queue: commands run in the stream when they are submitted.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use naga_ptx::ParamKind;
use wgpu::custom as c;

use crate::buffer::{Memory, buffer};
use crate::command::{Buffered, Command};
use crate::driver::CudaError;
use crate::launch;
use crate::pipeline::{Bound, Group, PipelineData};
use crate::state::{State, lock};
use crate::stubs::absent;

#[derive(Debug)]
pub struct Queue {
    state: Arc<State>,
    /// Held by one submission at a time.
    arguments: Mutex<Arguments>,
}

/// The arguments of a launch, and memory for them.
#[derive(Debug, Default)]
struct Arguments {
    /// Addresses, numbers of bytes, and contents of uniforms.
    words: Vec<u64>,
    /// The index in `words` at which each argument begins.
    starts: Vec<usize>,
}

impl Queue {
    pub fn new(state: Arc<State>) -> Queue {
        Queue { state, arguments: Mutex::default() }
    }

    /// Waits for a kernel where each is waited for, to tell which one fails.
    fn settle(&self, what: &str) -> Result<(), CudaError> {
        let state = &self.state;
        match state.sync {
            // SAFETY: the stream is this device's.
            true => state.driver.check(unsafe { (state.driver.synchronize)(state.stream.0) }, what),
            false => Ok(()),
        }
    }

    fn run(&self, command: Command, index: u64, arguments: &mut Arguments) -> Result<(), CudaError> {
        let (driver, stream) = (self.state.driver, self.state.stream.0);
        match command {
            Command::Dispatch { pipeline, groups, grid } => {
                if pipeline.function.0.is_null() {
                    return Ok(()); // its text was refused, which was reported
                }
                arguments.collect(&pipeline, &groups)?;
                self.dispatch(&pipeline, grid, arguments)
            }
            Command::Copy { from, from_offset, to, to_offset, bytes } => {
                from.used.store(index, Ordering::Relaxed);
                to.used.store(index, Ordering::Relaxed);
                let (Some(a), Some(b)) = (to.address(), from.address()) else {
                    return Err(CudaError::misuse("a copy from or to a buffer without an address"));
                };
                if from_offset + bytes > from.size.max(4) || to_offset + bytes > to.size.max(4) {
                    return Err(CudaError::misuse("a copy leaves its buffer"));
                }
                // SAFETY: both parts lie within their buffers, which live until the stream is past them.
                let code = unsafe { (driver.copy)(a + to_offset, b + from_offset, bytes as usize, stream) };
                driver.check(code, "cuMemcpyAsync")
            }
            Command::Clear { buffer, offset, bytes } => {
                buffer.used.store(index, Ordering::Relaxed);
                let Some(address) = buffer.address() else {
                    return Err(CudaError::misuse("clearing a buffer without an address"));
                };
                if offset + bytes > buffer.size.max(4) {
                    return Err(CudaError::misuse("clearing leaves its buffer"));
                }
                // SAFETY: the part lies within the buffer.
                let code = unsafe { (driver.fill)(address + offset, 0, bytes as usize, stream) };
                driver.check(code, "cuMemsetD8Async")
            }
            Command::Stamp { set, index } => set.record(index),
            Command::Resolve { set, range, to, offset } => {
                // SAFETY: the stream is this device's.
                driver.check(unsafe { (driver.synchronize)(stream) }, "the GPU")?;
                let bytes: Vec<u8> = set.times(range).iter().flat_map(|time| time.to_le_bytes()).collect();
                to.write(offset, &bytes);
                Ok(())
            }
            Command::Launch(launch) => {
                launch::run(&self.state, &launch)?;
                self.settle(&launch.name.to_string_lossy())
            }
        }
    }

    fn dispatch(
        &self,
        pipeline: &PipelineData,
        [x, y, z]: [u32; 3],
        arguments: &mut Arguments,
    ) -> Result<(), CudaError> {
        let state = &self.state;
        let [a, b, c] = pipeline.threads;
        let mut pointers = arguments.pointers();
        let (function, stream) = (pipeline.function.0, state.stream.0);
        // SAFETY: there is an argument for every parameter, which is read before the call returns.
        let code = unsafe {
            (state.driver.launch)(function, x, y, z, a, b, c, 0, stream, pointers.as_mut_ptr(), null_mut())
        };
        state.driver.check(code, &pipeline.label)?;
        self.settle(&pipeline.label)
    }
}

impl Arguments {
    /// The arguments of a kernel, of what is bound now.
    fn collect(&mut self, pipeline: &PipelineData, groups: &[Option<Group>]) -> Result<(), CudaError> {
        self.words.clear();
        self.starts.clear();
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
        self.words.extend(part.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        }));
        Some(())
    }

    fn pointers(&mut self) -> Vec<*mut c_void> {
        let words = self.words.as_mut_ptr();
        // SAFETY: every start lies within the words.
        self.starts.iter().map(|start| unsafe { words.add(*start) }.cast()).collect()
    }
}

impl c::QueueInterface for Queue {
    fn write_buffer(&self, to: &c::DispatchBuffer, offset: u64, data: &[u8]) {
        buffer(to).write(offset, data);
    }

    fn create_staging_buffer(&self, size: wgpu::BufferSize) -> Option<c::DispatchQueueWriteBuffer> {
        Some(c::DispatchQueueWriteBuffer::custom(Staged(vec![0; size.get() as usize])))
    }

    fn validate_write_buffer(
        &self,
        to: &c::DispatchBuffer,
        offset: u64,
        size: wgpu::BufferSize,
    ) -> Option<()> {
        let buffer = buffer(to);
        (buffer.address().is_some() && offset + size.get() <= buffer.size).then_some(())
    }

    fn write_staging_buffer(
        &self,
        to: &c::DispatchBuffer,
        offset: u64,
        staged: &c::DispatchQueueWriteBuffer,
    ) {
        buffer(to).write(offset, &staged.as_custom::<Staged>().expect("staging memory of CUDA").0);
    }

    fn submit(&self, buffers: &mut dyn Iterator<Item = c::DispatchCommandBuffer>) -> u64 {
        let state = &self.state;
        state.current();
        let mut arguments = lock(&self.arguments);
        let index = state.submitted.fetch_add(1, Ordering::Relaxed) + 1;
        for commands in buffers {
            let commands = commands.as_custom::<Buffered>().expect("commands of CUDA");
            for command in std::mem::take(&mut *lock(&commands.0)) {
                if state.is_gone() {
                    break;
                }
                if let Err(error) = self.run(command, index, &mut arguments) {
                    state.report(error);
                }
            }
        }
        state.mark(index);
        index
    }

    fn get_timestamp_period(&self) -> f32 {
        1.0
    }

    fn on_submitted_work_done(&self, callback: c::BoxSubmittedWorkDoneCallback) {
        self.state.when_done(self.state.submitted.load(Ordering::Relaxed), callback);
    }

    absent! {
        "textures": fn write_texture(&self, _: wgpu::TexelCopyTextureInfo<'_>, _: &[u8], _: wgpu::TexelCopyBufferLayout, _: wgpu::Extent3d);
        "ray tracing": fn compact_blas(&self, _: &c::DispatchBlas) -> (Option<u64>, c::DispatchBlas);
        "surfaces": fn present(&self, _: &c::DispatchSurfaceOutputDetail);
    }
}

/// Bytes on their way to a buffer.
#[derive(Debug)]
struct Staged(Vec<u8>);

impl c::QueueWriteBufferInterface for Staged {
    fn len(&self) -> usize {
        self.0.len()
    }

    unsafe fn write_slice(&mut self) -> wgpu::WriteOnly<'_, [u8]> {
        wgpu::WriteOnly::from_mut(&mut self.0[..])
    }
}
