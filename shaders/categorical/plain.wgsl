// Draws an index of every row from the softmax of its values at a temperature, by inverse transform in the order of the indices; or takes
// the index of the largest value, the first of equal ones. `forward` sums each segment of a row; `finish` finds the segment, and the value
// in it, at which the running sum passes the row's point. A value of NaN or infinity makes the sum NaN.
#import common/log_sum

const SEGMENTS: u32 = 64u;
const NOTHING: f32 = -3.40282e38;

// Twin of `Params` in src/ops/categorical/mod.rs.
struct Params {
    count: u32,
    stride4: u32,       // vec4s from one row of values to the next
    segment4: u32,      // vec4s of a segment
}

// Twin of `Draw` in src/ops/categorical/mod.rs.
struct Draw {
    point: f32,         // from 0 to 1; below 0: the likeliest
    coldness: f32,      // 1/temperature
}

struct Part {
    largest: f32,
    sum: f32,           // Σ exp(coldness·(value − largest))
    index: u32,         // of the largest
}

// Twin of `Drawn` in src/ops/categorical/mod.rs.
struct Drawn {
    index: u32,
    value: f32,
    likeliest: u32,
    largest: f32,
    sum: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> values: array<vec4<f32>>;     // [rows, count]
@group(0) @binding(2) var<storage, read> draws: array<Draw>;           // [rows]
@group(0) @binding(3) var<storage, read_write> parts: array<Part>;     // [rows, SEGMENTS]
@group(0) @binding(4) var<storage, read_write> results: array<Drawn>;  // [rows]

var<workgroup> found: array<Part, 64>;
var<workgroup> sums: array<f32, 64>;
var<workgroup> chosen: u32;
var<workgroup> rest: f32;                          // from the beginning of the chosen part to the point

// The larger of two, with the sum of both.
fn joined_parts(a: Part, b: Part, coldness: f32) -> Part {
    let both = joined(vec2<f32>(a.largest, a.sum), vec2<f32>(b.largest, b.sum), coldness);
    let second = b.largest > a.largest || (b.largest == a.largest && b.index < a.index);
    return Part(both.x, both.y, select(a.index, b.index, second));
}

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = group.y * params.stride4;
    let coldness = draws[group.y].coldness;
    let begin = group.x * params.segment4;
    let end = min(begin + params.segment4, (params.count + 3u) / 4u);
    var mine = Part(NOTHING, 0.0, 0u);
    for (var c = begin + lane; c < end; c += 64u) {
        let there = vec4<u32>(c * 4u) + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(params.count);
        let z = select(vec4<f32>(NOTHING), values[at + c], there);
        let before = mine.largest;
        for (var j = 0u; j < 4u; j++) {
            if z[j] > mine.largest {
                mine.largest = z[j];
                mine.index = 4u * c + j;
            }
        }
        let p = select(vec4<f32>(), exp((z - mine.largest) * coldness), there);
        mine.sum = mine.sum * exp((before - mine.largest) * coldness) + sum_of(p);
    }
    found[lane] = mine;
    for (var step = 32u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if lane < step {
            found[lane] = joined_parts(found[lane], found[lane + step], coldness);
        }
    }
    if lane == 0u {
        parts[group.y * SEGMENTS + group.x] = found[0];
    }
}

// Chooses the first of the 64 `sums` at whose end the running sum passes `point`, or the last that is not zero if rounding keeps it below.
fn choose(point: f32, lane: u32) {
    workgroupBarrier();
    if lane == 0u {
        var sum = 0.0;
        var here = 0u;
        var start = 0.0;
        for (var i = 0u; i < 64u && !(sum > point); i++) {
            if sums[i] > 0.0 {
                here = i;
                start = sum;
                sum += sums[i];
            }
        }
        chosen = here;
        rest = point - start;
    }
    workgroupBarrier();
}

@compute @workgroup_size(64)
fn finish(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x;
    let at = row * params.stride4;
    let draw = draws[row];
    let own = parts[row * SEGMENTS + lane];
    found[lane] = own;
    for (var step = 32u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if lane < step {
            found[lane] = joined_parts(found[lane], found[lane + step], draw.coldness);
        }
    }
    workgroupBarrier();
    let whole = found[0];
    sums[lane] = own.sum * exp((own.largest - whole.largest) * draw.coldness);
    choose(draw.point * whole.sum, lane);
    // A lane sums values that follow one another.
    let share = (params.segment4 + 63u) / 64u;
    let limit = min((chosen + 1u) * params.segment4, (params.count + 3u) / 4u);
    let begin = min(chosen * params.segment4 + lane * share, limit);
    let end = min(begin + share, limit);
    let target_sum = rest;
    var sum = 0.0;
    for (var c = begin; c < end; c++) {
        let there = vec4<u32>(c * 4u) + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(params.count);
        sum += sum_of(select(vec4<f32>(), exp((values[at + c] - whole.largest) * draw.coldness), there));
    }
    workgroupBarrier();
    sums[lane] = sum;
    choose(target_sum, lane);
    if lane != chosen {
        return;
    }
    var result = Drawn(whole.index, whole.largest, whole.index, whole.largest, whole.sum);
    var passed = 0.0;
    for (var i = 4u * begin; draw.point >= 0.0 && i < min(4u * end, params.count) && !(passed > rest); i++) {
        let value = values[at + i / 4u][i % 4u];
        let p = exp((value - whole.largest) * draw.coldness);
        if p > 0.0 {
            result.index = i;
            result.value = value;
            passed += p;
        }
    }
    results[row] = result;
}
