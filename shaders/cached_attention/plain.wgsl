// Attention of a few new tokens over cached keys and values; scores are never stored. A workgroup takes QUERIES queries that share a
// key/value head (heads first, then tokens) against one of `splits` parts of the keys, KEYS keys at a time. A thread issues LOADS loads at
// a time: each would otherwise wait for the one before.
// Key j is visible to the token at position i if j <= i and i − j < window. Softmax is updated as keys come (Milakov & Gimelshein 2018).
// With EACH every token is of a sequence of its own, and a workgroup has queries of one token.
// With EARLY, which EACH excludes, the kernel starts before the queries are there, and loads earlier keys and values until then.
// With several parts, each stores its sum, maximum and weight, and `combine` adds them up in order; with ARRIVING, the last workgroup of a
// block of queries does.
struct Params {
    rows: u32,          // T
    heads: u32,         // H
    kv_heads: u32,      // G
    window: u32,        // 0: none
    ring: u32,          // rows of the cache: token p is in row p % ring
    q_stride4: u32,     // vec4s of a row of products, which starts with the queries
    q_size4: u32,       // vec4s from one query to the next
    splits: u32,        // parts of the keys, S
}

#if {EARLY}
#import common/ahead
#end
override HEAD_SIZE4: u32;   // K / 4, at most 128
override QUERIES: u32;      // queries of a workgroup: at most 8, or 4 where K is over 256

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;          // [T, q_stride]
@group(0) @binding(2) var<storage, read> cache: array<vec4<f32>>;      // [ring, keys and values, G, K]
#if {EACH}
#import common/steps
@group(0) @binding(3) var<storage, read> steps: array<vec2<u32>>;      // tokens before this one, and its sequence [T]
#else
@group(0) @binding(3) var<storage, read> past: array<u32>;             // tokens in the cache before these [1]
#end
@group(0) @binding(4) var<storage, read_write> result: array<vec4<f32>>; // [T, H, K]
#if {ARRIVING}
@group(0) @binding(5) var<storage, read_write> parts: array<atomic<u32>>;   // f32 values [T, H, S, 4, K/4]
@group(0) @binding(6) var<storage, read_write> weights: array<atomic<u32>>; // f32 values [T, H, S, 2]
@group(0) @binding(8) var<storage, read_write> arrivals: array<atomic<u32>>; // of blocks of queries
#else
@group(0) @binding(5) var<storage, read_write> parts: array<vec4<f32>>;  // [T, H, S, K]
@group(0) @binding(6) var<storage, read_write> weights: array<vec2<f32>>; // maximum and Σ exp(s − maximum) [T, H, S]
#end
#if {SINKS}
@group(0) @binding(7) var<storage, read> sinks: array<f32>;            // one more score of each head, without a value [H]
#end

#if {ARRIVING}
#import common/arrivals

fn keep_part(part: u32, column: u32, sum: vec4<f32>) {
    let at = part * 4u * HEAD_SIZE4 + column;
#for i in 0..4
    atomicStore(&parts[at + {i}u * HEAD_SIZE4], bitcast<u32>(sum[{i}]));
#end
}

fn part_at(part: u32, column: u32) -> vec4<f32> {
    let at = part * 4u * HEAD_SIZE4 + column;
#for i in 0..4
    let value{i} = atomicLoad(&parts[at + {i}u * HEAD_SIZE4]);
#end
    return bitcast<vec4<f32>>(vec4<u32>(value0, value1, value2, value3));
}

fn keep_weight(part: u32, weight: vec2<f32>) {
    atomicStore(&weights[2u * part], bitcast<u32>(weight.x));
    atomicStore(&weights[2u * part + 1u], bitcast<u32>(weight.y));
}

fn weight_at(part: u32) -> vec2<f32> {
    return bitcast<vec2<f32>>(vec2<u32>(atomicLoad(&weights[2u * part]), atomicLoad(&weights[2u * part + 1u])));
}
#else
fn keep_part(part: u32, column: u32, sum: vec4<f32>) {
    parts[part * HEAD_SIZE4 + column] = sum;
}

fn part_at(part: u32, column: u32) -> vec4<f32> {
    return parts[part * HEAD_SIZE4 + column];
}

fn keep_weight(part: u32, weight: vec2<f32>) {
    weights[part] = weight;
}

fn weight_at(part: u32) -> vec2<f32> {
    return weights[part];
}
#end

const THREADS: u32 = {THREADS}u;
const TOGETHER: u32 = {TOGETHER}u;                  // threads that share the score of a key
const KEYS: u32 = THREADS / TOGETHER;
const MASKED: f32 = -1e30;

var<workgroup> stage_q: array<vec4<f32>, 512>;      // [QUERIES, K], then sums of groups of threads
var<workgroup> scores: array<f32, {SCORES}>;        // [QUERIES, KEYS, TOGETHER]; of a key, the first of them becomes its weight
var<workgroup> eighths: array<f32, 64>;             // of a query's keys
var<workgroup> row_values: array<f32, 8>;           // per query: factor of the sums so far, then their weight

// A query of the workgroup.
struct Query {
    there: bool,
    row: u32,       // token
    head: u32,
    position: u32,
}

#if {EACH}
var<private> first_row: u32; // of the cache

fn blocks_of_row() -> u32 {
    return (params.heads / params.kv_heads + QUERIES - 1u) / QUERIES;
}

#end
fn query(i: u32, block: u32, kv_head: u32) -> Query {
    let per_kv = params.heads / params.kv_heads;
#if {EACH}
    let row = block / blocks_of_row();
    let index = block % blocks_of_row() * QUERIES + i;
    return Query(i < QUERIES && index < per_kv, row, kv_head * per_kv + min(index, per_kv - 1u), steps[row].x);
#else
    let index = block * QUERIES + i;
    let row = min(index / per_kv, params.rows - 1u);
    return Query(i < QUERIES && index < params.rows * per_kv, row, kv_head * per_kv + index % per_kv, past[0] + row);
#end
}

fn first_visible(position: u32) -> u32 {
    if params.window != 0u && position >= params.window {
        return position + 1u - params.window;
    }
    return 0u;
}

fn cache_at(key: u32, half: u32, kv_head: u32) -> u32 {
#if {EACH}
    return (((first_row + key % params.ring) * 2u + half) * params.kv_heads + kv_head) * HEAD_SIZE4;
#else
    return ((key % params.ring * 2u + half) * params.kv_heads + kv_head) * HEAD_SIZE4;
#end
}

#if {EARLY}
// A key, or in the place of a new one another row, which the kernel ahead does not store.
fn seen_before(key: u32, fresh: u32) -> u32 {
    return select(params.ring - 1u, min(key, fresh - 1u), fresh > 0u);
}

#end
@compute @workgroup_size({THREADS})
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) workgroups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let kv_head = group.y;
    let split = group.z;
#if {EACH}
    let sequence = steps[group.x / blocks_of_row()].y;
    if sequence == NO_SEQUENCE {
        return;
    }
    first_row = sequence * params.ring;
#end
#if {EARLY}
    // The first keys and values are there before the queries are, but for those of the new tokens.
    let own_first = first_visible(query(0u, group.x, kv_head).position);
    let own_end = query(QUERIES - 1u, group.x, kv_head).position + 1u;
    let share = ((own_end - own_first + params.splits - 1u) / params.splits + KEYS - 1u) / KEYS * KEYS;
    let begin = min(own_first + split * share, own_end);
    let stop = min(begin + share, own_end);
    let fresh = past[0]; // the first key that the kernel ahead stores
    let early_key = cache_at(seen_before(begin + lane / TOGETHER, fresh), 0u, kv_head);
#for n in 0..{AHEAD}
    let early_k{n} = cache[early_key + min(lane % TOGETHER + {n}u * TOGETHER, HEAD_SIZE4 - 1u)];
#end
    let early_groups = min(THREADS / min(HEAD_SIZE4, THREADS), KEYS);
    let early_j = lane / min(HEAD_SIZE4, THREADS);
#for m in 0..{AHEAD}
    let early_at{m} = cache_at(seen_before(begin + early_j + {m}u * early_groups, fresh), 1u, kv_head);
    let early_v{m} = cache[early_at{m} + lane % min(HEAD_SIZE4, THREADS)];
#end
    wait_for_kernel_ahead();
#end
    for (var n = lane; n < QUERIES * HEAD_SIZE4; n += THREADS) {
        let one = query(n / HEAD_SIZE4, group.x, kv_head);
        stage_q[n] = q[one.row * params.q_stride4 + one.head * params.q_size4 + n % HEAD_SIZE4];
    }
#if !{EARLY}
    let first = first_visible(query(0u, group.x, kv_head).position);
    let end = query(QUERIES - 1u, group.x, kv_head).position + 1u;
#if {EACH}
    // As many parts as this row's keys fill, whatever the longest context. The others are empty, and add nothing.
    let parts_of_row = clamp((end - first + 255u) / 256u, 1u, params.splits);
    let share = ((end - first + parts_of_row - 1u) / parts_of_row + KEYS - 1u) / KEYS * KEYS;
#else
    let share = ((end - first + params.splits - 1u) / params.splits + KEYS - 1u) / KEYS * KEYS;
#end
    let begin = min(first + split * share, end);
    let stop = min(begin + share, end);
#end

    // Softmax: eight threads per query, an eighth of the keys each.
    let own = min(lane / 8u, QUERIES - 1u);
    let counts = lane < 8u * QUERIES;
    let mine = query(own, group.x, kv_head);
    let mine_from = max(begin, first_visible(mine.position));
    let mine_to = min(stop, mine.position + 1u);
    var largest = MASKED;
    var weight = 0.0;
    // Sums: a thread has columns `lane % across` and on of every query. If there are more threads, groups of them share the keys.
    let across = min(HEAD_SIZE4, THREADS);
    let groups = min(THREADS / across, KEYS);
    let columns = (HEAD_SIZE4 + THREADS - 1u) / THREADS;
    var acc: array<vec4<f32>, 8>;
    for (var key0 = begin; key0 < stop; key0 += KEYS) {
        workgroupBarrier();
        let key = key0 + lane / TOGETHER;
        var s: array<f32, 8>;
        if key < stop {
            let at = cache_at(key, 0u, kv_head);
#if {EARLY}
            var c_from = lane % TOGETHER;
            if key0 == begin && key < fresh {
#for n in 0..{AHEAD}
                if c_from < HEAD_SIZE4 {
                    for (var i = 0u; i < QUERIES; i++) {
                        s[i] += dot(stage_q[i * HEAD_SIZE4 + c_from], early_k{n});
                    }
                }
                c_from += TOGETHER;
#end
            }
            for (var c = c_from; c < HEAD_SIZE4; c += {LOADS}u * TOGETHER) {
#else
            for (var c = lane % TOGETHER; c < HEAD_SIZE4; c += {LOADS}u * TOGETHER) {
#end
#for n in 0..{LOADS}
                let c{n} = c + {n}u * TOGETHER;
                let k{n} = cache[at + min(c{n}, HEAD_SIZE4 - 1u)];
#end
#for n in 0..{LOADS}
                if c{n} < HEAD_SIZE4 {
                    for (var i = 0u; i < QUERIES; i++) {
                        s[i] += dot(stage_q[i * HEAD_SIZE4 + c{n}], k{n});
                    }
                }
#end
            }
        }
        for (var i = 0u; i < QUERIES; i++) {
            scores[i * THREADS + lane] = s[i];
        }
        workgroupBarrier();
        var of_eighth = MASKED;
        if counts {
            for (var j = lane % 8u; j < KEYS; j += 8u) {
                let at = own * THREADS + j * TOGETHER;
                var score = scores[at];
                for (var t = 1u; t < TOGETHER; t++) {
                    score += scores[at + t];
                }
#if {CAP}
                let cap = bitcast<f32>({CAP}u);
                score = cap * tanh(clamp(score / cap, -10.0, 10.0));
#end
                score = select(MASKED, score, key0 + j >= mine_from && key0 + j < mine_to);
                scores[at] = score;
                of_eighth = max(of_eighth, score);
            }
            eighths[lane] = of_eighth;
        }
        workgroupBarrier();
        var new_largest = largest;
        for (var j = 0u; j < 8u; j++) {
            new_largest = max(new_largest, eighths[own * 8u + j]);
        }
        workgroupBarrier();
        let factor = exp(largest - new_largest);
        largest = new_largest;
        if counts {
            var sum = 0.0;
            for (var j = lane % 8u; j < KEYS; j += 8u) {
                let at = own * THREADS + j * TOGETHER;
                let p = select(0.0, exp(scores[at] - largest), scores[at] > MASKED);
                scores[at] = p;
                sum += p;
            }
            eighths[lane] = sum;
            row_values[own] = factor;
        }
        workgroupBarrier();
        weight *= factor;
        for (var j = 0u; j < 8u; j++) {
            weight += eighths[own * 8u + j];
        }
        for (var i = 0u; i < QUERIES * columns; i++) {
            acc[i] *= row_values[i / columns];
        }
        let keys = min(KEYS, stop - key0);
        if lane < groups * across {
            for (var n = 0u; n < columns; n++) {
                let c = lane % across + THREADS * n;
                if c < HEAD_SIZE4 {
#if {EARLY}
                    var j_from = lane / across;
                    if key0 == begin && n == 0u {
#for m in 0..{AHEAD}
                        if j_from < keys {
                            var v = early_v{m};
                            if key0 + j_from >= fresh {
                                v = cache[cache_at(key0 + j_from, 1u, kv_head) + c];
                            }
                            for (var i = 0u; i < QUERIES; i++) {
                                acc[i * columns] += scores[i * THREADS + j_from * TOGETHER] * v;
                            }
                        }
                        j_from += groups;
#end
                    }
                    for (var j = j_from; j < keys; j += {LOADS}u * groups) {
#else
                    for (var j = lane / across; j < keys; j += {LOADS}u * groups) {
#end
#for m in 0..{LOADS}
                        let j{m} = j + {m}u * groups;
                        let v{m} = cache[cache_at(key0 + min(j{m}, keys - 1u), 1u, kv_head) + c];
#end
#for m in 0..{LOADS}
                        if j{m} < keys {
                            for (var i = 0u; i < QUERIES; i++) {
                                acc[i * columns + n] += scores[i * THREADS + j{m} * TOGETHER] * v{m};
                            }
                        }
#end
                    }
                }
            }
        }
    }
    workgroupBarrier();
    if counts && lane % 8u == 0u {
#if {SINKS}
        row_values[own] = weight + exp(min(sinks[mine.head] - largest, 80.0)); // beyond, all other weights are 0
#else
        row_values[own] = weight;
#end
        if params.splits > 1u && mine.there {
            keep_weight((mine.row * params.heads + mine.head) * params.splits + split, vec2<f32>(largest, weight));
        }
    }
    workgroupBarrier();
    for (var i = 0u; i < QUERIES; i++) {
        let one = query(i, group.x, kv_head);
        let row_head = one.row * params.heads + one.head;
        for (var n = 0u; n < columns; n++) {
            let sum = sum_of_groups(acc[i * columns + n], lane, across, groups);
            let c = lane + THREADS * n;
            // Not with `continue`, after which browsers take the barriers of the next turn for ones that not all threads reach.
            if one.there && c < HEAD_SIZE4 {
                if params.splits > 1u {
                    keep_part(row_head * params.splits + split, c, sum);
                } else {
                    result[row_head * HEAD_SIZE4 + c] = sum / row_values[i];
                }
            }
        }
    }
#if {ARRIVING}
    if is_last(kv_head * workgroups.x + group.x, params.splits, lane) {
        for (var i = 0u; i < QUERIES; i++) {
            let one = query(i, group.x, kv_head);
            workgroupBarrier();
            add_up(one.row * params.heads + one.head, one.head, one.there, lane);
        }
    }
#end
}

// The sum of the values of all `groups` threads of a column, for those of the first group.
fn sum_of_groups(value: vec4<f32>, lane: u32, across: u32, groups: u32) -> vec4<f32> {
    if groups == 1u {
        return value;
    }
    stage_q[lane] = value;
    workgroupBarrier();
    var sum = vec4<f32>();
    if lane < across {
        for (var g = 0u; g < groups; g++) {
            sum += stage_q[g * across + lane];
        }
    }
    workgroupBarrier();
    return sum;
}

#if !{ARRIVING}
// One workgroup per token and head.
@compute @workgroup_size({THREADS})
fn combine(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
#if {EACH}
    if steps[group.y].y == NO_SEQUENCE {
        return;
    }
#end
    add_up(group.y * params.heads + group.x, group.x, true, lane);
}

#end
// Adds up the parts of a token's head, and stores the sum where the token is there. The threads of a column share the parts. Every column has
// one or more: only kernels of 256 threads have several parts.
fn add_up(row_head: u32, head: u32, there: bool, lane: u32) {
    let at = row_head * params.splits;
    // The first parts, which wait for no weight.
    let across = min(HEAD_SIZE4, THREADS);
    let groups = THREADS / across;
    let own = lane / across;
    let own_column = lane % across;
#for m in 0..{LOADS}
    let part{m} = part_at(at + min(own + {m}u * groups, params.splits - 1u), own_column);
#end
    if lane < params.splits {
        let part = weight_at(at + lane);
        scores[lane] = part.x;
        scores[THREADS + lane] = part.y;
    }
    workgroupBarrier();
    var largest = MASKED;
    for (var s = 0u; s < params.splits; s++) {
        largest = max(largest, scores[s]);
    }
    workgroupBarrier();
    if lane < params.splits {
        scores[lane] = exp(scores[lane] - largest);
    }
    workgroupBarrier();
    var total = 0.0;
    for (var s = 0u; s < params.splits; s++) {
        total += scores[s] * scores[THREADS + s];
    }
#if {SINKS}
    total += exp(min(sinks[head] - largest, 80.0));
#end
    var sum = vec4<f32>();
    if own < groups {
#for m in 0..{LOADS}
        sum += weight_of(own + {m}u * groups) * part{m};
#end
        for (var s = own + {LOADS}u * groups; s < params.splits; s += groups) {
            sum += scores[s] * part_at(at + s, own_column);
        }
    }
    sum = sum_of_groups(sum, lane, across, groups);
    if there && lane < across {
        result[row_head * HEAD_SIZE4 + lane] = sum / total;
    }
}

// The weight of a part in `add_up`.
fn weight_of(part: u32) -> f32 {
    return select(0.0, scores[part], part < params.splits);
}
