// From rows that are grouped by expert back to tokens, in the order of each token's choices: y[t] = Σ_k factor_k·x[place_k]. The factor is
// the weight of the choice times the scale of its expert, or 1.

// Twin of `Params` in src/ops/experts/combine.rs.
struct Params {
    rows: u32,          // T
    used: u32,
    width4: u32,        // columns / 4
    x_stride4: u32,
    y_stride4: u32,
    y_offset4: u32,
    weighted: u32,      // 0: every factor is 1
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;              // [rows, columns]
@group(0) @binding(2) var<storage, read_write> y: array<vec4<f32>>;        // [T, D]
@group(0) @binding(3) var<storage, read> places: array<u32>;               // row of each choice [T·used]
@group(0) @binding(4) var<storage, read> chosen: array<u32>;               // its expert [T·used]
@group(0) @binding(5) var<storage, read> weights: array<f32>;              // [T·used]
@group(0) @binding(6) var<storage, read> scales: array<f32>;               // [E]

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + group.y * groups.x) * 64u + lane;
    if i >= params.rows * params.width4 {
        return;
    }
    let t = i / params.width4;
    var sum = vec4<f32>();
    for (var k = t * params.used; k < (t + 1u) * params.used; k++) {
        var factor = 1.0;
        if params.weighted == 1u {
            factor = weights[k] * scales[chosen[k]];
        }
        sum += factor * x[places[k] * params.x_stride4 + i % params.width4];
    }
    y[t * params.y_stride4 + params.y_offset4 + i % params.width4] = sum;
}
