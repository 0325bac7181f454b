// Global L2 norm of all gradients and the clipping factor min(1, max_norm/(norm + 1e-6)), as torch.nn.utils.clip_grad_norm_.
#import common/reduce

// Twin of `Params` in src/ops/adamw/mod.rs.
struct Params {
    count4: u32,        // partial: gradients / 4; finish: partial sums
    offset: u32,        // partial: where this buffer's partial sums start
    max_norm: f32,      // 0: never clip
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> gradients: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> partials: array<f32>;
@group(0) @binding(3) var<storage, read_write> clip: array<f32>;       // norm, factor, whether the norm is finite

const STRIPE: u32 = 4096u; // vec4s per workgroup

@compute @workgroup_size(64)
fn partial_sums(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    var squares = 0.0;
    let end = min((group.x + 1u) * STRIPE, params.count4);
    for (var i = group.x * STRIPE + lane; i < end; i += 64u) {
        squares += dot(gradients[i], gradients[i]);
    }
    squares = reduce_sum(squares, lane);
    if lane == 0u {
        partials[params.offset + group.x] = squares;
    }
}

@compute @workgroup_size(64)
fn finish(@builtin(local_invocation_index) lane: u32) {
    var squares = 0.0;
    for (var i = lane; i < params.count4; i += 64u) {
        squares += partials[i];
    }
    let norm = sqrt(reduce_sum(squares, lane));
    if lane == 0u {
        clip[0] = norm;
        clip[1] = select(1.0, min(1.0, params.max_norm / (norm + 1e-6)), params.max_norm > 0.0);
        // Exponent bits all set: infinite or not a number. A comparison would be optimised away.
        clip[2] = select(1.0, 0.0, (bitcast<u32>(norm) & 0x7f800000u) == 0x7f800000u);
    }
}
