//! The queue: commands run in the stream, in the order of their submission.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use wgpu::custom as c;

use crate::buffer::buffer;
use crate::command::Buffered;
use crate::state::{State, lock};
use crate::stubs::absent;
use crate::uploads::Staged;

#[derive(Debug)]
pub struct Queue {
    state: Arc<State>,
}

impl Queue {
    pub fn new(state: Arc<State>) -> Queue {
        Queue { state }
    }
}

impl c::QueueInterface for Queue {
    fn write_buffer(&self, to: &c::DispatchBuffer, offset: u64, data: &[u8]) {
        buffer(to).write(offset, data);
    }

    fn create_staging_buffer(&self, size: wgpu::BufferSize) -> Option<c::DispatchQueueWriteBuffer> {
        Some(c::DispatchQueueWriteBuffer::custom(Staged::new(&self.state, size.get() as usize)))
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
        let bytes = staged.as_custom::<Staged>().expect("staging memory of CUDA").take();
        self.state.write(buffer(to), offset, bytes);
    }

    fn submit(&self, buffers: &mut dyn Iterator<Item = c::DispatchCommandBuffer>) -> u64 {
        let commands = buffers.flat_map(|commands| {
            let commands = commands.as_custom::<Buffered>().expect("commands of CUDA");
            std::mem::take(&mut *lock(&commands.0))
        });
        self.state.submit(commands.collect())
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
