// The likeliest values of every row, and the sum that turns values into probabilities; one workgroup per row.
// A row's result: its largest value, Σ exp(value − largest), the value of its target, and the `top` largest, index and value. Equal values
// are ordered by index. NaN is never among the largest, but makes the sum NaN.
// A round finds the next 256 largest, or as many as are wanted: a radix selection, eight bits at a time, of the last one's key, which orders
// values, and then of its index. So a row is read a few times, however many are wanted.
#import common/log_sum

const THREADS: u32 = 256u;
const NOTHING: f32 = -3.40282e38;
const LAST: u32 = 0xffffffffu;

// Twin of `Params` in src/ops/argmax/top.rs.
struct Params {
    count: u32,
    stride4: u32,       // vec4s from one row of values to the next
    top: u32,
    words: u32,         // words of one row's result
    first: u32,         // place of the first row in targets and results
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> values: array<vec4<f32>>;   // [rows, count]
@group(0) @binding(2) var<storage, read> targets: array<u32>;        // [N]
@group(0) @binding(3) var<storage, read_write> results: array<u32>;  // [N, words]

var<workgroup> partial: array<vec2<f32>, THREADS>; // the largest, and the sum
var<workgroup> counts: array<atomic<u32>, 256>;
var<workgroup> digit: u32;                         // of the last one wanted
var<workgroup> wanted: u32;                        // still to be found among those that share its digits so far
var<workgroup> sharing: u32;                       // those that share them
var<workgroup> found_count: atomic<u32>;
var<workgroup> found_keys: array<u32, THREADS>;
var<workgroup> found_indices: array<u32, THREADS>;

// A larger value has a larger key; 0 is no number, or infinite.
fn key(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    let magnitude = bits & 0x7fffffffu;
    if magnitude >= 0x7f7fffffu {
        return 0u;
    }
    if magnitude == 0u {
        return 0x80000000u;
    }
    return select(bits | 0x80000000u, ~bits, bits >> 31u == 1u);
}

fn value_of(key: u32) -> f32 {
    return bitcast<f32>(select(~key, key & 0x7fffffffu, key >> 31u == 1u));
}

// Whether the value with key `k` at index `i` comes behind the last one, which has this key and index.
fn behind(k: u32, i: u32, last_key: u32, last_index: u32) -> bool {
    return k < last_key || (k == last_key && i > last_index);
}

// The largest value, and Σ exp(value − largest).
fn sums(at: u32, lane: u32) -> vec2<f32> {
    var largest = NOTHING;
    var sum = 0.0;
    for (var c = lane; c < (params.count + 3u) / 4u; c += THREADS) {
        let there = vec4<u32>(c * 4u) + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(params.count);
        let v = values[at + c];
        let z = select(vec4<f32>(NOTHING), v, there);
        let before = largest;
        largest = max(largest, largest_of(z));
        let p = select(vec4<f32>(), exp(v - largest), there);
        sum = sum * exp(before - largest) + (p.x + p.y) + (p.z + p.w);
    }
    partial[lane] = vec2<f32>(largest, sum);
    for (var step = THREADS / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if lane < step {
            partial[lane] = joined(partial[lane], partial[lane + step], 1.0);
        }
    }
    workgroupBarrier();
    return partial[0];
}

// The digit of the last one wanted, from `counts`, if `counted`. Keys are taken from the largest on (`descending`), indices from the smallest.
fn choose(counted: bool, descending: bool, lane: u32) {
    workgroupBarrier();
    if counted && lane == 0u {
        var left = wanted;
        for (var i = 0u; i < 256u; i++) {
            let d = select(i, 255u - i, descending);
            let here = atomicLoad(&counts[d]);
            if here >= left {
                digit = d;
                sharing = here;
                break;
            }
            left -= here;
        }
        wanted = left;
    }
    workgroupBarrier();
}

@compute @workgroup_size(256)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = group.x * params.stride4;
    let row = sums(at, lane);
    let to = (params.first + group.x) * params.words;
    if lane == 0u {
        let target_id = min(targets[params.first + group.x], params.count - 1u);
        results[to] = bitcast<u32>(row.x);
        results[to + 1u] = bitcast<u32>(row.y);
        results[to + 2u] = bitcast<u32>(values[at + target_id / 4u][target_id % 4u]);
    }
    let count4 = (params.count + 3u) / 4u;
    let most = min(params.top, params.count);
    for (var n = most + lane; n < params.top; n += THREADS) {
        results[to + 3u + 2u * n] = 0u;
        results[to + 4u + 2u * n] = bitcast<u32>(NOTHING);
    }
    // The last one of the rounds before.
    var behind_key = LAST;
    var behind_index = LAST;
    for (var done = 0u; done < most; done += THREADS) {
        let round = min(THREADS, most - done);
        workgroupBarrier();
        if lane == 0u {
            wanted = round;
            atomicStore(&found_count, 0u);
        }
        var last_key = 0u;
        for (var shift = 24i; shift >= 0i; shift -= 8i) {
            atomicStore(&counts[lane], 0u);
            workgroupBarrier();
            for (var c = lane; c < count4; c += THREADS) {
                let v = values[at + c];
                for (var j = 0u; j < 4u; j++) {
                    let i = 4u * c + j;
                    let k = key(v[j]);
                    let follows = behind(k, i, behind_key, behind_index);
                    // Two shifts, as one by 32 is not defined.
                    if follows && i < params.count && ((k >> u32(shift)) >> 8u) == last_key {
                        atomicAdd(&counts[(k >> u32(shift)) & 255u], 1u);
                    }
                }
            }
            choose(true, true, lane);
            last_key = (last_key << 8u) | digit;
        }
        var last_index = 0u;
        for (var shift = 24i; shift >= 0i; shift -= 8i) {
            // Almost always all of those with this key are wanted.
            let some = wanted < sharing;
            atomicStore(&counts[lane], 0u);
            workgroupBarrier();
            for (var c = lane; some && c < count4; c += THREADS) {
                let v = values[at + c];
                for (var j = 0u; j < 4u; j++) {
                    let i = 4u * c + j;
                    let follows = behind(last_key, i, behind_key, behind_index);
                    let same = key(v[j]) == last_key && ((i >> u32(shift)) >> 8u) == last_index;
                    if follows && same && i < params.count {
                        atomicAdd(&counts[(i >> u32(shift)) & 255u], 1u);
                    }
                }
            }
            choose(some, false, lane);
            last_index = (last_index << 8u) | select(255u, digit, some);
        }
        for (var c = lane; c < count4; c += THREADS) {
            let v = values[at + c];
            for (var j = 0u; j < 4u; j++) {
                let i = 4u * c + j;
                let k = key(v[j]);
                let follows = behind(k, i, behind_key, behind_index);
                if follows && !behind(k, i, last_key, last_index) && i < params.count {
                    let slot = atomicAdd(&found_count, 1u);
                    found_keys[slot] = k;
                    found_indices[slot] = i;
                }
            }
        }
        workgroupBarrier();
        // They were found in no order. Each counts those before it.
        if lane < round {
            let k = found_keys[lane];
            let i = found_indices[lane];
            var place = 0u;
            for (var n = 0u; n < round; n++) {
                let other = found_keys[n];
                place += u32(other > k || (other == k && found_indices[n] < i));
            }
            let is_number = k > 0u;
            results[to + 3u + 2u * (done + place)] = select(0u, i, is_number);
            results[to + 4u + 2u * (done + place)] = bitcast<u32>(select(NOTHING, value_of(k), is_number));
        }
        behind_key = last_key;
        behind_index = last_index;
    }
}
