// Backward of norm(x)·silu(gate), by head of the recurrence's output. LANES threads share a head, four values each.
#import common/delta
#import common/head_sum
#import common/activation

@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;          // [T, Hv, K]
@group(0) @binding(3) var<storage, read> w: array<vec4<f32>>;          // [K]
@group(0) @binding(4) var<storage, read> gate: array<vec4<f32>>;       // [T, Hv, K]
@group(0) @binding(5) var<storage, read> dy: array<vec4<f32>>;         // [T, Hv, K]
@group(0) @binding(6) var<storage, read_write> dgate: array<vec4<f32>>; // [T, Hv, K]
@group(0) @binding(7) var<storage, read_write> dx: array<vec4<f32>>;   // [T, Hv, K]

// With n = x·rstd·w and g = w·dy·silu(gate): dgate = dy·n·silu′(gate), dx = rstd·(g − x·rstd²·mean(g·x)).
@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = (group.x + group.y * groups.x) * HEADS + lane / LANES;
    let exists = row < params.tokens * params.value_heads && lane % LANES < SIZE4;
    let c = select(0u, lane % LANES, exists);
    let at = select(0u, row * SIZE4 + c, exists);
    let own = x[at];
    let own_gate = gate[at];
    let d = dy[at];
    let weight = w[c];
    let g = weight * d * activation4(own_gate);
    let both = select(vec2<f32>(), vec2<f32>(dot(own, own), dot(g, own)), exists);
    let sum = sum_of_head(both, lane) / f32(SIZE);
    let rstd = 1.0 / sqrt(sum.x + params.eps);
    if exists {
        dgate[at] = d * (own * rstd * weight) * derivative4(own_gate);
        dx[at] = rstd * (g - own * (rstd * rstd * sum.y));
    }
}
