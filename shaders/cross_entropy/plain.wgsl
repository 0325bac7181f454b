// Softcap and cross entropy in place; one workgroup per row of logits.
// c = cap·tanh(z/cap), t = c/temperature; loss = log Σ exp(t) − t[target];
// dz = coefficient/temperature·(softmax(t) − onehot)·(1 − (c/cap)²).
#import common/reduce

// Twin of `Params` in src/ops/cross_entropy/mod.rs.
struct Params {
    rows: u32,
    vocab: u32,
    stride: u32,        // floats from one row of logits to the next
    target_offset: u32, // place of the first row in targets
    loss_offset: u32,   // and in losses and coefficients
    softcap: f32,       // 0: none
    coldness: f32,      // 1 / temperature
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> logits: array<f32>;     // [rows, V] → capped logits, or dlogits
@group(0) @binding(2) var<storage, read> targets: array<u32>;          // [N]
@group(0) @binding(3) var<storage, read_write> losses: array<f32>;     // [N]
@group(0) @binding(4) var<storage, read> coefficients: array<f32>;     // [N], gradient of the objective by each row's loss

fn capped(z: f32) -> f32 {
    if params.softcap == 0.0 {
        return z;
    }
    return params.softcap * tanh(clamp(z / params.softcap, -10.0, 10.0));
}

// Caps the row in place and returns log Σ exp at the temperature.
fn row_lse(row: u32, lane: u32) -> f32 {
    let at = row * params.stride;
    var largest = -1e30;
    for (var i = lane; i < params.vocab; i += 64u) {
        let c = capped(logits[at + i]);
        logits[at + i] = c;
        largest = max(largest, c);
    }
    largest = reduce_max(largest, lane);
    var sum = 0.0;
    for (var i = lane; i < params.vocab; i += 64u) {
        sum += exp((logits[at + i] - largest) * params.coldness);
    }
    return largest * params.coldness + log(reduce_sum(sum, lane));
}

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let target_id = targets[params.target_offset + group.x];
    let lse = row_lse(group.x, lane);
    // The thread that capped this logit reads it back.
    if lane == target_id % 64u {
        losses[params.loss_offset + group.x] = lse - params.coldness * logits[group.x * params.stride + target_id];
    }
}

@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = group.x * params.stride;
    let target_id = targets[params.target_offset + group.x];
    let lse = row_lse(group.x, lane);
    let coefficient = params.coldness * coefficients[params.loss_offset + group.x];
    for (var i = lane; i < params.vocab; i += 64u) {
        let c = logits[at + i];
        if i == target_id {
            losses[params.loss_offset + group.x] = lse - params.coldness * c;
        }
        let slope_root = select(0.0, c / params.softcap, params.softcap != 0.0);
        let p = exp(params.coldness * c - lse) - select(0.0, 1.0, i == target_id);
        logits[at + i] = coefficient * p * (1.0 - slope_root * slope_root);
    }
}

// Applies only the softcap, for logits that are read.
@compute @workgroup_size(64)
fn cap(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    for (var i = group.x * 64u + lane; i < params.vocab; i += groups.x * 64u) {
        let at = group.y * params.stride + i;
        logits[at] = capped(logits[at]);
    }
}
