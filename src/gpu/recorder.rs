//! Records dispatches and submits them together.

use std::collections::HashSet;

use super::profile::Timing;
use super::recording::{Recording, Staging};
use super::upload::{Submission, Upload};
use super::{Gpu, GpuError, Kernel};

/// A part of a buffer under a binding number.
#[derive(Clone, Copy)]
pub struct Binding<'a> {
    /// `@binding(n)`.
    pub index: u32,
    /// The buffer.
    pub buffer: &'a wgpu::Buffer,
    /// First byte (a multiple of 256) and length; `None` for the whole buffer.
    pub range: Option<(u64, u64)>,
}

pub(super) enum Command {
    Dispatch {
        name: std::sync::Arc<str>,
        pipeline: wgpu::ComputePipeline,
        bind_group: wgpu::BindGroup,
        workgroups: [u32; 3],
        /// Of the buffers that it is given.
        bytes: u64,
    },
    Clear {
        buffer: wgpu::Buffer,
        bytes: u64,
    },
    Copy {
        from: wgpu::Buffer,
        to: wgpu::Buffer,
        bytes: u64,
    },
}

/// Commands as the device takes them: submitted once.
pub(super) struct Encoded {
    commands: wgpu::CommandBuffer,
    timing: Option<Timing>,
}

/// Work in the order in which it will run. A part of it may run before [`Recorder::submit`]: the device starts while the
/// rest is still being recorded.
pub struct Recorder<'g> {
    gpu: &'g Gpu,
    commands: Vec<Command>,
    params: Vec<u8>,                // of the dispatches so far, a slot each
    until: usize,                   // bytes of them at which they are handed over
    own: Option<wgpu::Buffer>,      // where they go, if not to the device's buffer for parameters
    ahead: Option<HashSet<Kernel>>, // of the dispatches so far, where they are not to run
}

/// Bytes from the parameters of one dispatch to those of the next: the largest alignment that WebGPU allows.
const SLOT: usize = 256;
/// Dispatches that are handed over together, at most and at first: the device should not wait for many of them.
const SLOTS: usize = 512;
const FIRST_SLOTS: usize = 32;
/// Bytes of the device's buffer for parameters.
const PARAMS: u64 = (SLOT * SLOTS) as u64;

impl<'g> Recorder<'g> {
    /// An empty recording.
    pub fn new(gpu: &'g Gpu) -> Recorder<'g> {
        let until = SLOT * FIRST_SLOTS;
        Recorder { gpu, commands: Vec::new(), params: Vec::new(), until, own: None, ahead: None }
    }

    /// A recording whose kernels never run, only copies that are submitted: [`Recorder::compile`] ends it, and what is recorded
    /// later finds its kernels compiled.
    pub fn ahead(gpu: &'g Gpu) -> Recorder<'g> {
        Recorder { ahead: Some(HashSet::new()), ..Recorder::new(gpu) }
    }

    /// Compiles what was recorded since [`Recorder::ahead`], side by side; how many kernels were not compiled before.
    pub fn compile(self) -> Result<usize, GpuError> {
        let kernels = self.ahead.expect("a recording whose kernels never run");
        let compiled = self.gpu.compile_all(kernels.into_iter().collect());
        self.gpu.check()?;
        Ok(compiled)
    }

    /// An empty recording that [`Recorder::keep`] ends: nothing of it runs before, and its parameters stay its own.
    pub fn lasting(gpu: &'g Gpu) -> Recorder<'g> {
        Recorder { own: Some(gpu.params_buffer()), until: PARAMS as usize, ..Recorder::new(gpu) }
    }

    /// The device it records for.
    pub fn gpu(&self) -> &'g Gpu {
        self.gpu
    }

    /// Runs `kernel` over `workgroups`, with `params` at binding 0.
    ///
    /// Each dispatch has a slot of its own for them, so that no later dispatch can change what an earlier one reads.
    pub fn dispatch<P: bytemuck::Pod>(
        &mut self,
        kernel: Kernel,
        params: &P,
        bindings: &[Binding],
        workgroups: [u32; 3],
    ) {
        if let Some(kernels) = &mut self.ahead {
            kernels.insert(kernel);
            return;
        }
        if self.params.len() == self.until {
            match &mut self.own {
                None => drop(self.hand_over()),
                Some(full) => {
                    self.gpu.queue.write_buffer(full, 0, &self.params);
                    self.params.clear();
                    *full = self.gpu.params_buffer();
                }
            }
        }
        let compiled = self.gpu.pipeline(&kernel);
        let uniform = wgpu::BufferBinding {
            buffer: self.own.as_ref().unwrap_or(&self.gpu.params),
            offset: self.params.len() as u64,
            size: std::num::NonZero::new(size_of::<P>().next_multiple_of(16) as u64),
        };
        self.params.extend_from_slice(bytemuck::bytes_of(params));
        self.params.resize(self.params.len().next_multiple_of(SLOT), 0);
        let mut entries =
            vec![wgpu::BindGroupEntry { binding: 0, resource: wgpu::BindingResource::Buffer(uniform) }];
        entries.extend(bindings.iter().map(|b| wgpu::BindGroupEntry {
            binding: b.index,
            resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer: b.buffer,
                offset: b.range.map_or(0, |r| r.0),
                size: b.range.and_then(|r| std::num::NonZero::new(r.1)),
            }),
        }));
        let bind_group = self.gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(kernel.shader),
            layout: &compiled.layout,
            entries: &entries,
        });
        let (name, pipeline) = (compiled.name, compiled.pipeline);
        let bytes = bindings.iter().map(|b| b.range.map_or(b.buffer.size(), |r| r.1)).sum();
        self.commands.push(Command::Dispatch { name, pipeline, bind_group, workgroups, bytes });
    }

    /// Fills the first `bytes` (a multiple of 4) of `buffer` with zeros.
    pub fn clear(&mut self, buffer: &wgpu::Buffer, bytes: u64) {
        self.commands.push(Command::Clear { buffer: buffer.clone(), bytes });
    }

    /// A binding that this call does not use.
    pub fn unused(&self, index: u32) -> Binding<'g> {
        Binding { index, buffer: &self.gpu.unused, range: None }
    }

    /// Copies the first `bytes` (a multiple of 4) of `buffer` to where the host reads them.
    pub fn copy(&mut self, buffer: &wgpu::Buffer, staging: &Staging, bytes: u64) {
        self.commands.push(Command::Copy { from: buffer.clone(), to: staging.buffer.clone(), bytes });
    }

    /// Copies the first `bytes` (a multiple of 4) of `upload` to the start of `buffer`.
    pub fn copy_in(&mut self, upload: &Upload, buffer: &wgpu::Buffer, bytes: u64) {
        self.commands.push(Command::Copy { from: upload.buffer.clone(), to: buffer.clone(), bytes });
    }

    /// Hands everything recorded so far to the device and starts anew.
    pub fn submit(&mut self) -> Result<(), GpuError> {
        self.submit_marked().map(drop)
    }

    /// [`Recorder::submit`]; what it gives tells how far the device is.
    pub fn submit_marked(&mut self) -> Result<Submission, GpuError> {
        let submission = self.hand_over();
        self.gpu.check()?;
        Ok(submission)
    }

    /// What was recorded since [`Recorder::lasting`], to be submitted any number of times.
    pub fn keep(self) -> Recording {
        let own = self.own.as_ref().expect("a lasting recording is kept");
        self.gpu.queue.write_buffer(own, 0, &self.params);
        Recording { commands: self.commands }
    }

    fn hand_over(&mut self) -> Submission {
        assert!(self.own.is_none(), "a lasting recording is kept");
        // Ordered with submissions: earlier ones have read their parameters when this arrives.
        self.gpu.queue.write_buffer(&self.gpu.params, 0, &self.params);
        self.params.clear();
        self.until = (2 * self.until).min(PARAMS as usize);
        let encoded = self.gpu.encode(&mut self.commands.iter());
        self.commands.clear();
        self.gpu.run(encoded)
    }
}

impl Gpu {
    fn params_buffer(&self) -> wgpu::Buffer {
        params_buffer(&self.device)
    }

    pub(super) fn encode(&self, commands: &mut dyn Iterator<Item = &Command>) -> Encoded {
        let commands: Vec<&Command> = commands.collect();
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let dispatches = commands.iter().filter(|c| matches!(c, Command::Dispatch { .. })).count();
        let mut timing = self.profile.timing(&self.device, dispatches);
        let mut commands = commands.into_iter().peekable();
        while let Some(command) = commands.next() {
            match command {
                Command::Clear { buffer, bytes } => encoder.clear_buffer(buffer, 0, Some(*bytes)),
                Command::Copy { from, to, bytes } => encoder.copy_buffer_to_buffer(from, 0, to, 0, *bytes),
                Command::Dispatch { name, pipeline, bind_group, workgroups: [x, y, z], bytes } => {
                    let timestamp_writes = timing.as_mut().map(|t| t.next(name.clone(), *bytes));
                    let descriptor = wgpu::ComputePassDescriptor { label: None, timestamp_writes };
                    let mut pass = encoder.begin_compute_pass(&descriptor);
                    pass.set_pipeline(pipeline);
                    pass.set_bind_group(0, bind_group, &[]);
                    pass.dispatch_workgroups(*x, *y, *z);
                    // Timed, each dispatch has a pass of its own; otherwise neighbours share one.
                    while timing.is_none() {
                        let next = commands.next_if(|c| matches!(c, Command::Dispatch { .. }));
                        let Some(Command::Dispatch { pipeline, bind_group, workgroups: [x, y, z], .. }) =
                            next
                        else {
                            break;
                        };
                        pass.set_pipeline(pipeline);
                        pass.set_bind_group(0, bind_group, &[]);
                        pass.dispatch_workgroups(*x, *y, *z);
                    }
                }
            }
        }
        if let Some(timing) = &timing {
            timing.resolve(&mut encoder);
        }
        Encoded { commands: encoder.finish(), timing }
    }

    pub(super) fn run(&self, encoded: Encoded) -> Submission {
        let index = self.queue.submit([encoded.commands]);
        if let Some(timing) = encoded.timing {
            self.profile.keep(timing);
        }
        Submission(index)
    }
}

/// A buffer for the parameters of [`SLOTS`] dispatches.
pub(super) fn params_buffer(device: &wgpu::Device) -> wgpu::Buffer {
    device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("parameters"),
        size: PARAMS,
        usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    })
}

/// `n` workgroups as two dimensions, each under WebGPU's 65 535; a kernel's index is `x + y · num_workgroups.x`.
pub fn grid(n: usize) -> [u32; 3] {
    let x = n.min(32_768);
    [x as u32, n.div_ceil(x.max(1)) as u32, 1]
}
