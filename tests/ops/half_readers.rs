//! The readers of weights in f16. Only kernels on matrices of 16×16 use them, which few devices have, so that a shader of this test
//! runs them alone.

use libtest_mimic::Failed;
use rullama_train::base::formats::planes::to_planes;
use rullama_train::base::formats::{GgmlType, dequantize, random_blocks};
use rullama_train::cases::tolerance::HALF;
use rullama_train::gpu::Gpu;
use rullama_train::gpu::shader::{SOURCES, expand};

use super::check::{Check, Outcome, wide};

const ROWS: usize = 67;
const COLS: usize = 512;

const HEAD: &str = "enable f16;
struct Params { weight_rows: u32, weight_cols: u32 }
const params = Params(67u, 512u);
@group(0) @binding(0) var<storage, read> weight: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;
";

const KERNEL: &str = "
@compute @workgroup_size(64)
fn read_all(@builtin(global_invocation_id) id: vec3<u32>) {
    let slices = params.weight_cols / 32u;
    if id.x < params.weight_rows * slices {
        let s = load_slice(id.x / slices, id.x % slices);
        let factors = half_factors(s);
        for (var c = 0u; c < 8u; c++) {
            y[id.x * 8u + c] = vec4<f32>(half4(s, factors, c));
        }
    }
}
";

/// Every value of a matrix, read in f16.
pub fn values(gpu: &Gpu) -> Outcome {
    let (device, queue) = gpu.raw();
    let mut check = Check::new("readers in f16", HALF);
    for ty in GgmlType::SUPPORTED {
        let blocks = random_blocks(ty, ROWS * COLS / ty.block_len(), 5);
        let own = format!("formats/half/{}", ty.reader());
        let half = SOURCES.iter().map(|(name, _)| *name).find(|name| *name == own);
        let reader = [format!("formats/{}", ty.reader()), half.unwrap_or("formats/half/any").to_string()];
        let [reader, half] = reader.map(|name| expand(&name, &[], &[]));
        let text = [HEAD, &reader, &half, KERNEL].concat();
        let found = run(device, queue, &text, &to_planes(ty, ROWS, &blocks))?;
        check.close(&ty.name(), COLS, &wide(&found), &wide(&dequantize(ty, &blocks)))?;
    }
    check.done()
}

fn run(device: &wgpu::Device, queue: &wgpu::Queue, text: &str, weight: &[u8]) -> Result<Vec<f32>, Failed> {
    let source = wgpu::ShaderSource::Wgsl(text.into());
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: None,
        layout: None,
        module: &module,
        entry_point: Some("read_all"),
        compilation_options: Default::default(),
        cache: None,
    });
    let buffer = |size: usize, usage| {
        let size = size as u64;
        device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
    };
    use wgpu::BufferUsages as Use;
    let bytes = ROWS * COLS * 4;
    let w = buffer(weight.len(), Use::STORAGE | Use::COPY_DST);
    let y = buffer(bytes, Use::STORAGE | Use::COPY_SRC);
    let read = buffer(bytes, Use::MAP_READ | Use::COPY_DST);
    queue.write_buffer(&w, 0, weight);
    let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &pipeline.get_bind_group_layout(0),
        entries: &[
            wgpu::BindGroupEntry { binding: 0, resource: w.as_entire_binding() },
            wgpu::BindGroupEntry { binding: 1, resource: y.as_entire_binding() },
        ],
    });
    let mut encoder = device.create_command_encoder(&Default::default());
    let mut pass = encoder.begin_compute_pass(&Default::default());
    pass.set_pipeline(&pipeline);
    pass.set_bind_group(0, &group, &[]);
    pass.dispatch_workgroups((ROWS * COLS / 32).div_ceil(64) as u32, 1, 1);
    drop(pass);
    encoder.copy_buffer_to_buffer(&y, 0, &read, 0, bytes as u64);
    queue.submit([encoder.finish()]);
    read.map_async(wgpu::MapMode::Read, .., |mapped| mapped.expect("the device lives"));
    device.poll(wgpu::PollType::wait_indefinitely())?;
    let mapped = read.get_mapped_range(..)?;
    Ok(bytemuck::cast_slice(&mapped).to_vec())
}
