// Adds up the parts of a split product, in order: y (+)= Σ_s parts[s].

// Twin of `Params` in src/ops/partial_sums/mod.rs.
struct Params {
    rows: u32,
    cols4: u32,
    parts: u32,
    y_stride4: u32,
    y_offset4: u32,
    accumulate: u32,    // 1: add to y
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> parts: array<vec4<f32>>;      // [parts, rows, cols]
@group(0) @binding(2) var<storage, read_write> y: array<vec4<f32>>;    // [rows, cols]

@compute @workgroup_size(64)
fn reduce(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + group.y * groups.x) * 64u + lane;
    let count4 = params.rows * params.cols4;
    if i >= count4 {
        return;
    }
    let at = i / params.cols4 * params.y_stride4 + params.y_offset4 + i % params.cols4;
    var sum = vec4<f32>();
    for (var s = 0u; s < params.parts; s++) {
        sum += parts[s * count4 + i];
    }
    if params.accumulate == 1u {
        sum += y[at];
    }
    y[at] = sum;
}
