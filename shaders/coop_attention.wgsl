// The attention of attention.wgsl on cooperative matrices, blocks of 64 queries against blocks of 32 or 64 keys. q, k and v come as
// coop_heads.wgsl leaves them, dout packed (pack.wgsl); all are read as matrices straight from memory. Scores pass through
// workgroup memory, which is kept below 18 KiB where registers do not bound the workgroups on a multiprocessor already.
// Forward takes the scores of a row off a reference of its own; results are scaled only where a score exceeds that by more than
// RAISE (FlashAttention-4, section 3). Backward of the queries leaves its weights and their gradients to coop_attention_kv.wgsl.
enable f16;
enable wgpu_cooperative_matrix;
#import common/end_query

// Twin of `Params` in src/ops/coop_attention.rs.
struct Params {
    rows: u32,          // T
    tiles: u32,         // matrices from one column of them to the next: T/16 or more
    heads: u32,         // H
    kv_heads: u32,      // G
    window: u32,        // 0: none
    first_key: u32,     // backward: the keys of this call, in whole blocks of 64
    end_key: u32,
    blocks: u32,        // backward: blocks of queries that are left of one block of keys
    scale: f32,         // what undoes the scaling of q·k
    k_scale: f32,       // of k
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> q: array<vec4<f16>>;          // [H·K/16, T/16, 16, 16]
@group(0) @binding(2) var<storage, read> k: array<vec4<f16>>;          // [G·K/16, T/16, 16, 16]
@group(0) @binding(3) var<storage, read> v: array<vec4<f16>>;          // [G·K/16, T/16, 16, 16]
@group(0) @binding(4) var<storage, read> dout: array<vec4<f16>>;       // [H·K/16, T/16, 16, 16]
@group(0) @binding(5) var<storage, read> bounds: array<vec2<u32>>;     // start and end row of each token's sample [T]
@group(0) @binding(6) var<storage, read_write> row_lse: array<f32>;    // [T, H]
@group(0) @binding(7) var<storage, read_write> rows: array<vec4<f32>>; // lse, delta / unit, unit: what undoes dout's scaling [T, H]
@group(0) @binding(8) var<storage, read_write> result: array<vec4<f32>>; // out or dq [T, H, K]
@group(0) @binding(9) var<storage, read_write> units: array<f32>;      // of each block of keys, by head [H, T/64]
// Weights and their gradients in units of their keys' block, [H, blocks of keys, blocks of queries from there on, 4, 4, 16, 16].
@group(0) @binding(10) var<storage, read_write> left: array<vec4<f16>>;
@group(0) @binding(11) var<storage, read_write> left_gradients: array<vec4<f16>>;

const QUERIES: u32 = 64u;
const KEYS: u32 = {KEYS}u;
const KEY_TILES: u32 = KEYS / 16u;
const THREADS: u32 = {SUBGROUPS}u * 32u;
const SHARES: u32 = THREADS / QUERIES;      // threads that share a row of scores
const DEPTH: u32 = {DEPTH}u;                // matrices over a head: K/16
const SCORE_PITCH: u32 = KEYS / 4u + 1u;                // vec4s of a row of scores
const WEIGHT_PITCH: u32 = KEYS / 4u + 2u;              // vec4s of a row of weights
const BLOCK: u32 = 64u;                     // queries and keys of a block that backward leaves
const LOWEST: f32 = -1e30;
const RAISE: f32 = 8.0;                     // e^8 is far below what f16 ends at

var<workgroup> scores: array<vec4<f32>, {SCORES}>;       // [queries, keys]; at the end, 16×16 results of each subgroup
var<workgroup> weights: array<vec4<f16>, {WEIGHTS}>;      // [queries, keys]
var<workgroup> shared_rows: array<vec2<f32>, 256>;
// Whether a reference was too low: x one that had not served yet, y one that had. With fewer components the arrays above may lie where
// matrices cannot be loaded from: drivers want 16 bytes, WGSL aligns vec4<f16> to 8.
var<workgroup> raised: vec4<u32>;

fn matrix_at(row: u32, column: u32) -> u32 {
    return (column * params.tiles + min(row, (params.rows - 1u) / 16u)) * 64u;
}

fn kv_head(head: u32) -> u32 {
    return head / (params.heads / params.kv_heads);
}

fn start_of(row: u32) -> u32 {
    return bounds[min(row, params.rows - 1u)].x;
}

// The first key that a query sees; `start` is the first row of its sample.
fn first_of(query: u32, start: u32) -> u32 {
    return max(start, select(0u, query + 1u - min(params.window, query + 1u), params.window != 0u));
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

// scores = q·k, without the scale; or dout·v, in units of dout's row. What this waits for is loads: where there are more subgroups
// than blocks of two by two matrices, pairs of them take the same block, each over one half of the head, for which every matrix
// that is loaded serves two products. Each then hands one row of its block over and adds what it is handed to the other.
#for (name, rows, columns) in (make_scores, q, k) (make_weight_gradients, dout, v)
fn {name}(query0: u32, key0: u32, head: u32, lane: u32) {
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
    for (var d = part * (DEPTH / {SPLIT}u); d < (part + 1u) * (DEPTH / {SPLIT}u); d++) {
#for a in 0..{AROWS}
        let a{a} = coopLoadT<coop_mat16x16<f16, A>>(&{rows}[matrix_at(query0 / 16u + row{a}, head * DEPTH + d)], 4u);
#end
#for b in 0..{BCOLS}
        let b{b} = coopLoad<coop_mat16x16<f16, B>>(&{columns}[matrix_at(key0 / 16u + col + {b}u, kv_head(head) * DEPTH + d)], 4u);
#end
#for a in 0..{AROWS}
#for b in 0..{BCOLS}
        s{a}{b} = coopMultiplyAdd(a{a}, b{b}, s{a}{b});
#end
#end
    }
    let pitch = SCORE_PITCH;
#for a in 0..{AROWS}
#for b in 0..{BCOLS}
    let at{a}{b} = row{a} * 16u * SCORE_PITCH + (col + {b}u) * 4u;
#end
#end
#for pairs in 0..{PAIRS}
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

#end
// weights = exp(q·k − most). Returns the sum of this thread's, and tells where `most` is too low.
fn store_weights(query0: u32, key0: u32, first: u32, most: f32, lane: u32) -> f32 {
    let row = lane / SHARES;
    let all = all_seen(query0, key0);
    var sum = 0.0;
    var above = false;
    for (var c = lane % SHARES; c < KEYS / 4u; c += SHARES) {
        let s = params.scale * scores[row * SCORE_PITCH + c] - most;
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
    // Whoever writes here writes the same.
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
        let s = params.scale * scores[row * SCORE_PITCH + c];
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

// Each row of the 16×16 results that this subgroup has left in `scores` times its factor.
fn scale_finished(row0: u32, lane: u32) {
    for (var i = lane % 32u; i < 64u; i += 32u) {
        scores[lane / 32u * 80u + i / 4u * 5u + i % 4u] *= shared_rows[row0 + i / 4u].x;
    }
}

// Where four keys of a query lie among what is left: `key` counts within the block of queries' 64 keys.
fn left_at(query0: u32, key0: u32, head: u32, row: u32, key: u32) -> u32 {
    let keys = (params.end_key - params.first_key) / BLOCK;
    let block = (head * keys + (key0 - params.first_key) / BLOCK) * params.blocks + (query0 - key0 / BLOCK * BLOCK) / BLOCK;
    return (block * 16u + row / 16u * 4u + key / 16u) * 64u + row % 16u * 4u + key % 16u / 4u;
}

// weights = exp(q·k − lse), left for the keys times what their units ask for.
fn store_probabilities(query0: u32, key0: u32, head: u32, first: u32, lse: f32, by_row: f32, lane: u32) {
    let row = lane / SHARES;
    let all = all_seen(query0, key0);
    for (var c = lane % SHARES; c < KEYS / 4u; c += SHARES) {
        var p = exp(params.scale * scores[row * SCORE_PITCH + c] - lse);
        if !all {
            p = select(vec4<f32>(), p, visible4(query0 + row, first, key0 + c * 4u));
        }
        weights[row * WEIGHT_PITCH + c] = vec4<f16>(p);
        left[left_at(query0, key0, head, row, key0 % BLOCK + c * 4u)] = vec4<f16>(by_row * p);
    }
    workgroupBarrier();
}

// weights = weights·(dout·v − delta): the gradients of the scores, left in the same way.
fn store_score_gradients(query0: u32, key0: u32, head: u32, delta: f32, by_row: f32, lane: u32) {
    let row = lane / SHARES;
    for (var c = lane % SHARES; c < KEYS / 4u; c += SHARES) {
        let p = vec4<f32>(weights[row * WEIGHT_PITCH + c]);
        let gradient = p * (scores[row * SCORE_PITCH + c] - delta);
        weights[row * WEIGHT_PITCH + c] = vec4<f16>(gradient);
        left_gradients[left_at(query0, key0, head, row, key0 % BLOCK + c * 4u)] = vec4<f16>(by_row * gradient);
    }
    workgroupBarrier();
}

// The 16×16 results that this subgroup has left in `scores`: four of row `i / 4`.
fn finished(i: u32, lane: u32) -> vec4<f32> {
    return scores[lane / 32u * 80u + i / 4u * 5u + i % 4u];
}

fn result_at(row: u32, head: u32, col4: u32) -> u32 {
    return (row * params.heads + head) * DEPTH * 4u + col4;
}

// Stores 16×16 results, each row times its factor, or adds them.
fn store(block: u32, row0: u32, head: u32, col4: u32, add: bool, lane: u32) {
    for (var i = lane % 32u; i < 64u; i += 32u) {
        let row = row0 + i / 4u;
        if row < params.rows {
            let at = result_at(row, head, col4 + i % 4u);
            var value = shared_rows[row - block].x * finished(i, lane);
            if add {
                value += result[at];
            }
            result[at] = value;
        }
    }
}

// Largest of `a` over the workgroup.
fn largest(a: f32, lane: u32) -> f32 {
    shared_rows[lane].x = a;
    for (var step = THREADS / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if lane < step {
            shared_rows[lane].x = max(shared_rows[lane].x, shared_rows[lane + step].x);
        }
    }
    workgroupBarrier();
    return shared_rows[0].x;
}

@compute @workgroup_size({THREADS})
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    // The last blocks see the most keys and begin first.
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
    // From the keys next to the queries on: their scores are a good reference.
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
            // Where results need no scaling, references that have served stay.
            most = select(higher, before, !too_low.y && before > LOWEST);
            let factor = exp(before - most);
            sum *= factor;
            if too_low.y {
                if lane % SHARES == 0u {
                    shared_rows[row].x = factor;
                }
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
    if lane % SHARES == 0u {
        shared_rows[row].x = 1.0 / max(sum, 1e-30);
        if query < params.rows {
            row_lse[query * params.heads + head] = most + log(max(sum, 1e-30));
        }
    }
    workgroupBarrier();
#for i in 0..4
#for j in 0..{OUT}
    let v{i}{j} = c{i}{j};
    coopStoreT(v{i}{j}, &scores[at], narrow);
    subgroupBarrier();
    store(query0, query0 + {i}u * 16u, head, (column + {j}u) * 4u, false, lane);
    subgroupBarrier();
#end
#end
}

@compute @workgroup_size({THREADS})
fn backward_q(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let query0 = params.first_key + (groups.y - 1u - group.y) * QUERIES;
    let head = group.x;
    let query = query0 + lane / SHARES;
    let first = first_of(query, start_of(query));
    let row = rows[min(query, params.rows - 1u) * params.heads + head];
    let seen_from = first_key(query0);
    let begin = max(seen_from, params.first_key);
    let end = min(min(query0 + QUERIES, params.rows), params.end_key);
    if lane % SHARES == 0u {
        shared_rows[lane / SHARES].x = row.z * params.k_scale;
    }
#for i in 0..4
#for j in 0..{OUT}
    var c{i}{j} = coop_mat16x16<f32, C>();
#end
#end
    let column = lane / 32u * {OUT}u;
    let blocks = (params.rows + BLOCK - 1u) / BLOCK;
    for (var key0 = begin; key0 < end; key0 += KEYS) {
        let by_row = row.z / units[head * blocks + key0 / BLOCK];
        make_scores(query0, key0, head, lane);
        store_probabilities(query0, key0, head, first, row.x, by_row, lane);
        make_weight_gradients(query0, key0, head, lane);
        store_score_gradients(query0, key0, head, row.y, by_row, lane);
        for (var t = 0u; t < KEY_TILES; t++) {
#for i in 0..4
            let p{i} = coopLoadT<coop_mat16x16<f16, A>>(&weights[{i}u * 16u * WEIGHT_PITCH + t * 4u], WEIGHT_PITCH);
#end
#for j in 0..{OUT}
            let k{j} = coopLoadT<coop_mat16x16<f16, B>>(&k[matrix_at(key0 / 16u + t, kv_head(head) * DEPTH + column + {j}u)], 4u);
#end
#for i in 0..4
#for j in 0..{OUT}
            c{i}{j} = coopMultiplyAdd(p{i}, k{j}, c{i}{j});
#end
#end
        }
    }
    let at = lane / 32u * 80u;
    let pitch = 5u;
    workgroupBarrier();
#for i in 0..4
#for j in 0..{OUT}
    let v{i}{j} = c{i}{j};
    coopStoreT(v{i}{j}, &scores[at], pitch);
    subgroupBarrier();
    store(query0, query0 + {i}u * 16u, head, (column + {j}u) * 4u, seen_from < params.first_key, lane);
    subgroupBarrier();
#end
#end
}

// The largest unit of the queries that see any key of a block: in the sum over them, rows that f16 loses beside it do not count.
@compute @workgroup_size({THREADS})
fn key_units(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let key0 = group.y * BLOCK;
    let end = end_query(key0);
    var most = 0.0;
    for (var row = key0 + lane; row < end; row += THREADS) {
        most = max(most, rows[row * params.heads + group.x].z);
    }
    let unit = largest(most, lane);
    if lane == 0u {
        units[group.x * groups.y + group.y] = unit;
    }
}
