// Attention of a few new tokens over cached keys and values; scores are never stored. A workgroup takes QUERIES queries that share a
// key/value head (heads first, then tokens) against one of `splits` parts of the keys, 64 keys at a time.
// Key j is visible to the token at position i if j <= i and i − j < window. Softmax is updated as keys come (Milakov & Gimelshein 2018).
// With several parts, each stores its sum, maximum and weight, and `combine` adds them up in order.
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

override HEAD_SIZE4: u32;   // K / 4, at most 128
override QUERIES: u32;      // queries of a workgroup: at most 8, or 4 where K is over 256

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;          // [T, q_stride]
@group(0) @binding(2) var<storage, read> cache: array<vec4<f32>>;      // [ring, keys and values, G, K]
@group(0) @binding(3) var<storage, read> past: array<u32>;             // tokens in the cache before these [1]
@group(0) @binding(4) var<storage, read_write> result: array<vec4<f32>>; // [T, H, K]
@group(0) @binding(5) var<storage, read_write> parts: array<vec4<f32>>;  // [T, H, S, K]
@group(0) @binding(6) var<storage, read_write> weights: array<vec2<f32>>; // maximum and Σ exp(s − maximum) [T, H, S]
#if {SINKS}
@group(0) @binding(7) var<storage, read> sinks: array<f32>;            // one more score of each head, without a value [H]
#end

const KEYS: u32 = 64u;
const MASKED: f32 = -1e30;

var<workgroup> stage_q: array<vec4<f32>, 512>;  // [QUERIES, K]
var<workgroup> block_p: array<f32, 512>;        // [QUERIES, KEYS]
var<workgroup> eighths: array<f32, 64>;         // eighths of a row of block_p
var<workgroup> row_values: array<f32, 8>;       // per query: factor of the sums so far, then their weight

// A query of the workgroup.
struct Query {
    there: bool,
    row: u32,       // token
    head: u32,
    position: u32,
}

fn query(i: u32, block: u32, kv_head: u32) -> Query {
    let per_kv = params.heads / params.kv_heads;
    let index = block * QUERIES + i;
    let row = min(index / per_kv, params.rows - 1u);
    return Query(i < QUERIES && index < params.rows * per_kv, row, kv_head * per_kv + index % per_kv, past[0] + row);
}

fn first_visible(position: u32) -> u32 {
    if params.window != 0u && position >= params.window {
        return position + 1u - params.window;
    }
    return 0u;
}

fn cache_at(key: u32, half: u32, kv_head: u32) -> u32 {
    return ((key % params.ring * 2u + half) * params.kv_heads + kv_head) * HEAD_SIZE4;
}

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let kv_head = group.y;
    let split = group.z;
    for (var n = lane; n < QUERIES * HEAD_SIZE4; n += 64u) {
        let one = query(n / HEAD_SIZE4, group.x, kv_head);
        stage_q[n] = q[one.row * params.q_stride4 + one.head * params.q_size4 + n % HEAD_SIZE4];
    }
    let first = first_visible(query(0u, group.x, kv_head).position);
    let end = query(QUERIES - 1u, group.x, kv_head).position + 1u;
    let share = ((end - first + params.splits - 1u) / params.splits + KEYS - 1u) / KEYS * KEYS;
    let begin = min(first + split * share, end);
    let stop = min(begin + share, end);

    // Softmax: eight threads per query, eight keys each. Sums: a thread has columns lane and lane + 64 of every query.
    let mine = query(lane / 8u, group.x, kv_head);
    let mine_at = min(lane / 8u, QUERIES - 1u) * KEYS + lane % 8u;
    var largest = MASKED;
    var weight = 0.0;
    var acc: array<vec4<f32>, 8>;
    let columns = (HEAD_SIZE4 + 63u) / 64u;
    for (var key0 = begin; key0 < stop; key0 += KEYS) {
        workgroupBarrier();
        // Scores: one thread per key.
        let key = key0 + lane;
        var s: array<f32, 8>;
        if key < stop {
            let at = cache_at(key, 0u, kv_head);
            for (var c = 0u; c < HEAD_SIZE4; c++) {
                let k = cache[at + c];
                for (var i = 0u; i < QUERIES; i++) {
                    s[i] += dot(stage_q[i * HEAD_SIZE4 + c], k);
                }
            }
        }
        for (var i = 0u; i < QUERIES; i++) {
            let one = query(i, group.x, kv_head);
            let visible = key < stop && key <= one.position && key >= first_visible(one.position);
            block_p[i * KEYS + lane] = select(MASKED, s[i], visible);
        }
        workgroupBarrier();
        var of_eight = MASKED;
        for (var j = 0u; j < KEYS; j += 8u) {
            of_eight = max(of_eight, block_p[mine_at + j]);
        }
        eighths[lane] = of_eight;
        workgroupBarrier();
        var new_largest = largest;
        for (var j = 0u; j < 8u; j++) {
            new_largest = max(new_largest, eighths[lane / 8u * 8u + j]);
        }
        workgroupBarrier();
        var sum = 0.0;
        if lane / 8u < QUERIES {
            for (var j = 0u; j < KEYS; j += 8u) {
                let score = block_p[mine_at + j];
                let p = select(0.0, exp(score - new_largest), score > MASKED);
                block_p[mine_at + j] = p;
                sum += p;
            }
        }
        eighths[lane] = sum;
        let factor = exp(largest - new_largest);
        largest = new_largest;
        if lane % 8u == 0u {
            row_values[lane / 8u] = factor;
        }
        workgroupBarrier();
        weight *= factor;
        for (var j = 0u; j < 8u; j++) {
            weight += eighths[lane / 8u * 8u + j];
        }
        for (var i = 0u; i < QUERIES; i++) {
            for (var n = 0u; n < columns; n++) {
                acc[i * columns + n] *= row_values[i];
            }
        }
        let keys = min(KEYS, stop - key0);
        for (var n = 0u; n < columns; n++) {
            let c = lane + 64u * n;
            if c < HEAD_SIZE4 {
                for (var j = 0u; j < keys; j++) {
                    let v = cache[cache_at(key0 + j, 1u, kv_head) + c];
                    for (var i = 0u; i < QUERIES; i++) {
                        acc[i * columns + n] += block_p[i * KEYS + j] * v;
                    }
                }
            }
        }
    }
    workgroupBarrier();
    if lane % 8u == 0u {
#if {SINKS}
        row_values[lane / 8u] = weight + exp(min(sinks[mine.head] - largest, 80.0)); // beyond, all other weights are 0
#else
        row_values[lane / 8u] = weight;
#end
        if params.splits > 1u && mine.there {
            weights[(mine.row * params.heads + mine.head) * params.splits + split] = vec2<f32>(largest, weight);
        }
    }
    workgroupBarrier();
    for (var i = 0u; i < QUERIES; i++) {
        let one = query(i, group.x, kv_head);
        let row_head = one.row * params.heads + one.head;
        for (var n = 0u; n < columns; n++) {
            let c = lane + 64u * n;
            if !one.there || c >= HEAD_SIZE4 {
                continue;
            }
            if params.splits > 1u {
                parts[(row_head * params.splits + split) * HEAD_SIZE4 + c] = acc[i * columns + n];
            } else {
                result[row_head * HEAD_SIZE4 + c] = acc[i * columns + n] / row_values[i];
            }
        }
    }
}

// One workgroup per token and head. Every thread sums the few weights itself, instead of waiting for the others.
@compute @workgroup_size(64)
fn combine(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row_head = group.y * params.heads + group.x;
    let at = row_head * params.splits;
    var largest = MASKED;
    for (var s = 0u; s < params.splits; s++) {
        largest = max(largest, weights[at + s].x);
    }
    var total = 0.0;
    for (var s = 0u; s < params.splits; s++) {
        total += weights[at + s].y * exp(weights[at + s].x - largest);
    }
#if {SINKS}
    total += exp(min(sinks[group.x] - largest, 80.0));
#end
    for (var c = lane; c < HEAD_SIZE4; c += 64u) {
        var sum = vec4<f32>();
        for (var s = 0u; s < params.splits; s++) {
            let part = weights[at + s];
            if part.y > 0.0 {
                sum += exp(part.x - largest) * parts[(at + s) * HEAD_SIZE4 + c];
            }
        }
        result[row_head * HEAD_SIZE4 + c] = sum / total;
    }
}
