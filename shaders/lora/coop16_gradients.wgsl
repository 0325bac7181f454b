// Gradients of an adapter's matrices over few rows, in one dispatch: see shaders/common/adapter_gradients.wgsl.
enable f16;
enable wgpu_cooperative_matrix;

// Twin of `Params` in src/ops/lora/coop16_gradients.rs.
struct Params {
    rows: u32,          // T
#import common/gradient_params
}

@group(0) @binding(0) var<uniform> params: Params;
#import common/adapter_gradients

var<workgroup> staged: array<vec4<f16>, 1536>;
var<workgroup> finished: array<vec4<f32>, 640>;

@compute @workgroup_size(128)
fn gradients(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    gradient(group.x, lane);
}
