//! Recorded commands.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use wgpu::custom as c;

use crate::buffer::{BufferData, buffer};
use crate::graph;
use crate::launch::RawLaunch;
use crate::pipeline::{Group, Pipeline, PipelineData};
use crate::stamps::{Queries, Stamps, stamps};
use crate::state::lock;
use crate::stubs::{absent, ignored};

pub enum Command {
    Dispatch { pipeline: Arc<PipelineData>, groups: Vec<Option<Group>>, grid: [u32; 3] },
    Copy { from: Arc<BufferData>, from_offset: u64, to: Arc<BufferData>, to_offset: u64, bytes: u64 },
    Clear { buffer: Arc<BufferData>, offset: u64, bytes: u64 },
    Stamp { set: Arc<Stamps>, index: u32 },
    Resolve { set: Arc<Stamps>, range: Range<u32>, to: Arc<BufferData>, offset: u64 },
    Launch(RawLaunch),
    Graph(Arc<graph::Inner>),
    Repeats,
}

impl Command {
    /// Notes that submission `index` uses the buffers whose memory the host may reach.
    pub fn note(&self, index: u64) {
        match self {
            Command::Copy { from, to, .. } => {
                from.used.store(index, Ordering::Relaxed);
                to.used.store(index, Ordering::Relaxed);
            }
            Command::Clear { buffer, .. } => buffer.used.store(index, Ordering::Relaxed),
            Command::Graph(graph) => graph.note(index),
            _ => {}
        }
    }

    /// The last copy beside kernels that uses one of its buffers, in numbers after `joined`; `last` where any might.
    pub fn last_copy(&self, joined: u64, last: u64) -> u64 {
        let of = |buffer: &BufferData| buffer.copy.load(Ordering::Relaxed);
        match self {
            Command::Dispatch { groups, .. } => {
                let bound = groups.iter().flatten().flat_map(|group| group.0.iter());
                bound.map(|bound| of(&bound.buffer)).max().unwrap_or(joined)
            }
            Command::Copy { from, to, .. } => of(from).max(of(to)),
            Command::Clear { buffer, .. } => of(buffer),
            Command::Launch(launch) => launch.buffers().map(|buffer| of(&buffer)).max().unwrap_or(joined),
            Command::Stamp { .. } | Command::Repeats => joined,
            Command::Resolve { .. } | Command::Graph(_) => last,
        }
    }
}

type Commands = Arc<Mutex<Vec<Command>>>;

#[derive(Default)]
pub struct Encoder {
    commands: Commands,
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("encoder")
    }
}

/// Commands that are submitted once.
pub struct Buffered(pub Mutex<Vec<Command>>);

impl std::fmt::Debug for Buffered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("commands")
    }
}

impl c::CommandBufferInterface for Buffered {}

impl Encoder {
    pub fn push(&self, command: Command) {
        lock(&self.commands).push(command);
    }

    /// The commands so far, which it forgets.
    pub fn take(&self) -> Vec<Command> {
        std::mem::take(&mut *lock(&self.commands))
    }
}

impl c::CommandEncoderInterface for Encoder {
    fn copy_buffer_to_buffer(
        &self,
        from: &c::DispatchBuffer,
        from_offset: u64,
        to: &c::DispatchBuffer,
        to_offset: u64,
        bytes: Option<u64>,
    ) {
        let (from, to) = (buffer(from), buffer(to));
        let bytes = bytes.unwrap_or(from.size - from_offset);
        self.push(Command::Copy { from, from_offset, to, to_offset, bytes });
    }

    fn begin_compute_pass(&self, desc: &wgpu::ComputePassDescriptor<'_>) -> c::DispatchComputePass {
        let mut end = None;
        if let Some(writes) = &desc.timestamp_writes {
            let set = writes.query_set.as_custom::<Queries>().expect("a query set of CUDA").0.clone();
            if let Some(index) = writes.beginning_of_pass_write_index {
                self.push(Command::Stamp { set: set.clone(), index });
            }
            end = writes.end_of_pass_write_index.map(|index| (set, index));
        }
        let commands = self.commands.clone();
        c::DispatchComputePass::custom(Pass { commands, pipeline: None, groups: Vec::new(), end })
    }

    fn finish(&mut self) -> c::DispatchCommandBuffer {
        c::DispatchCommandBuffer::custom(Buffered(Mutex::new(self.take())))
    }

    fn clear_buffer(&self, b: &c::DispatchBuffer, offset: u64, size: Option<u64>) {
        let buffer = buffer(b);
        let bytes = size.unwrap_or(buffer.size - offset);
        self.push(Command::Clear { buffer, offset, bytes });
    }

    fn write_timestamp(&self, set: &c::DispatchQuerySet, index: u32) {
        self.push(Command::Stamp { set: stamps(set), index });
    }

    fn resolve_query_set(
        &self,
        set: &c::DispatchQuerySet,
        first: u32,
        count: u32,
        to: &c::DispatchBuffer,
        offset: u64,
    ) {
        let range = first..first + count;
        self.push(Command::Resolve { set: stamps(set), range, to: buffer(to), offset });
    }

    absent! {
        "textures": fn copy_buffer_to_texture(&self, _: wgpu::TexelCopyBufferInfo<'_>, _: wgpu::TexelCopyTextureInfo<'_>, _: wgpu::Extent3d);
        "textures": fn copy_texture_to_buffer(&self, _: wgpu::TexelCopyTextureInfo<'_>, _: wgpu::TexelCopyBufferInfo<'_>, _: wgpu::Extent3d);
        "textures": fn copy_texture_to_texture(&self, _: wgpu::TexelCopyTextureInfo<'_>, _: wgpu::TexelCopyTextureInfo<'_>, _: wgpu::Extent3d);
        "textures": fn clear_texture(&self, _: &c::DispatchTexture, _: &wgpu::ImageSubresourceRange);
        "rendering": fn begin_render_pass(&self, _: &wgpu::RenderPassDescriptor<'_>) -> c::DispatchRenderPass;
        "ray tracing": fn build_acceleration_structures<'a>(
            &self,
            _: &mut dyn Iterator<Item = &'a wgpu::BlasBuildEntry<'a>>,
            _: &mut dyn Iterator<Item = &'a wgpu::Tlas>,
        );
    }

    ignored! {
        fn insert_debug_marker(&self, _: &str);
        fn push_debug_group(&self, _: &str);
        fn pop_debug_group(&self);
        fn mark_acceleration_structures_built<'a>(
            &self,
            _: &mut dyn Iterator<Item = &'a wgpu::Blas>,
            _: &mut dyn Iterator<Item = &'a wgpu::Tlas>,
        );
        fn transition_resources<'a>(
            &mut self,
            _: &mut dyn Iterator<Item = wgpu::wgt::BufferTransition<&'a c::DispatchBuffer>>,
            _: &mut dyn Iterator<Item = wgpu::wgt::TextureTransition<&'a c::DispatchTexture>>,
        );
    }
}

struct Pass {
    commands: Commands,
    pipeline: Option<Arc<PipelineData>>,
    groups: Vec<Option<Group>>,
    /// The timestamp at its end.
    end: Option<(Arc<Stamps>, u32)>,
}

impl std::fmt::Debug for Pass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("pass")
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if let Some((set, index)) = self.end.take() {
            lock(&self.commands).push(Command::Stamp { set, index });
        }
    }
}

impl c::ComputePassInterface for Pass {
    fn set_pipeline(&mut self, pipeline: &c::DispatchComputePipeline) {
        self.pipeline = Some(pipeline.as_custom::<Pipeline>().expect("a pipeline of CUDA").0.clone());
    }

    fn set_bind_group(&mut self, index: u32, group: Option<&c::DispatchBindGroup>, offsets: &[u32]) {
        assert!(offsets.is_empty(), "CUDA's device has no dynamic offsets");
        let index = index as usize;
        if self.groups.len() <= index {
            self.groups.resize(index + 1, None);
        }
        self.groups[index] = group.map(|g| g.as_custom::<Group>().expect("a bind group of CUDA").clone());
    }

    fn write_timestamp(&mut self, set: &c::DispatchQuerySet, index: u32) {
        lock(&self.commands).push(Command::Stamp { set: stamps(set), index });
    }

    fn dispatch_workgroups(&mut self, x: u32, y: u32, z: u32) {
        let pipeline = self.pipeline.clone().expect("a pipeline is set");
        if x > 0 && y > 0 && z > 0 {
            let groups = self.groups.clone();
            lock(&self.commands).push(Command::Dispatch { pipeline, groups, grid: [x, y, z] });
        }
    }

    absent! {
        "immediates": fn set_immediates(&mut self, _: u32, _: &[u8]);
        "pipeline statistics": fn begin_pipeline_statistics_query(&mut self, _: &c::DispatchQuerySet, _: u32);
        "indirect dispatches": fn dispatch_workgroups_indirect(&mut self, _: &c::DispatchBuffer, _: u64);
    }

    ignored! {
        fn insert_debug_marker(&mut self, _: &str);
        fn push_debug_group(&mut self, _: &str);
        fn pop_debug_group(&mut self);
        fn end_pipeline_statistics_query(&mut self);
        fn transition_resources<'a>(
            &mut self,
            _: &mut dyn Iterator<Item = wgpu::wgt::BufferTransition<&'a c::DispatchBuffer>>,
            _: &mut dyn Iterator<Item = wgpu::wgt::TextureTransition<&'a c::DispatchTextureView>>,
        );
    }
}
