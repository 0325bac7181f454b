// Rotary embedding in place, of pairs (i, i + n/2) of the first n values of each head: (a, b) → (a·cos − b·sin, b·cos + a·sin). Backward rotates by the negative angle.
// With WEIGHTED, what was rotated is multiplied by the weights of a norm, and gradients are before they are rotated back; n = K then.

// Twin of `Params` in src/ops/rope/mod.rs.
struct Params {
    rows: u32,      // T
    heads: u32,
    pairs: u32,     // n/2
    size: u32,      // K
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> positions: array<u32>;        // [T]
@group(0) @binding(2) var<storage, read> table: array<vec2<f32>>;      // cos, sin [positions, n/2]
@group(0) @binding(3) var<storage, read_write> x: array<f32>;          // [T, heads, K]
#if {WEIGHTED}
@group(0) @binding(4) var<storage, read> w: array<f32>;                // [K]
#end

fn rotate(group: vec3<u32>, groups: vec3<u32>, lane: u32, sign: f32) {
    let index = (group.x + group.y * groups.x) * 64u + lane;
    let i = index % params.pairs;
    let row = index / params.pairs;
    if row >= params.rows * params.heads {
        return;
    }
    let turn = table[positions[row / params.heads] * params.pairs + i];
    let at = row * params.size + i;
#if {WEIGHTED}
    let is_forward = sign > 0.0;
    let low = w[i];
    let high = w[i + params.pairs];
    let a = x[at] * select(low, 1.0, is_forward);
    let b = x[at + params.pairs] * select(high, 1.0, is_forward);
    x[at] = (a * turn.x - sign * b * turn.y) * select(1.0, low, is_forward);
    x[at + params.pairs] = (b * turn.x + sign * a * turn.y) * select(1.0, high, is_forward);
#else
    let a = x[at];
    let b = x[at + params.pairs];
    x[at] = a * turn.x - sign * b * turn.y;
    x[at + params.pairs] = b * turn.x + sign * a * turn.y;
#end
}

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    rotate(group, groups, lane, 1.0);
}

@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    rotate(group, groups, lane, -1.0);
}
