// The per-layer input of one layer: y[t] = (root·table[ids[t]] + norm(x[t]))/√2. A row takes one workgroup, or one thread with ALONE.
#import weight
#import common/rstd
#import common/row_sum

// Twin of `Params` in src/ops/per_layer/layer.rs.
struct Params {
    rows: u32,          // T
    first_row: u32,     // first row of the table in this buffer
    weight_rows: u32,
    weight_cols: u32,   // L·P
    ids_offset: u32,
    first_col4: u32,    // the layer's first column, / 4
    width4: u32,        // P / 4
    eps: f32,
    root: f32,          // √P
    parts: u32,         // of x
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<vec4<u32>>;     // the table [tokens, L·P]
@group(0) @binding(2) var<storage, read> ids: array<u32>;              // [T]
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>;          // [parts, T, P]
@group(0) @binding(4) var<storage, read> norm: array<vec4<f32>>;       // [P]
@group(0) @binding(5) var<storage, read_write> y: array<vec4<f32>>;    // [T, P]

const ROOT_HALF: f32 = 0.70710678118654752;

fn x4(at: u32) -> vec4<f32> {
    var sum = x[at];
    for (var s = 1u; s < params.parts; s++) {
        sum += x[s * params.rows * params.width4 + at];
    }
    return sum;
}

@compute @workgroup_size({THREADS})
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = (group.x + group.y * groups.x) * ({THREADS}u / ROW_THREADS) + lane / ROW_THREADS;
    let row = min(index, params.rows - 1u);
    var squares = 0.0;
    for (var c = lane % ROW_THREADS; c < params.width4; c += ROW_THREADS) {
        let v = x4(row * params.width4 + c);
        squares += dot(v, v);
    }
    let rstd = rstd_of(row_sum(squares, lane), params.width4, params.eps);
    let id = ids[params.ids_offset + row];
    if index >= params.rows || id < params.first_row || id - params.first_row >= params.weight_rows {
        return;
    }
    for (var c = lane % ROW_THREADS; c < params.width4; c += ROW_THREADS) {
        let at = row * params.width4 + c;
        let from_token = params.root * weight4(id - params.first_row, params.first_col4 + c);
        y[at] = ROOT_HALF * (x4(at) * rstd * norm[c] + from_token);
    }
}
