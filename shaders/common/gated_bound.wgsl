// A gated unit's results are scaled by a bound of their largest value, from the factors of gate and up: powers of two that no value of theirs
// exceeds. So what packs gate and up, and what reads them packed, round the results alike.
#import common/activation

// Results are scaled to lie below 2^ROOM, not below 1: a bound may lie so far above the largest value before that loses precision. Terms that are
// scaled alike have as much less room in f16. Gradients of gate and of up have one factor, which is that of the larger ones.
const ROOM: i32 = 4;
const GRADIENT_ROOM: i32 = 8;

// The power of a factor, 2^power.
fn power(factor: f32) -> i32 {
    return i32(bitcast<u32>(factor) >> 23u) - 127;
}

// The powers of two that no activation of a gate exceeds, and no value of an up.
fn power_of_gate(factor: f32) -> i32 {
#if {OAI}
    return min(power(factor), 3);   // LIMIT is below 2³
#else
    return power(factor);
#end
}

fn power_of_up(factor: f32) -> i32 {
#if {OAI}
    return 3;   // LIMIT + 1 is 2³
#else
    return power(factor);
#end
}

// The factor of results below 2^bound, which are scaled to lie below 2^room.
fn factor_of(bound: i32, room: i32) -> f32 {
    return bitcast<f32>(u32(clamp(bound - room, -125, 123) + 127) << 23u);
}

// 1 / factor, of a power of two.
fn inverse(factor: f32) -> f32 {
    return bitcast<f32>((254u << 23u) - bitcast<u32>(factor));
}
