// Logarithms of two sums over a row of values v, one workgroup per row: log Σ exp(v/T) over all, and over those behind the likeliest
// ones, which argmax/top.wgsl has found. Of equal values, the one with the smaller index comes first.
#import common/reduce

const NONE: f32 = -1e30;

// Twin of `Params` in src/ops/distill/teacher.rs.
struct Params {
    count: u32,
    stride: u32,        // floats from one row of values to the next
    words: u32,         // words of one row's result in `found`
    first: u32,         // place of the first row in found and sums
    warmth: f32,        // 1 / T
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> values: array<f32>;      // [rows, count]
@group(0) @binding(2) var<storage, read> found: array<u32>;       // [N, words]
@group(0) @binding(3) var<storage, read_write> sums: array<f32>;  // [N, 2]

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = group.x * params.stride;
    let row_at = (params.first + group.x) * params.words;
    let largest = bitcast<f32>(found[row_at]);
    let last_index = found[row_at + params.words - 2u];
    let last_value = bitcast<f32>(found[row_at + params.words - 1u]);
    var rest_largest = NONE;
    for (var i = lane; i < params.count; i += 64u) {
        let v = values[at + i];
        if v < last_value || (v == last_value && i > last_index) {
            rest_largest = max(rest_largest, v);
        }
    }
    rest_largest = reduce_max(rest_largest, lane);
    var sum = 0.0;
    var rest = 0.0;
    for (var i = lane; i < params.count; i += 64u) {
        let v = values[at + i];
        sum += exp((v - largest) * params.warmth);
        if v < last_value || (v == last_value && i > last_index) {
            rest += exp((v - rest_largest) * params.warmth);
        }
    }
    sum = reduce_sum(sum, lane);
    rest = reduce_sum(rest, lane);
    if lane == 0u {
        let to = 2u * (params.first + group.x);
        sums[to] = largest * params.warmth + log(sum);
        sums[to + 1u] = NONE;
        if rest > 0.0 {
            sums[to + 1u] = rest_largest * params.warmth + log(rest);
        }
    }
}
