// Sums over the first 256 threads of a workgroup, in a fixed order; every thread gets the result.
var<workgroup> wide_values: array<f32, 256>;

fn wide_sum(value: f32, lane: u32) -> f32 {
    if lane < 256u {
        wide_values[lane] = value;
    }
    workgroupBarrier();
    if lane < 256u && lane % 16u == 0u {
        var sixteen = 0.0;
        for (var i = 0u; i < 16u; i++) {
            sixteen += wide_values[lane + i];
        }
        wide_values[lane] = sixteen;
    }
    workgroupBarrier();
    var sum = 0.0;
    for (var i = 0u; i < 256u; i += 16u) {
        sum += wide_values[i];
    }
    workgroupBarrier();
    return sum;
}
