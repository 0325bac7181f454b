// Adds a frozen bias to every row, y = y + b.

// Twin of `Params` in src/ops/bias/mod.rs.
struct Params {
    rows: u32,
    width4: u32,    // columns of the bias, / 4
    stride4: u32,   // vec4s from one row of y to the next
    offset4: u32,   // first column of y, / 4
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;    // [rows, stride]
@group(0) @binding(2) var<storage, read> b: array<vec4<f32>>;          // [width]

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + group.y * groups.x) * 64u + lane;
    let row = i / params.width4;
    let c = i % params.width4;
    if row < params.rows {
        y[row * params.stride4 + params.offset4 + c] += b[c];
    }
}
