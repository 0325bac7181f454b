// Row values for shaders/attention/coop16_scores.wgsl, one workgroup per token and head: the log-sum-exp, and Σ dout·out in units of the
// factor that undoes the scaling of dout.
enable f16;
#import common/packed
#import common/reduce

// Twin of `Params` in src/ops/attention/coop16_rows.rs.
struct Params {
    rows: u32,          // T
    heads: u32,         // H
    head_size4: u32,    // K / 4
    tiles: u32,         // stride between columns of matrices in `out`: T/16 or more
}

@group(0) @binding(0) var<uniform> params: Params;
#if {MATRICES}
@group(0) @binding(1) var<storage, read> out: array<vec4<f16>>;        // [H·K/16, T/16, 16, 16], not scaled
#else
@group(0) @binding(1) var<storage, read> out: array<vec4<f32>>;        // [T, H, K]
#end
@group(0) @binding(2) var<storage, read> dout: array<vec4<f32>>;       // [T, H, K]
@group(0) @binding(3) var<storage, read> factors: array<f32>;          // [T]
@group(0) @binding(4) var<storage, read> lse: array<f32>;              // [T, H]
@group(0) @binding(5) var<storage, read_write> rows: array<vec2<f32>>; // [T, H]

fn out4(row: u32, c: u32) -> vec4<f32> {
#if {MATRICES}
    return vec4<f32>(out[packed_at(params.tiles, row / params.heads, row % params.heads * params.head_size4 + c)]);
#else
    return out[row * params.head_size4 + c];
#end
}

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = group.x + group.y * groups.x;
    let row = min(index, params.rows * params.heads - 1u);
    var sum = 0.0;
    for (var c = lane; c < params.head_size4; c += 64u) {
        sum += dot(out4(row, c), dout[row * params.head_size4 + c]);
    }
    sum = reduce_sum(sum, lane);
    if lane == 0u && index == row {
        rows[row] = vec2<f32>(lse[row], sum / factors[row / params.heads]);
    }
}
