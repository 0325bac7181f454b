//! Records dispatches and submits them together.

use std::collections::{BTreeSet, HashSet};

use super::command::Command;
use super::pipeline::Compiled;
use super::recording::{Recording, Staging};
use super::upload::{HostBuffer, Submission, Upload};
use super::{BindGroups, Choice, Entry, Gpu, GpuError, Kernel, Launch, Product};

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

/// The fate of the recorded dispatches.
enum Mode {
    /// They are submitted once the parameters reach `limit` bytes, and at the end.
    Submit { limit: usize },
    /// They are kept for [`Recording`]. Their parameters lie in a buffer of their own.
    Keep { params: wgpu::Buffer },
    /// They never run; their kernels are compiled.
    Compile { kernels: HashSet<Kernel>, launched: HashSet<Entry>, products: BTreeSet<Product> },
}

/// Records work in the order in which it will run. A part of it may run before [`Recorder::submit`]: the device starts while the rest is
/// still being recorded.
pub struct Recorder<'g> {
    gpu: &'g Gpu,
    commands: Vec<Command>,
    params: Vec<u8>, // one slot per dispatch that was not submitted yet
    mode: Mode,
    groups: Option<BindGroups>,
    /// Whether its kernels are likely to come again in their order.
    recurs: bool,
}

/// Bytes of one dispatch's parameters: the largest alignment that WebGPU allows.
const SLOT: usize = 256;
/// Most dispatches of one submission, so that the device does not wait for many of them.
const SLOTS: usize = 512;
/// Dispatches of the first submission.
const FIRST_SLOTS: usize = 32;
/// Bytes of a buffer for parameters.
const PARAMS: usize = SLOT * SLOTS;

impl<'g> Recorder<'g> {
    /// An empty recording.
    pub fn new(gpu: &'g Gpu) -> Recorder<'g> {
        Recorder::with_mode(gpu, Mode::Submit { limit: SLOT * FIRST_SLOTS })
    }

    /// An empty recording of work that comes again, such as a pass over the layers: CUDA's device makes graphs of kernels that come in the order
    /// in which they came before.
    pub fn recurring(gpu: &'g Gpu) -> Recorder<'g> {
        Recorder { recurs: true, ..Recorder::new(gpu) }
    }

    /// A [`Recorder::recurring`] that takes the bind groups of `groups`, of an earlier one, where it repeats it. End it with
    /// [`Recorder::into_bind_groups`].
    pub fn repeating(gpu: &'g Gpu, groups: BindGroups) -> Recorder<'g> {
        Recorder { groups: Some(groups.again()), ..Recorder::recurring(gpu) }
    }

    /// The rest of a recording: it goes on where `groups` ended.
    pub fn continuing(gpu: &'g Gpu, groups: BindGroups) -> Recorder<'g> {
        Recorder { groups: Some(groups), ..Recorder::recurring(gpu) }
    }

    /// A recording whose kernels never run; copies run if they are submitted. End it with [`Recorder::compile`]: the kernels of later
    /// recordings are compiled then.
    pub fn ahead(gpu: &'g Gpu) -> Recorder<'g> {
        let (kernels, launched, products) = Default::default();
        Recorder::with_mode(gpu, Mode::Compile { kernels, launched, products })
    }

    /// An empty recording for any number of submissions. End it with [`Recorder::keep`]: nothing runs before.
    pub fn lasting(gpu: &'g Gpu) -> Recorder<'g> {
        Recorder::with_mode(gpu, Mode::Keep { params: params_buffer(&gpu.device) })
    }

    fn with_mode(gpu: &'g Gpu, mode: Mode) -> Recorder<'g> {
        Recorder { gpu, commands: Vec::new(), params: Vec::new(), mode, groups: None, recurs: false }
    }

    /// Compiles what was recorded since [`Recorder::ahead`], in parallel. Returns the number of kernels that were not compiled before.
    pub fn compile(self) -> Result<usize, GpuError> {
        let Mode::Compile { kernels, launched, .. } = self.mode else {
            panic!("only a recording made by Recorder::ahead is compiled");
        };
        let compiled = self.gpu.compile_all(kernels.into_iter().collect(), launched.into_iter().collect());
        self.gpu.check()?;
        Ok(compiled)
    }

    /// The products that were recorded since [`Recorder::ahead`], of the most rows that share their choices.
    pub fn products(&self) -> Vec<Product> {
        match &self.mode {
            Mode::Compile { products, .. } => products.iter().copied().collect(),
            _ => Vec::new(),
        }
    }

    /// The device's choice for `product`; `None` for the usual one.
    pub(crate) fn choice(&mut self, product: Product) -> Option<Choice> {
        if let Mode::Compile { products, .. } = &mut self.mode {
            products.insert(product.of_most_rows());
        }
        self.gpu.choice(&product)
    }

    /// Whether what is recorded runs: not so after [`Recorder::ahead`].
    pub fn runs(&self) -> bool {
        !matches!(self.mode, Mode::Compile { .. })
    }

    /// The device that it records for.
    pub fn gpu(&self) -> &'g Gpu {
        self.gpu
    }

    /// Runs `kernel` over `workgroups`, with `params` at binding 0.
    ///
    /// Each dispatch has its own slot for parameters, so that no later dispatch can change what an earlier one reads.
    pub fn dispatch<P: bytemuck::Pod>(
        &mut self,
        kernel: Kernel,
        params: &P,
        bindings: &[Binding],
        workgroups: [u32; 3],
    ) {
        if let Mode::Compile { kernels, .. } = &mut self.mode {
            kernels.insert(kernel);
            return;
        }
        self.make_room();
        let compiled = self.gpu.pipeline(&kernel);
        let slot = wgpu::BufferBinding {
            buffer: match &self.mode {
                Mode::Keep { params } => params,
                _ => &self.gpu.params,
            },
            offset: self.params.len() as u64,
            size: std::num::NonZero::new(size_of::<P>().next_multiple_of(16) as u64),
        };
        let make = || self.gpu.bind_group(&kernel, &compiled, slot.clone(), bindings);
        let bind_group = match &mut self.groups {
            Some(groups) => groups.next(&compiled.pipeline, slot.offset, bindings, make),
            None => make(),
        };
        self.params.extend_from_slice(bytemuck::bytes_of(params));
        self.params.resize(self.params.len().next_multiple_of(SLOT), 0);
        let bytes = bindings.iter().map(|b| b.range.map_or(b.buffer.size(), |r| r.1)).sum();
        self.commands.push(Command::Dispatch {
            name: compiled.name,
            pipeline: compiled.pipeline,
            bind_group,
            workgroups,
            bytes,
        });
    }

    /// Runs a kernel of CUDA.
    pub fn launch(&mut self, launch: Launch) {
        match &mut self.mode {
            Mode::Compile { launched, .. } => drop(launched.insert(launch.entry)),
            _ => self.commands.push(Command::Launch(launch)),
        }
    }

    /// Makes room for the parameters of one more dispatch.
    fn make_room(&mut self) {
        match &mut self.mode {
            Mode::Submit { limit } if self.params.len() == *limit => drop(self.submit_recorded()),
            Mode::Keep { params } if self.params.len() == PARAMS => {
                self.gpu.queue.write_buffer(params, 0, &self.params);
                self.params.clear();
                *params = params_buffer(&self.gpu.device);
            }
            _ => {}
        }
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

    /// Copies the first `bytes` (a multiple of 4) of `buffer` to the start of `host`.
    pub fn copy_out(&mut self, buffer: &wgpu::Buffer, host: &HostBuffer, bytes: u64) {
        self.commands.push(Command::Copy { from: buffer.clone(), to: host.buffer.clone(), bytes });
    }

    /// Copies the first `bytes` (a multiple of 4) of `host` to the start of `buffer`.
    pub fn copy_back(&mut self, host: &HostBuffer, buffer: &wgpu::Buffer, bytes: u64) {
        self.commands.push(Command::Copy { from: host.buffer.clone(), to: buffer.clone(), bytes });
    }

    /// Makes sure that [`Recorder::into_bind_groups`] keeps none of `buffers` alive.
    pub fn forget(&mut self, buffers: &[&wgpu::Buffer]) {
        if let Some(groups) = &mut self.groups {
            groups.forget(buffers);
        }
    }

    /// The bind groups of [`Recorder::repeating`]. What was not submitted does not run.
    pub fn into_bind_groups(self) -> BindGroups {
        self.groups.unwrap_or_default()
    }

    /// Submits everything recorded so far; the recording is empty afterwards.
    pub fn submit(&mut self) -> Result<(), GpuError> {
        self.submit_marked().map(drop)
    }

    /// Ends a part of a [`Recorder::recurring`]: the order of the next part's kernels is that of an earlier one, whatever the length of this part.
    pub fn end_part(&mut self) {
        if self.recurs && self.gpu.cuda.is_some() {
            self.submit_recorded();
        }
    }

    /// [`Recorder::submit`], with the submission that others can wait for.
    pub fn submit_marked(&mut self) -> Result<Submission, GpuError> {
        let submission = self.submit_recorded();
        self.gpu.check()?;
        Ok(submission)
    }

    /// Ends [`Recorder::lasting`]: the result can be submitted any number of times.
    pub fn keep(self) -> Recording {
        let Mode::Keep { params } = &self.mode else {
            panic!("only a recording made by Recorder::lasting is kept");
        };
        self.gpu.queue.write_buffer(params, 0, &self.params);
        Recording { commands: self.commands, graph: Default::default() }
    }

    fn submit_recorded(&mut self) -> Submission {
        assert!(!matches!(self.mode, Mode::Keep { .. }), "a recording made by Recorder::lasting is kept");
        // The write is ordered with submissions: earlier ones have read their parameters when it arrives.
        self.gpu.queue.write_buffer(&self.gpu.params, 0, &self.params);
        self.params.clear();
        if let Mode::Submit { limit } = &mut self.mode {
            *limit = (2 * *limit).min(PARAMS);
        }
        self.gpu.run(self.gpu.encode(&mut std::mem::take(&mut self.commands).iter(), 0, self.recurs))
    }
}

impl Gpu {
    /// The bind group of a dispatch with its parameters in `slot`.
    fn bind_group(
        &self,
        kernel: &Kernel,
        compiled: &Compiled,
        slot: wgpu::BufferBinding,
        bindings: &[Binding],
    ) -> wgpu::BindGroup {
        let mut entries =
            vec![wgpu::BindGroupEntry { binding: 0, resource: wgpu::BindingResource::Buffer(slot) }];
        entries.extend(bindings.iter().map(|b| wgpu::BindGroupEntry {
            binding: b.index,
            resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer: b.buffer,
                offset: b.range.map_or(0, |r| r.0),
                size: b.range.and_then(|r| std::num::NonZero::new(r.1)),
            }),
        }));
        self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(kernel.shader),
            layout: &compiled.layout,
            entries: &entries,
        })
    }
}

/// A buffer for the parameters of [`SLOTS`] dispatches.
pub(super) fn params_buffer(device: &wgpu::Device) -> wgpu::Buffer {
    device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("parameters"),
        size: PARAMS as u64,
        usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    })
}

/// `n` workgroups as two dimensions, each under WebGPU's 65 535; a kernel's index is `x + y · num_workgroups.x`.
pub fn grid(n: usize) -> [u32; 3] {
    let x = n.min(32_768);
    [x as u32, n.div_ceil(x.max(1)) as u32, 1]
}
