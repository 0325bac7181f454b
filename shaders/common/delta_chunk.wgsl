// One chunk of one head: the sums of its decays' logarithms, its rates, and the first tokens of its samples.
#import common/delta

@group(0) @binding(1) var<storage, read> bounds: array<vec2<u32>>;     // first token of each token's sample, and the one behind it [T]
@group(0) @binding(2) var<storage, read> gates: array<f32>;            // sums, rates [T, 2, Hv]

var<workgroup> sums: array<f32, 64>;
var<workgroup> rates: array<f32, 64>;
var<workgroup> starts: array<u32, 64>;
var<workgroup> seen: array<f32, 64>;    // Γ[i]: what is left at token i of the state before the chunk
var<workgroup> left: array<f32, 64>;    // D[last, j]: what is left behind the chunk of what token j wrote

// The chunk's tokens.
fn count_of(first: u32) -> u32 {
    return min(CHUNK, params.tokens - first);
}

// The chunk's token `i`, or the last token where the chunk has fewer.
fn token(first: u32, i: u32) -> u32 {
    return min(first + i, params.tokens - 1u);
}

fn sum_at(t: u32, head: u32) -> f32 {
    return gates[2u * t * gate_stride() + head];
}

fn load_chunk(first: u32, head: u32, lane: u32) {
    if lane < CHUNK {
        let t = token(first, lane);
        let last = token(first, CHUNK - 1u);
        let sum = sum_at(t, head);
        let start = bounds[t].x;
        sums[lane] = sum;
        rates[lane] = gates[(2u * t + 1u) * gate_stride() + head];
        starts[lane] = start;
#if {CARRIED}
        seen[lane] = exp(sum);
#else
        seen[lane] = select(0.0, exp(sum), start < first);
#end
        left[lane] = select(0.0, exp(sum_at(last, head) - sum), first + lane <= last && bounds[last].x <= t);
    }
    workgroupBarrier();
}

// What is left behind the chunk of the state before it.
fn kept_of(first: u32) -> f32 {
    return seen[count_of(first) - 1u];
}

// D[i, j]: what is left at token i of what token j <= i wrote, 0 between samples.
fn decay(first: u32, i: u32, j: u32) -> f32 {
    return select(0.0, exp(sums[i] - sums[j]), j <= i && starts[i] <= first + j);
}
