// Per-layer inputs of all layers in place, one workgroup per token and layer: x = (root·table[t] + norm(x))/√2. The tokens' rows of the table
// lie one after the other, in the format that `weight` reads.
#import weight
#import common/reduce

// Twin of `Params` in src/ops/per_layer/mod.rs.
struct Params {
    layers: u32,        // L
    width4: u32,        // P / 4
    weight_cols: u32,   // L·P
    weight_rows: u32,   // T
    eps: f32,
    root: f32,          // √P
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<vec4<u32>>;     // rows of the table [T, L·P]
@group(0) @binding(2) var<storage, read> norm: array<vec4<f32>>;       // [P]
@group(0) @binding(3) var<storage, read_write> x: array<vec4<f32>>;    // [T, L, P]

const ROOT_HALF: f32 = 0.70710678118654752;

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = (group.y * params.layers + group.x) * params.width4;
    var squares = 0.0;
    for (var c = lane; c < params.width4; c += 64u) {
        squares += dot(x[row + c], x[row + c]);
    }
    let rstd = 1.0 / sqrt(reduce_sum(squares, lane) / f32(params.width4 * 4u) + params.eps);
    for (var c = lane; c < params.width4; c += 64u) {
        let from_token = params.root * weight4(group.y, group.x * params.width4 + c);
        x[row + c] = ROOT_HALF * (x[row + c] * rstd * norm[c] + from_token);
    }
}
