// A power of two above every value of an adapter gradient's thin operand, from the largest of each of 128 threads. Rows that f16 rounds to
// zero beside it do not matter in the sum.
#import common/packed

var<workgroup> largest: array<f32, 128>;

fn thin_scale(most: vec4<f32>, lane: u32) -> f32 {
    largest[lane] = most4(most);
    for (var step = 64u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if lane < step {
            largest[lane] = max(largest[lane], largest[lane + step]);
        }
    }
    workgroupBarrier();
    return undoing(exponent(largest[0]));
}
