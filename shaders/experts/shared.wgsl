// The gate of a shared expert, y = routed + σ(score)·shared, with one score per token.
#import common/reduce

// Twin of `Params` in src/ops/experts/shared.rs.
struct Params {
    rows: u32,          // T
    width4: u32,        // D / 4
    stride4: u32,       // vec4s from one row of `shared` to the next
    score_stride4: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> scores: array<vec4<f32>>;         // [T, 1], padded
@group(0) @binding(2) var<storage, read> shared_rows: array<vec4<f32>>;    // [T, D]
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>;              // routed or dy [T, D]
@group(0) @binding(4) var<storage, read_write> y: array<vec4<f32>>;        // y or the gradient of `shared` [T, D]
@group(0) @binding(5) var<storage, read_write> dscores: array<vec4<f32>>;  // [T, 1], padded

fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp(-x));
}

fn open(row: u32) -> f32 {
    return sigmoid(scores[row * params.score_stride4].x);
}

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + group.y * groups.x) * 64u + lane;
    let row = i / params.width4;
    if row < params.rows {
        y[i] = x[i] + open(row) * shared_rows[row * params.stride4 + i % params.width4];
    }
}

@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + group.y * groups.x) * 64u + lane;
    let row = i / params.width4;
    if row < params.rows {
        y[i] = open(row) * x[i];
    }
}

// One workgroup per token. The padding of a score gets a gradient of zero, which products read.
@compute @workgroup_size(64)
fn backward_scores(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = min(group.x + group.y * groups.x, params.rows - 1u);
    var sum = 0.0;
    for (var c = lane; c < params.width4; c += 64u) {
        sum += dot(x[row * params.width4 + c], shared_rows[row * params.stride4 + c]);
    }
    sum = reduce_sum(sum, lane);
    if lane == 0u {
        let score = scores[row * params.score_stride4].x;
        dscores[row * params.score_stride4] = vec4<f32>(sum * sigmoid(score) * sigmoid(-score), 0.0, 0.0, 0.0);
    }
}
