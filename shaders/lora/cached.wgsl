// y = y + B·z in place, where a row contains z, too; for decoding. One thread per value.

// Twin of `Params` in src/ops/lora/cached.rs.
struct Params {
    rows: u32,      // T
    width: u32,     // N
    stride: u32,    // floats of a row
    column: u32,    // first column of y
    z_offset: u32,  // first column of z
    b_offset: u32,  // first float of Bᵀ
    rank: u32,      // R
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;  // [T, stride]
@group(0) @binding(2) var<storage, read> b: array<f32>;        // Bᵀ [R, N]

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + group.y * groups.x) * 64u + lane;
    if i >= params.rows * params.width {
        return;
    }
    let row = i / params.width * params.stride;
    let n = i % params.width;
    var sum = 0.0;
    for (var r = 0u; r < params.rank; r++) {
        sum += b[params.b_offset + r * params.width + n] * y[row + params.z_offset + r];
    }
    y[row + params.column + n] += sum;
}
