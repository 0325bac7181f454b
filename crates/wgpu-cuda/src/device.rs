//! The device.

use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use wgpu::custom as c;

use crate::buffer::{Buffer, BufferData};
use crate::command::Encoder;
use crate::driver::CudaError;
use crate::pipeline::{Bound, Group, Layout, Pipeline, PipelineData, Shader};
use crate::stamps::{Queries, Stamps};
use crate::state::{State, lock};
use crate::stubs::absent;

#[derive(Debug, Clone)]
pub struct Device(pub Arc<State>);

impl c::DeviceInterface for Device {
    fn features(&self) -> wgpu::Features {
        self.0.features
    }

    fn limits(&self) -> wgpu::Limits {
        self.0.limits.clone()
    }

    fn adapter_info(&self) -> wgpu::AdapterInfo {
        self.0.info.clone()
    }

    fn create_shader_module(
        &self,
        desc: wgpu::ShaderModuleDescriptor<'_>,
        _: wgpu::ShaderRuntimeChecks,
    ) -> c::DispatchShaderModule {
        let shader = Shader::new(&desc.source);
        if let Err(text) = &shader.parsed {
            self.0.report(CudaError::misuse(text.clone()));
        }
        c::DispatchShaderModule::custom(shader)
    }

    fn create_bind_group_layout(
        &self,
        _: &wgpu::BindGroupLayoutDescriptor<'_>,
    ) -> c::DispatchBindGroupLayout {
        c::DispatchBindGroupLayout::custom(Layout)
    }

    fn create_bind_group(&self, desc: &wgpu::BindGroupDescriptor<'_>) -> c::DispatchBindGroup {
        let bound = desc.entries.iter().map(|entry| match &entry.resource {
            wgpu::BindingResource::Buffer(b) => {
                let buffer = b.buffer.as_custom::<Buffer>().expect("a buffer of CUDA").0.clone();
                let size = b.size.map_or(buffer.size - b.offset, |s| s.get());
                Bound { binding: entry.binding, buffer, offset: b.offset, size }
            }
            _ => unimplemented!("CUDA's device binds buffers only"),
        });
        c::DispatchBindGroup::custom(Group(Arc::new(bound.collect())))
    }

    fn create_pipeline_layout(&self, _: &wgpu::PipelineLayoutDescriptor<'_>) -> c::DispatchPipelineLayout {
        c::DispatchPipelineLayout::custom(Layout)
    }

    fn create_compute_pipeline(
        &self,
        desc: &wgpu::ComputePipelineDescriptor<'_>,
    ) -> c::DispatchComputePipeline {
        let data = PipelineData::new(&self.0, desc).unwrap_or_else(|text| {
            let label = desc.label.unwrap_or("kernel");
            self.0.report(CudaError::misuse(format!("{label}: {text}")));
            PipelineData::refused(&self.0, label)
        });
        c::DispatchComputePipeline::custom(Pipeline(Arc::new(data)))
    }

    fn create_buffer(&self, desc: &wgpu::BufferDescriptor<'_>) -> c::DispatchBuffer {
        c::DispatchBuffer::custom(Buffer(Arc::new(BufferData::new(&self.0, desc))))
    }

    fn create_query_set(&self, desc: &wgpu::QuerySetDescriptor<'_>) -> c::DispatchQuerySet {
        c::DispatchQuerySet::custom(Queries(Arc::new(Stamps::new(&self.0, desc.count))))
    }

    fn create_command_encoder(&self, _: &wgpu::CommandEncoderDescriptor<'_>) -> c::DispatchCommandEncoder {
        c::DispatchCommandEncoder::custom(Encoder::default())
    }

    fn set_device_lost_callback(&self, callback: c::BoxDeviceLostCallback) {
        *lock(&self.0.lost) = Some(callback);
    }

    fn on_uncaptured_error(&self, handler: Arc<dyn wgpu::UncapturedErrorHandler>) {
        *lock(&self.0.handler) = Some(handler);
    }

    fn push_error_scope(&self, _: wgpu::ErrorFilter) -> u32 {
        0
    }

    fn pop_error_scope(&self, _: u32) -> Pin<Box<dyn c::PopErrorScopeFuture>> {
        Box::pin(ready(None))
    }

    unsafe fn start_graphics_debugger_capture(&self) {}

    unsafe fn stop_graphics_debugger_capture(&self) {}

    fn poll(&self, poll: wgpu::wgt::PollType<u64>) -> Result<wgpu::PollStatus, wgpu::PollError> {
        match poll {
            wgpu::wgt::PollType::Poll => Ok(match self.0.advance(None, None)? {
                true => wgpu::PollStatus::QueueEmpty,
                false => wgpu::PollStatus::Poll,
            }),
            wgpu::wgt::PollType::Wait { submission_index, timeout } => {
                let until = submission_index.unwrap_or_else(|| self.0.submitted.load(Ordering::Relaxed));
                let empty = self.0.advance(Some(until), timeout.map(|t| Instant::now() + t))?;
                Ok(if empty { wgpu::PollStatus::QueueEmpty } else { wgpu::PollStatus::WaitSucceeded })
            }
        }
    }

    fn get_internal_counters(&self) -> wgpu::InternalCounters {
        Default::default()
    }

    fn generate_allocator_report(&self) -> Option<wgpu::AllocatorReport> {
        let bytes = self.0.allocated.load(Ordering::Relaxed);
        Some(wgpu::AllocatorReport {
            allocations: Vec::new(),
            blocks: Vec::new(),
            total_allocated_bytes: bytes,
            total_reserved_bytes: bytes,
        })
    }

    fn destroy(&self) {
        self.0.current();
        // SAFETY: the stream is this device's.
        unsafe { (self.0.driver.synchronize)(self.0.stream.0) };
        self.0.lose(wgpu::DeviceLostReason::Destroyed, "the device was destroyed".into());
    }

    unsafe fn create_shader_module_passthrough(
        &self,
        _: &wgpu::ShaderModuleDescriptorPassthrough<'_>,
    ) -> c::DispatchShaderModule {
        unimplemented!("CUDA's device has no passthrough shaders")
    }

    unsafe fn create_pipeline_cache(
        &self,
        _: &wgpu::PipelineCacheDescriptor<'_>,
    ) -> c::DispatchPipelineCache {
        unimplemented!("the driver keeps compiled kernels by itself, in ~/.nv/ComputeCache")
    }

    absent! {
        "rendering": fn create_render_pipeline(&self, _: &wgpu::RenderPipelineDescriptor<'_>) -> c::DispatchRenderPipeline;
        "rendering": fn create_mesh_pipeline(&self, _: &wgpu::MeshPipelineDescriptor<'_>) -> c::DispatchRenderPipeline;
        "rendering": fn create_render_bundle_encoder(&self, _: &wgpu::RenderBundleEncoderDescriptor<'_>) -> c::DispatchRenderBundleEncoder;
        "textures": fn create_texture(&self, _: &wgpu::TextureDescriptor<'_>) -> c::DispatchTexture;
        "textures": fn create_external_texture(&self, _: &wgpu::ExternalTextureDescriptor<'_>, _: &[&wgpu::TextureView]) -> c::DispatchExternalTexture;
        "textures": fn create_sampler(&self, _: &wgpu::SamplerDescriptor<'_>) -> c::DispatchSampler;
        "ray tracing": fn create_blas(&self, _: &wgpu::CreateBlasDescriptor<'_>, _: wgpu::BlasGeometrySizeDescriptors) -> (Option<u64>, c::DispatchBlas);
        "ray tracing": fn create_tlas(&self, _: &wgpu::CreateTlasDescriptor<'_>) -> c::DispatchTlas;
    }
}
