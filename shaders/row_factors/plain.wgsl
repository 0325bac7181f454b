// The power of two that undoes the scaling of each row for f16. The scaling brings the row's largest value into [½, 1). One workgroup per
// row.
#import common/packed
#import common/reduce

// Twin of `Params` in src/ops/row_factors/mod.rs.
struct Params {
    rows: u32,      // T
    cols4: u32,     // K / 4
    x_stride4: u32,
    x_offset4: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;              // [T, K]
@group(0) @binding(2) var<storage, read_write> factors: array<f32>;        // [T]

@compute @workgroup_size(64)
fn row_factors(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x + group.y * groups.x;
    let at = min(row, params.rows - 1u) * params.x_stride4 + params.x_offset4;
    var most = vec4<f32>();
    for (var c = lane; c < params.cols4; c += 64u) {
        most = max(most, abs(x[at + c]));
    }
    let largest = reduce_max(most4(most), lane);
    if lane == 0u && row < params.rows {
        factors[row] = undoing(exponent(largest));
    }
}
