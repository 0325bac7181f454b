// L2 norms of the last update and of the parameters. Runs after the optimizer, and recomputes the update from the optimizer's state.
#import common/reduce

// Twin of `Params` in src/ops/update_norm/mod.rs.
struct Params {
    count4: u32,        // partial: parameters / 4; finish: pairs of partial sums
    offset: u32,        // partial: where this buffer's pairs start
    rate: f32,          // AdamW: learning rate / bias correction of m; SGD: learning rate
    bias_correction2_sqrt: f32,
    epsilon: f32,
    decay: f32,         // learning rate · weight decay
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> clip: array<f32>;         // see `Clip` in src/ops/adamw/mod.rs
@group(0) @binding(2) var<storage, read> gradients: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> parameters: array<vec4<f32>>;   // after the update
@group(0) @binding(4) var<storage, read> first: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> second: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read_write> partials: array<vec2<f32>>;

const STRIPE: u32 = 4096u; // vec4s per workgroup

// With p = old·(1 − decay) − moved, the update is moved + decay·old.
fn squares(p: vec4<f32>, moved: vec4<f32>) -> vec2<f32> {
    let old = (p + moved) / (1.0 - params.decay);
    let update = moved + params.decay * old;
    return vec2<f32>(dot(update, update), dot(p, p));
}

fn store(sums: vec2<f32>, group: u32, lane: u32) {
    let update = reduce_sum(sums.x, lane);
    let whole = reduce_sum(sums.y, lane);
    if lane == 0u {
        partials[params.offset + group] = vec2<f32>(update, whole);
    }
}

@compute @workgroup_size(64)
fn adamw(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    var sums = vec2<f32>(0.0);
    let end = min((group.x + 1u) * STRIPE, params.count4);
    for (var i = group.x * STRIPE + lane; i < end; i += 64u) {
        let denominator = sqrt(second[i]) / params.bias_correction2_sqrt + params.epsilon;
        sums += squares(parameters[i], params.rate * first[i] / denominator);
    }
    store(sums, group.x, lane);
}

@compute @workgroup_size(64)
fn sgd(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    var sums = vec2<f32>(0.0);
    let end = min((group.x + 1u) * STRIPE, params.count4);
    for (var i = group.x * STRIPE + lane; i < end; i += 64u) {
        sums += squares(parameters[i], params.rate * clip[1] * gradients[i]);
    }
    store(sums, group.x, lane);
}

@compute @workgroup_size(64)
fn finish(@builtin(local_invocation_index) lane: u32) {
    var sums = vec2<f32>(0.0);
    for (var i = lane; i < params.count4; i += 64u) {
        sums += partials[i];
    }
    let update = reduce_sum(sums.x, lane);
    let whole = reduce_sum(sums.y, lane);
    if lane == 0u {
        // The optimizer skipped the step where the gradient was not finite.
        clip[5] = select(sqrt(update), 0.0, clip[2] == 0.0);
        clip[6] = sqrt(whole);
    }
}
