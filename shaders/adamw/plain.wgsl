// One optimizer step over a buffer of parameters. Parameters stay as they are if the gradient norm is not finite.

// Twin of `Params` in src/ops/adamw/mod.rs.
struct Params {
    count: u32,
    learning_rate: f32,
    beta1: f32,
    beta2: f32,
    one_minus_beta1: f32,       // rounded once: 1 − 0.999 in f32 is off by 1.3e-5
    one_minus_beta2: f32,
    epsilon: f32,
    weight_decay: f32,
    bias_correction1: f32,      // 1 − beta1^step
    bias_correction2_sqrt: f32, // √(1 − beta2^step)
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> clip: array<f32>;             // norm, factor, whether the norm is finite
@group(0) @binding(2) var<storage, read> gradients: array<f32>;
@group(0) @binding(3) var<storage, read_write> parameters: array<f32>;
@group(0) @binding(4) var<storage, read_write> first: array<f32>;      // m
@group(0) @binding(5) var<storage, read_write> second: array<f32>;     // v

// Decoupled weight decay (Loshchilov & Hutter 2019), in the order of torch.optim.AdamW.
@compute @workgroup_size(64)
fn adamw(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + group.y * groups.x) * 64u + lane;
    if i >= params.count || clip[2] == 0.0 {
        return;
    }
    let g = clip[1] * gradients[i];
    let decayed = parameters[i] * (1.0 - params.learning_rate * params.weight_decay);
    let m = params.beta1 * first[i] + params.one_minus_beta1 * g;
    let v = params.beta2 * second[i] + params.one_minus_beta2 * g * g;
    let denominator = sqrt(v) / params.bias_correction2_sqrt + params.epsilon;
    parameters[i] = decayed - params.learning_rate / params.bias_correction1 * m / denominator;
    first[i] = m;
    second[i] = v;
}

@compute @workgroup_size(64)
fn sgd(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + group.y * groups.x) * 64u + lane;
    if i >= params.count || clip[2] == 0.0 {
        return;
    }
    let g = clip[1] * gradients[i] + params.weight_decay * parameters[i];
    parameters[i] -= params.learning_rate * g;
}
