// Sums over the threads of a head, of which a workgroup of 64 threads has several.
const LANES: u32 = {LANES}u;            // threads of a head, a power of two
const HEADS: u32 = 64u / LANES;         // heads of a workgroup

var<workgroup> sums: array<vec2<f32>, 64>;

fn sum_of_head(value: vec2<f32>, lane: u32) -> vec2<f32> {
    sums[lane] = value;
    for (var step = LANES / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if lane % LANES < step {
            sums[lane] += sums[lane + step];
        }
    }
    workgroupBarrier();
    let sum = sums[lane / LANES * LANES];
    workgroupBarrier();
    return sum;
}
