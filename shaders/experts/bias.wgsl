// Frozen biases of experts. Rows lie by expert in tiles of one, or by choice, which is a tile of one row. Biases of down enter behind the sum
// over a token's choices: Σ_k factor_k·b_k, where the factor is the weight of the choice times the scale of its expert.
#import common/reduce

// Twin of `Params` in src/ops/experts/bias.rs.
struct Params {
    rows: u32,          // of y, or choices
    width4: u32,        // of a bias, / 4
    stride4: u32,       // vec4s from one row of y to the next
    tile: u32,          // rows of a tile
    used: u32,          // choices of a token
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;    // [rows, stride] or [T, D]
@group(0) @binding(2) var<storage, read> b: array<vec4<f32>>;          // [E, width]
@group(0) @binding(3) var<storage, read> experts: array<u32>;          // of each tile, or of each choice [T·used]
@group(0) @binding(4) var<storage, read> weights: array<f32>;          // of each choice [T·used]
@group(0) @binding(5) var<storage, read> scales: array<f32>;           // of each expert [E]
@group(0) @binding(6) var<storage, read> dy: array<vec4<f32>>;         // [T, D]
@group(0) @binding(7) var<storage, read_write> dweights: array<f32>;   // [T·used]

const NONE: u32 = 0xffffffffu;

// y += b of the row's expert
@compute @workgroup_size(64)
fn each(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + group.y * groups.x) * 64u + lane;
    let row = i / params.width4;
    let c = i % params.width4;
    if row >= params.rows {
        return;
    }
    let expert = experts[row / params.tile];
    if expert != NONE {
        y[row * params.stride4 + c] += b[expert * params.width4 + c];
    }
}

// y[t] += Σ_k factor_k·b of choice k
@compute @workgroup_size(64)
fn summed(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + group.y * groups.x) * 64u + lane;
    let t = i / params.width4;
    let c = i % params.width4;
    if t >= params.rows {
        return;
    }
    var sum = vec4<f32>();
    for (var k = t * params.used; k < (t + 1u) * params.used; k++) {
        sum += weights[k] * scales[experts[k]] * b[experts[k] * params.width4 + c];
    }
    y[t * params.stride4 + c] += sum;
}

// dweights += scale·⟨dy, b⟩, one workgroup per choice
@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = group.x + group.y * groups.x;
    let choice = min(index, params.rows - 1u);
    let expert = experts[choice];
    var sum = 0.0;
    for (var c = lane; c < params.width4; c += 64u) {
        sum += dot(dy[choice / params.used * params.stride4 + c], b[expert * params.width4 + c]);
    }
    sum = reduce_sum(sum, lane);
    if lane == 0u && index == choice {
        dweights[choice] += scales[expert] * sum;
    }
}
