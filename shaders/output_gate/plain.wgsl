// Gates of attention's output. A matrix gives each head's queries and behind them its gates, [T, H, 2, K]; y = x·σ(gate).

// Twin of `Params` in src/ops/output_gate/mod.rs.
struct Params {
    count4: u32,    // T·H·K / 4
    size4: u32,     // K / 4
    width4: u32,    // H·K / 4
    stride4: u32,   // vec4s from one row of `both` to the next
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> both: array<vec4<f32>>;           // queries, gates [T, H, 2, K]
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;              // [T, H, K]
@group(0) @binding(3) var<storage, read_write> y: array<vec4<f32>>;        // [T, H, K]
@group(0) @binding(4) var<storage, read> dy: array<vec4<f32>>;             // [T, H, K]
@group(0) @binding(5) var<storage, read_write> dx: array<vec4<f32>>;       // [T, H, K]
@group(0) @binding(6) var<storage, read_write> dboth: array<vec4<f32>>;    // [T, H, 2, K]

// The place of a head's queries; its gates follow.
fn query_at(i: u32) -> u32 {
    let c = i % params.width4;
    return i / params.width4 * params.stride4 + c / params.size4 * 2u * params.size4 + c % params.size4;
}

fn sigmoid(x: vec4<f32>) -> vec4<f32> {
    return 1.0 / (1.0 + exp(-x));
}

// y = queries.
@compute @workgroup_size(64)
fn split(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + group.y * groups.x) * 64u + lane;
    if i < params.count4 {
        y[i] = both[query_at(i)];
    }
}

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + group.y * groups.x) * 64u + lane;
    if i < params.count4 {
        y[i] = x[i] * sigmoid(both[query_at(i) + params.size4]);
    }
}

@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + group.y * groups.x) * 64u + lane;
    if i < params.count4 {
        let gate = both[query_at(i) + params.size4];
        let open = sigmoid(gate);
        dx[i] = dy[i] * open;
        dboth[query_at(i) + params.size4] = dy[i] * x[i] * open * sigmoid(-gate);
    }
}

// Gradients of queries beside those of gates.
@compute @workgroup_size(64)
fn join(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + group.y * groups.x) * 64u + lane;
    if i < params.count4 {
        dboth[query_at(i)] = x[i];
    }
}
