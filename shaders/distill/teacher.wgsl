// Logarithms of two sums over a row of values v, one workgroup per row: log Σ exp(v/T) over all, and over those behind the likeliest
// ones, which argmax/top.wgsl has found. Of equal values, the one with the smaller index comes first.
#import common/log_sum

const THREADS: u32 = {THREADS}u;
const NONE: f32 = -1e30;

// Twin of `Params` in src/ops/distill/teacher.rs.
struct Params {
    count: u32,
    stride4: u32,       // vec4s from one row of values to the next
    words: u32,         // words of one row's result in `found`
    first: u32,         // place of the first row in found and sums
    warmth: f32,        // 1 / T
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> values: array<vec4<f32>>; // [rows, count]
@group(0) @binding(2) var<storage, read> found: array<u32>;        // [N, words]
@group(0) @binding(3) var<storage, read_write> sums: array<f32>;   // [N, 2]

var<workgroup> partial: array<vec3<f32>, THREADS>; // both sums, and the largest value of the rest

@compute @workgroup_size({THREADS})
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = group.x * params.stride4;
    let row_at = (params.first + group.x) * params.words;
    let largest = bitcast<f32>(found[row_at]);
    let last_index = found[row_at + params.words - 2u];
    let last_value = bitcast<f32>(found[row_at + params.words - 1u]);
    var rest_largest = NONE;
    var sum = 0.0;
    var rest = 0.0;
    for (var c = lane; c < (params.count + 3u) / 4u; c += THREADS) {
        let v = values[at + c];
        let i = vec4<u32>(c * 4u) + vec4<u32>(0u, 1u, 2u, 3u);
        let there = i < vec4<u32>(params.count);
        let equal = v == vec4<f32>(last_value);
        let behind = there & ((v < vec4<f32>(last_value)) | (equal & (i > vec4<u32>(last_index))));
        let p = select(vec4<f32>(), exp((v - largest) * params.warmth), there);
        sum += sum_of(p);
        let others = select(vec4<f32>(NONE), v, behind);
        let before = rest_largest;
        rest_largest = max(rest_largest, largest_of(others));
        let q = select(vec4<f32>(), exp((v - rest_largest) * params.warmth), behind);
        rest = rest * exp((before - rest_largest) * params.warmth) + sum_of(q);
    }
    partial[lane] = vec3<f32>(sum, rest, rest_largest);
    for (var step = THREADS / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if lane < step {
            let a = partial[lane];
            let b = partial[lane + step];
            let of_rest = joined(a.zy, b.zy, params.warmth);
            partial[lane] = vec3<f32>(a.x + b.x, of_rest.yx);
        }
    }
    workgroupBarrier();
    if lane == 0u {
        let whole = partial[0];
        let result = 2u * (params.first + group.x);
        sums[result] = largest * params.warmth + log(whole.x);
        sums[result + 1u] = select(NONE, whole.z * params.warmth + log(whole.y), whole.y > 0.0);
    }
}
