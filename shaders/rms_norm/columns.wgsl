// RMSNorm of some columns of every row, in place: y = y·rstd·w. A row takes one workgroup.
#import common/reduce
#import common/rstd

// Twin of `Params` in src/ops/rms_norm/columns.rs.
struct Params {
    width4: u32,    // columns of the norm, / 4
    stride4: u32,   // vec4s from one row of y to the next
    offset4: u32,   // first column, / 4
    eps: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;    // [rows, stride]
@group(0) @binding(2) var<storage, read> w: array<vec4<f32>>;          // [width]

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = group.x * params.stride4 + params.offset4;
    var squares = 0.0;
    for (var c = lane; c < params.width4; c += 64u) {
        let v = y[at + c];
        squares += dot(v, v);
    }
    let rstd = rstd_of(reduce_sum(squares, lane), params.width4, params.eps);
    for (var c = lane; c < params.width4; c += 64u) {
        y[at + c] *= rstd * w[c];
    }
}
