// Rows by index: y[t] = scale·W[ids[t]] in the format that `weight` reads, and the mirror dW[ids[t]] = dy[t] for distinct ids in F32. The
// mirror returns the gradients of those rows of the residual stream that the head has taken.
#import weight

// Twin of `Params` in src/ops/embedding/mod.rs.
struct Params {
    rows: u32,          // T
    first_row: u32,     // first row of W in this buffer
    weight_rows: u32,
    weight_cols: u32,
    ids_offset: u32,
    first_col4: u32,    // first column to take, / 4
    cols4: u32,         // columns to take, / 4
    scale: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<vec4<u32>>;     // W [V, D]
@group(0) @binding(2) var<storage, read> ids: array<u32>;              // [T]
@group(0) @binding(3) var<storage, read_write> y: array<vec4<f32>>;    // y [T, D]
@group(0) @binding(4) var<storage, read> dy: array<vec4<f32>>;         // dy [T, D]
@group(0) @binding(5) var<storage, read_write> dx: array<vec4<f32>>;   // dW [rows, D]

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let t = group.x + group.y * groups.x;
    if t >= params.rows {
        return;
    }
    let id = ids[params.ids_offset + t];
    if id < params.first_row || id - params.first_row >= params.weight_rows {
        return;
    }
    for (var c = lane; c < params.cols4; c += 64u) {
        y[t * params.cols4 + c] = params.scale * weight4(id - params.first_row, params.first_col4 + c);
    }
}

@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let t = group.x + group.y * groups.x;
    if t >= params.rows {
        return;
    }
    let id = ids[params.ids_offset + t];
    for (var c = lane; c < params.cols4; c += 64u) {
        dx[id * params.cols4 + c] = params.scale * dy[t * params.cols4 + c];
    }
}
