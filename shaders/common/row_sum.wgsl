// The sum over the threads of a row: the 64 of a workgroup, or with ALONE a single one.
#if {ALONE}
const ROW_THREADS: u32 = 1u;

fn row_sum(value: f32, lane: u32) -> f32 {
    return value;
}
#else
#import common/reduce
const ROW_THREADS: u32 = {THREADS}u;

fn row_sum(value: f32, lane: u32) -> f32 {
    return reduce_sum(value, lane);
}
#end
