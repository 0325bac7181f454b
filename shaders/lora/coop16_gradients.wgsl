// Gradients of an adapter's matrices over few rows, in one dispatch: see shaders/common/adapter_gradients.wgsl.
enable f16;
enable wgpu_cooperative_matrix;

// Twin of `Params` in src/ops/lora/coop16_gradients.rs.
struct Params {
    rows: u32,          // T
    b_scale: f32,       // of dB
    z_stride4: u32,
    u_stride4: u32,
#for n in 0..3
    tiles_{n}: u32,     // stride between columns of matrices in dy: T/16 or more
    cols_{n}: u32,      // N
    ranks4_{n}: u32,    // R / 4
    offset4_{n}: u32,   // first column of z, / 4
    end_{n}: u32,       // workgroups of this dB and of those before it; those of dA are last
#end
    tiles_a: u32,       // as for dy, in x
    cols_a: u32,        // K
    ranks4_a: u32,      // Σ R / 4
    offset4_a: u32,     // first column of u, / 4
    end_a: u32,         // workgroups of all
}

@group(0) @binding(0) var<uniform> params: Params;
#import common/adapter_gradients

var<workgroup> staged: array<vec4<f16>, 1536>;
var<workgroup> finished: array<vec4<f32>, 640>;

@compute @workgroup_size(128)
fn gradients(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = group.x;
    if index < params.end_0 {
        gradient_0(index, lane);
#if {SECOND}
    } else if index < params.end_1 {
        gradient_1(index - params.end_0, lane);
#end
#if {THIRD}
    } else if index < params.end_2 {
        gradient_2(index - params.end_1, lane);
#end
#if {OF_A}
    } else if index < params.end_a {
        gradient_a(index - params.end_2, lane);
#end
    }
}
