// Attention of shaders/attention/tiled.wgsl on cooperative matrices of 16×16: blocks of 64 queries against blocks of 32 or 64 keys. q, k and v come
// from shaders/heads/coop16.wgsl and are read as matrices straight from memory. Scores pass through workgroup memory. That stays below 18 KiB,
// unless registers bound the workgroups on a multiprocessor already. Each row of scores is reduced by a reference of its own; results are
// rescaled only where a score exceeds the reference by more than RAISE (FlashAttention-4, section 3).
enable f16;
enable wgpu_cooperative_matrix;
#import common/matrix_at
#import common/seen
#import common/softcap

// Twin of `Params` in src/ops/attention/coop16.rs.
struct Params {
    rows: u32,          // T
    tiles: u32,         // stride between columns of matrices: T/16 or more
    heads: u32,         // H
    kv_heads: u32,      // G
    window: u32,        // 0: none
    scale: f32,         // undoes the scaling of q·k
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> q: array<vec4<f16>>;          // [H·K/16, T/16, 16, 16]
@group(0) @binding(2) var<storage, read> k: array<vec4<f16>>;          // [G·K/16, T/16, 16, 16]
@group(0) @binding(3) var<storage, read> v: array<vec4<f16>>;          // [G·K/16, T/16, 16, 16]
@group(0) @binding(4) var<storage, read> bounds: array<vec2<u32>>;     // start and end row of each token's sample [T]
@group(0) @binding(5) var<storage, read_write> row_lse: array<f32>;    // [T, H]
#if {MATRICES}
@group(0) @binding(6) var<storage, read_write> result: array<vec4<f16>>; // [H·K/16, T/16, 16, 16]
@group(0) @binding(7) var<storage, read_write> factors: array<f32>;    // of its rows: 1, because means of values fit into f16
#else
@group(0) @binding(6) var<storage, read_write> result: array<vec4<f32>>; // [T, H, K]
#end
#if {SINKS}
@group(0) @binding(8) var<storage, read> sinks: array<f32>;            // one more score of each head, without a value [H]
#end

const QUERIES: u32 = 64u;
const KEYS: u32 = {KEYS}u;
const KEY_TILES: u32 = KEYS / 16u;
const THREADS: u32 = {SUBGROUPS}u * 32u;
const SHARES: u32 = THREADS / QUERIES;      // threads that share a row of scores
const DEPTH: u32 = {DEPTH}u;                // matrices over a head: K/16
const SCORE_PITCH: u32 = KEYS / 4u + 1u;                // vec4s of a row of scores
const WEIGHT_PITCH: u32 = KEYS / 4u + 2u;              // vec4s of a row of weights
const BLOCK: u32 = 64u;                     // where blocks of keys begin
const LOWEST: f32 = -1e30;
const RAISE: f32 = 8.0;                     // e^8 is far below the largest f16

var<workgroup> scores: array<vec4<f32>, {SCORES}>;       // [queries, keys]; at the end, 16×16 results of each subgroup
var<workgroup> weights: array<vec4<f16>, {WEIGHTS}>;      // [queries, keys]
var<workgroup> shared_rows: array<vec2<f32>, 256>;
// Whether a reference was too low: x for an unused one, y for a used one. With fewer components, the arrays above may be aligned to 8 bytes,
// as WGSL does for vec4<f16>, while drivers need 16 to load matrices.
var<workgroup> raised: vec4<u32>;

fn kv_head(head: u32) -> u32 {
    return head / (params.heads / params.kv_heads);
}

fn start_of(row: u32) -> u32 {
    return bounds[min(row, params.rows - 1u)].x;
}

// The first key that any query of the block from `query0` on sees, rounded down to a block.
fn first_key(query0: u32) -> u32 {
    return first_of(query0, bounds[query0].x) / BLOCK * BLOCK;
}

// Whether every query of one block sees every key of the other.
fn all_seen(query0: u32, key0: u32) -> bool {
    let last = query0 + QUERIES - 1u;
    return key0 + KEYS <= query0 + 1u && last < params.rows && first_of(last, start_of(last)) <= key0;
}

// Which of four neighbouring keys a query sees.
fn visible4(query: u32, first: u32, key: u32) -> vec4<bool> {
    let keys = vec4<u32>(key) + vec4<u32>(0u, 1u, 2u, 3u);
    return (keys >= vec4<u32>(first)) & (keys <= vec4<u32>(query)) & vec4<bool>(query < params.rows);
}

// scores = q·k, without the scale. Loads limit this function. Where there are more subgroups than blocks of two by two matrices, pairs of
// subgroups take the same block, each over one half of the head, so that every loaded matrix serves two products. Each subgroup then
// passes one row of its block on, and adds the row that it gets to the other.
fn make_scores(query0: u32, key0: u32, head: u32, lane: u32) {
    let part = lane / 32u % {SPLIT}u;
    let block = lane / 32u / {SPLIT}u;
    let row = block / (KEY_TILES / {BCOLS}u) * {AROWS}u;
    let col = block % (KEY_TILES / {BCOLS}u) * {BCOLS}u;
#for a in 0..{AROWS}
    let row{a} = row + ({a}u ^ part);
#for b in 0..{BCOLS}
    var s{a}{b} = coop_mat16x16<f32, C>();
#end
#end
    for (var d = part * (DEPTH / {SPLIT}u); d < (part + 1u) * (DEPTH / {SPLIT}u); d += {AHEAD}u) {
#for n in 0..{AHEAD}
#for a in 0..{AROWS}
        let a{n}{a} = coopLoadT<coop_mat16x16<f16, A>>(&q[matrix_at(query0 / 16u + row{a}, head * DEPTH + d + {n}u)], 4u);
#end
#for b in 0..{BCOLS}
        let b{n}{b} = coopLoad<coop_mat16x16<f16, B>>(&k[matrix_at(key0 / 16u + col + {b}u, kv_head(head) * DEPTH + d + {n}u)], 4u);
#end
#end
#for n in 0..{AHEAD}
#for a in 0..{AROWS}
#for b in 0..{BCOLS}
        s{a}{b} = coopMultiplyAdd(a{n}{a}, b{n}{b}, s{a}{b});
#end
#end
#end
    }
    let pitch = SCORE_PITCH;
#for a in 0..{AROWS}
#for b in 0..{BCOLS}
    let at{a}{b} = row{a} * 16u * SCORE_PITCH + (col + {b}u) * 4u;
#end
#end
#if {PAIRS}
#for b in 0..{BCOLS}
    let handed{b} = s1{b};
    coopStoreT(handed{b}, &scores[at1{b}], pitch);
#end
    workgroupBarrier();
#for b in 0..{BCOLS}
    s0{b} = s0{b} + coopLoadT<coop_mat16x16<f32, C>>(&scores[at0{b}], pitch);
#end
#end
#for a in 0..{STORED}
#for b in 0..{BCOLS}
    let w{a}{b} = s{a}{b};
    coopStoreT(w{a}{b}, &scores[at{a}{b}], pitch);
#end
#end
    workgroupBarrier();
}

// weights = exp(q·k − most). Returns the sum of this thread's weights, and sets `raised` where `most` is too low.
fn store_weights(query0: u32, key0: u32, first: u32, most: f32, lane: u32) -> f32 {
    let row = lane / SHARES;
    let all = all_seen(query0, key0);
    var sum = 0.0;
    var above = false;
    for (var c = lane % SHARES; c < KEYS / 4u; c += SHARES) {
#if {CAP}
        let s = capped(params.scale * scores[row * SCORE_PITCH + c]) - most;
#else
        let s = params.scale * scores[row * SCORE_PITCH + c] - most;
#end
        var p = exp(s);
        var high = s > vec4<f32>(RAISE);
        if !all {
            let seen = visible4(query0 + row, first, key0 + c * 4u);
            p = select(vec4<f32>(), p, seen);
            high = high & seen;
        }
        above = above || any(high);
        sum += p.x + p.y + p.z + p.w;
        weights[row * WEIGHT_PITCH + c] = vec4<f16>(p);
    }
    // All threads that write here write the same value.
    if above && most == LOWEST {
        raised.x = 1u;
    }
    if above && most > LOWEST {
        raised.y = 1u;
    }
    return sum;
}

// The largest score of this thread's row in the block, and `most` if that is larger.
fn raise(query0: u32, key0: u32, first: u32, most: f32, lane: u32) -> f32 {
    let row = lane / SHARES;
    var top = most;
    for (var c = lane % SHARES; c < KEYS / 4u; c += SHARES) {
#if {CAP}
        let s = capped(params.scale * scores[row * SCORE_PITCH + c]);
#else
        let s = params.scale * scores[row * SCORE_PITCH + c];
#end
        let seen = select(vec4<f32>(LOWEST), s, visible4(query0 + row, first, key0 + c * 4u));
        top = max(top, max(max(seen.x, seen.y), max(seen.z, seen.w)));
    }
    shared_rows[lane].y = top;
    workgroupBarrier();
    for (var i = 0u; i < SHARES; i++) {
        top = max(top, shared_rows[row * SHARES + i].y);
    }
    workgroupBarrier();
    return top;
}

// Multiplies each row of the 16×16 results of this subgroup in `scores` by its factor.
fn scale_finished(row0: u32, lane: u32) {
    for (var i = lane % 32u; i < 64u; i += 32u) {
        scores[lane / 32u * 80u + i / 4u * 5u + i % 4u] *= shared_rows[row0 + i / 4u].x;
    }
}

// Four results of row `i / 4` of the 16×16 results of this subgroup in `scores`.
fn finished(i: u32, lane: u32) -> vec4<f32> {
    return scores[lane / 32u * 80u + i / 4u * 5u + i % 4u];
}

// Stores 16×16 results, each row times its factor. Packed results are zero past the last row.
fn store(block: u32, row0: u32, head: u32, col4: u32, lane: u32) {
    for (var i = lane % 32u; i < 64u; i += 32u) {
        let row = row0 + i / 4u;
        let value = shared_rows[row - block].x * finished(i, lane);
#if {MATRICES}
        if row0 < params.rows {
            result[matrix_at(row0 / 16u, head * DEPTH + col4 / 4u) + i] = select(vec4<f16>(), vec4<f16>(value), row < params.rows);
        }
#else
        if row < params.rows {
            result[(row * params.heads + head) * DEPTH * 4u + col4 + i % 4u] = value;
        }
#end
    }
}

@compute @workgroup_size({THREADS})
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    // The last blocks see the most keys, so they start first.
    let query0 = (groups.y - 1u - group.y) * QUERIES;
    let head = group.x;
    let row = lane / SHARES;
    let query = query0 + row;
    let first = first_of(query, start_of(query));
    let key_begin = first_key(query0);
    let turns = (min(query0 + QUERIES, params.rows) - key_begin + KEYS - 1u) / KEYS;
    var most = LOWEST;
    var sum = 0.0;
    if lane == 0u {
        raised = vec4<u32>();
    }
#for i in 0..4
#for j in 0..{OUT}
    var c{i}{j} = coop_mat16x16<f32, C>();
#end
#end
    let column = lane / 32u * {OUT}u;
    let at = lane / 32u * 80u;
    let narrow = 5u;
    // Starts with the keys next to the queries: their scores are a good reference.
    for (var turn = 1u; turn <= turns; turn++) {
        let key0 = key_begin + (turns - turn) * KEYS;
        make_scores(query0, key0, head, lane);
        var added = store_weights(query0, key0, first, most, lane);
        let too_low = workgroupUniformLoad(&raised) != vec4<u32>();
        if any(too_low) {
            if lane == 0u {
                raised = vec4<u32>();
            }
            let before = most;
            let higher = raise(query0, key0, first, before, lane);
            // The references in use stay where results need no rescaling.
            most = select(higher, before, !too_low.y && before > LOWEST);
            let factor = exp(before - most);
            sum *= factor;
            if too_low.y {
                if lane % SHARES == 0u {
                    shared_rows[row].x = factor;
                }
                // Subgroups scale rows of each other.
                workgroupBarrier();
#for i in 0..4
#for j in 0..{OUT}
                let v{i}{j} = c{i}{j};
                coopStoreT(v{i}{j}, &scores[at], narrow);
                subgroupBarrier();
                scale_finished({i}u * 16u, lane);
                subgroupBarrier();
                c{i}{j} = coopLoadT<coop_mat16x16<f32, C>>(&scores[at], narrow);
                workgroupBarrier();
#end
#end
                make_scores(query0, key0, head, lane);
            }
            added = store_weights(query0, key0, first, most, lane);
            workgroupBarrier();
        }
        sum += added;
        for (var t = 0u; t < KEY_TILES; t++) {
#for i in 0..4
            let p{i} = coopLoadT<coop_mat16x16<f16, A>>(&weights[{i}u * 16u * WEIGHT_PITCH + t * 4u], WEIGHT_PITCH);
#end
#for j in 0..{OUT}
            let v{j} = coopLoadT<coop_mat16x16<f16, B>>(&v[matrix_at(key0 / 16u + t, kv_head(head) * DEPTH + column + {j}u)], 4u);
#end
#for i in 0..4
#for j in 0..{OUT}
            c{i}{j} = coopMultiplyAdd(p{i}, v{j}, c{i}{j});
#end
#end
        }
    }
    shared_rows[lane].y = sum;
    workgroupBarrier();
    sum = 0.0;
    for (var i = 0u; i < SHARES; i++) {
        sum += shared_rows[row * SHARES + i].y;
    }
#if {SINKS}
    let before = most;
    most = max(before, sinks[head]);
    let kept = exp(before - most);
    sum = sum * kept + exp(sinks[head] - most);
#end
    if lane % SHARES == 0u {
#if {SINKS}
        shared_rows[row].x = kept / max(sum, 1e-30);
#else
        shared_rows[row].x = 1.0 / max(sum, 1e-30);
#end
        if query < params.rows {
            row_lse[query * params.heads + head] = most + log(max(sum, 1e-30));
#if {MATRICES}
            factors[query] = 1.0;
#end
        }
    }
    workgroupBarrier();
#for i in 0..4
#for j in 0..{OUT}
    let v{i}{j} = c{i}{j};
    coopStoreT(v{i}{j}, &scores[at], narrow);
    subgroupBarrier();
    store(query0, query0 + {i}u * 16u, head, (column + {j}u) * 4u, lane);
    subgroupBarrier();
#end
#end
}
