// Sums and maxima over the 64 threads of a workgroup, in a fixed order; every thread gets the result.
var<workgroup> reduce_values: array<f32, 64>;

fn reduce_sum(value: f32, lane: u32) -> f32 {
    reduce_values[lane] = value;
    workgroupBarrier();
    var eight = 0.0;
    for (var i = lane % 8u; i < 64u; i += 8u) {
        eight += reduce_values[i];
    }
    workgroupBarrier();
    reduce_values[lane] = eight;
    workgroupBarrier();
    var sum = 0.0;
    for (var i = 0u; i < 8u; i++) {
        sum += reduce_values[i];
    }
    workgroupBarrier();
    return sum;
}

fn reduce_max(value: f32, lane: u32) -> f32 {
    reduce_values[lane] = value;
    workgroupBarrier();
    var largest = reduce_values[0];
    for (var i = 1u; i < 64u; i++) {
        largest = max(largest, reduce_values[i]);
    }
    workgroupBarrier();
    return largest;
}
