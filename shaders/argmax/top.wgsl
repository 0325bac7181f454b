// The likeliest values of every row, and the sum that turns values into probabilities; one workgroup per row.
// A row's result: its largest value, Σ exp(value − largest), the value of its target, and the `top` largest, index and value. Equal values
// are ordered by index. NaN is never among the largest, but makes the sum NaN.
#import common/reduce

const NOTHING: f32 = -3.40282e38;

// Twin of `Params` in src/ops/argmax/top.rs.
struct Params {
    count: u32,
    stride: u32,        // floats from one row of values to the next
    top: u32,
    words: u32,         // words of one row's result
    first: u32,         // place of the first row in targets and results
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> values: array<f32>;         // [rows, count]
@group(0) @binding(2) var<storage, read> targets: array<u32>;        // [N]
@group(0) @binding(3) var<storage, read_write> results: array<u32>;  // [N, words]

var<workgroup> best_values: array<f32, 64>;
var<workgroup> best_indices: array<u32, 64>;

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = group.x * params.stride;
    var largest = NOTHING;
    for (var i = lane; i < params.count; i += 64u) {
        largest = max(largest, values[at + i]);
    }
    largest = reduce_max(largest, lane);
    var sum = 0.0;
    for (var i = lane; i < params.count; i += 64u) {
        sum += exp(values[at + i] - largest);
    }
    sum = reduce_sum(sum, lane);
    let to = (params.first + group.x) * params.words;
    if lane == 0u {
        results[to] = bitcast<u32>(largest);
        results[to + 1u] = bitcast<u32>(sum);
        results[to + 2u] = bitcast<u32>(values[at + min(targets[params.first + group.x], params.count - 1u)]);
    }
    // Each round takes the largest value behind that of the round before.
    var last_value = 3.40282e38;
    var last_index = 0u;
    for (var n = 0u; n < params.top; n++) {
        var value = NOTHING;
        var index = 0u;
        for (var i = lane; i < params.count; i += 64u) {
            let found = values[at + i];
            let behind = found < last_value || (found == last_value && i > last_index && n > 0u);
            if behind && found > value {
                value = found;
                index = i;
            }
        }
        best_values[lane] = value;
        best_indices[lane] = index;
        workgroupBarrier();
        value = best_values[0];
        index = best_indices[0];
        for (var i = 1u; i < 64u; i++) {
            let other = best_values[i];
            if other > value || (other == value && best_indices[i] < index) {
                value = other;
                index = best_indices[i];
            }
        }
        workgroupBarrier();
        last_value = value;
        last_index = index;
        if lane == 0u {
            results[to + 3u + 2u * n] = index;
            results[to + 4u + 2u * n] = bitcast<u32>(value);
        }
    }
}
