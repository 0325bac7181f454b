// Causal attention over packed samples, blocks of 32 queries against blocks of 32 keys, scores never stored:
// s = q·k, p = exp(s − lse), out = Σ p·v, with key j visible to query i if start(i) <= j <= i and i − j < window.
// H query heads share G key/value heads. Backward rebuilds p from q, k and the saved row log-sum-exp:
// dv = pᵀ·dout, ds = p·(dout·v − delta), dq = ds·k, dk = dsᵀ·q, delta = Σ dout·out. dk and dv add to what they hold.
#import common/seen

// Twin of `Params` in src/ops/attention.rs.
struct Params {
    rows: u32,          // T
    heads: u32,         // H
    kv_heads: u32,      // G
    window: u32,        // 0: none
}

override HEAD_SIZE4: u32; // K / 4, at most 128

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;          // [T, H, K]
@group(0) @binding(2) var<storage, read> k: array<vec4<f32>>;          // [T, G, K]
@group(0) @binding(3) var<storage, read> v: array<vec4<f32>>;          // [T, G, K]
@group(0) @binding(4) var<storage, read> bounds: array<vec2<u32>>;     // start and end row of each token's sample [T]
@group(0) @binding(5) var<storage, read> dout: array<vec4<f32>>;       // [T, H, K]; forward does not read it
@group(0) @binding(6) var<storage, read_write> result: array<vec4<f32>>; // out, dq or a head's dk or dv [T, H, K]; dk or dv [T, G, K]
@group(0) @binding(7) var<storage, read_write> row_lse: array<f32>;    // [T, H]
@group(0) @binding(8) var<storage, read_write> row_delta: array<f32>;  // [T, H]

const BLOCK: u32 = 32u;
const MASKED: f32 = -1e30;
const SLICE4: u32 = 8u;     // 32 of the K dimensions a time for scores
const CHUNK4: u32 = 16u;    // 64 of them a time for sums over keys or queries
const P_PITCH: u32 = 33u;

// Scores: 32 query rows and 32 key rows of one slice, 9 vec4s apart. Sums: 32 rows of one chunk.
var<workgroup> stage: array<vec4<f32>, 576>;
var<workgroup> block_p: array<f32, 1056>;       // [queries, keys], P_PITCH apart
var<workgroup> partial: array<f32, 256>;        // [queries, 8]
var<workgroup> row_values: array<vec2<f32>, 32>; // forward: maximum and factor; backward: lse and delta

var<private> s00: f32; // scores of queries 2·(lane / 16) + i and keys lane % 16 + 16·j
var<private> s01: f32;
var<private> s10: f32;
var<private> s11: f32;
var<private> acc: array<vec4<f32>, 16>; // rows 2·(lane / 16) + i, columns 4·(lane % 16) + 64·c, at 2·c + i

fn kv_head(head: u32) -> u32 {
    return head / (params.heads / params.kv_heads);
}

fn query_at(row: u32, head: u32) -> u32 {
    return (min(row, params.rows - 1u) * params.heads + head) * HEAD_SIZE4;
}

fn key_at(row: u32, head: u32) -> u32 {
    return (min(row, params.rows - 1u) * params.kv_heads + head) * HEAD_SIZE4;
}

fn visible(query: u32, key: u32) -> bool {
    return query < params.rows && key <= query && key >= bounds[query].x && (params.window == 0u || query - key < params.window);
}

// The first key that any query of the block from `query0` on sees, rounded down to a block.
fn first_key(query0: u32) -> u32 {
    return first_of(query0, bounds[query0].x) / BLOCK * BLOCK;
}

fn add_scores(lane: u32) {
    let rows = lane / 16u * 18u;
    let keys = 288u + lane % 16u * 9u;
    for (var d = 0u; d < SLICE4; d++) {
        let a0 = stage[rows + d];
        let a1 = stage[rows + 9u + d];
        let b0 = stage[keys + d];
        let b1 = stage[keys + 144u + d];
        s00 += dot(a0, b0);
        s01 += dot(a0, b1);
        s10 += dot(a1, b0);
        s11 += dot(a1, b1);
    }
}

// What a score or a sum reads: constants at every call, so that nothing branches at run time.
const VALUE: u32 = 0u;      // q and k
const GRADIENT: u32 = 1u;   // dout and v

fn query_side(what: u32, at: u32) -> vec4<f32> {
    if what == VALUE {
        return q[at];
    }
    return dout[at];
}

fn key_side(what: u32, at: u32) -> vec4<f32> {
    if what == VALUE {
        return k[at];
    }
    return v[at];
}

// s = q·k, or dout·v.
fn scores(what: u32, query0: u32, key0: u32, head: u32, lane: u32) {
    s00 = 0.0; s01 = 0.0; s10 = 0.0; s11 = 0.0;
    let row = lane / 8u;
    let d = lane % 8u;
    for (var slice = 0u; slice < HEAD_SIZE4; slice += SLICE4) {
        var query = vec4<f32>();
        var key = vec4<f32>();
        if slice + d < HEAD_SIZE4 {
            query = query_side(what, query_at(query0 + row, head) + slice + d);
            key = key_side(what, key_at(key0 + row, kv_head(head)) + slice + d);
        }
        workgroupBarrier();
        stage[row * 9u + d] = query;
        stage[288u + row * 9u + d] = key;
        workgroupBarrier();
        add_scores(lane);
    }
}

// Puts the four scores, each through exp(s − lse) or masked, where the sums read them.
fn store_probabilities(query0: u32, key0: u32, lane: u32) {
    let i = lane / 16u * 2u;
    let j = lane % 16u;
    s00 = select(0.0, exp(s00 - row_values[i].x), visible(query0 + i, key0 + j));
    s01 = select(0.0, exp(s01 - row_values[i].x), visible(query0 + i, key0 + j + 16u));
    s10 = select(0.0, exp(s10 - row_values[i + 1u].x), visible(query0 + i + 1u, key0 + j));
    s11 = select(0.0, exp(s11 - row_values[i + 1u].x), visible(query0 + i + 1u, key0 + j + 16u));
    store_block(lane);
}

fn store_block(lane: u32) {
    let i = lane / 16u * 2u;
    let j = lane % 16u;
    block_p[i * P_PITCH + j] = s00;
    block_p[i * P_PITCH + j + 16u] = s01;
    block_p[(i + 1u) * P_PITCH + j] = s10;
    block_p[(i + 1u) * P_PITCH + j + 16u] = s11;
}

// ds = p·(dp − delta), left in block_p.
fn store_score_gradients(query0: u32, key0: u32, head: u32, lane: u32) {
    scores(VALUE, query0, key0, head, lane);
    store_probabilities(query0, key0, lane);
    let p00 = s00; let p01 = s01; let p10 = s10; let p11 = s11;
    scores(GRADIENT, query0, key0, head, lane);
    let i = lane / 16u * 2u;
    s00 = p00 * (s00 - row_values[i].y);
    s01 = p01 * (s01 - row_values[i].y);
    s10 = p10 * (s10 - row_values[i + 1u].y);
    s11 = p11 * (s11 - row_values[i + 1u].y);
    store_block(lane);
}

// acc[row] += Σ_j block_p[row, j]·(k or v)[key0 + j]
fn sum_over_keys(what: u32, key0: u32, head: u32, lane: u32) {
    let p = lane / 16u * 2u * P_PITCH;
    for (var c = 0u; c * CHUNK4 < HEAD_SIZE4; c++) {
        workgroupBarrier();
        for (var i = lane; i < BLOCK * CHUNK4; i += 256u) {
            let d = c * CHUNK4 + i % CHUNK4;
            stage[i] = vec4<f32>();
            if d < HEAD_SIZE4 {
                stage[i] = key_side(what, key_at(key0 + i / CHUNK4, kv_head(head)) + d);
            }
        }
        workgroupBarrier();
        var sum0 = acc[2u * c];
        var sum1 = acc[2u * c + 1u];
        for (var j = 0u; j < BLOCK; j++) {
            let value = stage[j * CHUNK4 + lane % 16u];
            sum0 += block_p[p + j] * value;
            sum1 += block_p[p + P_PITCH + j] * value;
        }
        acc[2u * c] = sum0;
        acc[2u * c + 1u] = sum1;
    }
}

// acc[row] += Σ_i block_p[i, row]·(q or dout)[query0 + i]
fn sum_over_queries(what: u32, query0: u32, head: u32, lane: u32) {
    let p = lane / 16u * 2u;
    for (var c = 0u; c * CHUNK4 < HEAD_SIZE4; c++) {
        workgroupBarrier();
        for (var i = lane; i < BLOCK * CHUNK4; i += 256u) {
            let d = c * CHUNK4 + i % CHUNK4;
            stage[i] = vec4<f32>();
            if d < HEAD_SIZE4 {
                stage[i] = query_side(what, query_at(query0 + i / CHUNK4, head) + d);
            }
        }
        workgroupBarrier();
        var sum0 = acc[2u * c];
        var sum1 = acc[2u * c + 1u];
        for (var i = 0u; i < BLOCK; i++) {
            let value = stage[i * CHUNK4 + lane % 16u];
            sum0 += block_p[i * P_PITCH + p] * value;
            sum1 += block_p[i * P_PITCH + p + 1u] * value;
        }
        acc[2u * c] = sum0;
        acc[2u * c + 1u] = sum1;
    }
}

fn clear_acc() {
    for (var c = 0u; c < 16u; c++) {
        acc[c] = vec4<f32>();
    }
}

// result[row] = factor·acc for the two rows of this thread, in [T, H, K].
fn store_rows(row0: u32, head: u32, factor0: f32, factor1: f32, lane: u32) {
    let row = row0 + lane / 16u * 2u;
    for (var c = 0u; c * CHUNK4 < HEAD_SIZE4; c++) {
        let d = c * CHUNK4 + lane % 16u;
        if d < HEAD_SIZE4 && row < params.rows {
            result[query_at(row, head) + d] = factor0 * acc[2u * c];
        }
        if d < HEAD_SIZE4 && row + 1u < params.rows {
            result[query_at(row + 1u, head) + d] = factor1 * acc[2u * c + 1u];
        }
    }
}

fn load_row_values(query0: u32, head: u32, lane: u32) {
    workgroupBarrier();
    if lane < BLOCK {
        let at = min(query0 + lane, params.rows - 1u) * params.heads + head;
        row_values[lane] = vec2<f32>(row_lse[at], row_delta[at]);
    }
}

@compute @workgroup_size(256)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let query0 = group.x * BLOCK;
    let head = group.y;
    let row = lane / 8u; // of the softmax: eight threads a row, four keys each
    let part = lane % 8u;
    var row_sum = 0.0;
    clear_acc();
    if part == 0u {
        row_values[row] = vec2<f32>(MASKED, 1.0);
    }
    let end = min(query0 + BLOCK, params.rows);
    for (var key0 = first_key(query0); key0 < end; key0 += BLOCK) {
        scores(VALUE, query0, key0, head, lane);
        store_block(lane);
        workgroupBarrier();
        var largest = MASKED;
        for (var j = 0u; j < 4u; j++) {
            if visible(query0 + row, key0 + part + 8u * j) {
                largest = max(largest, block_p[row * P_PITCH + part + 8u * j]);
            }
        }
        partial[lane] = largest;
        let before = row_values[row].x;
        workgroupBarrier();
        largest = before;
        for (var i = 0u; i < 8u; i++) {
            largest = max(largest, partial[row * 8u + i]);
        }
        workgroupBarrier();
        var sum = 0.0;
        for (var j = 0u; j < 4u; j++) {
            let at = row * P_PITCH + part + 8u * j;
            let p = select(0.0, exp(block_p[at] - largest), visible(query0 + row, key0 + part + 8u * j));
            block_p[at] = p;
            sum += p;
        }
        partial[lane] = sum;
        if part == 0u {
            row_values[row] = vec2<f32>(largest, exp(before - largest));
        }
        workgroupBarrier();
        row_sum *= row_values[row].y;
        for (var i = 0u; i < 8u; i++) {
            row_sum += partial[row * 8u + i];
        }
        let factor0 = row_values[lane / 16u * 2u].y;
        let factor1 = row_values[lane / 16u * 2u + 1u].y;
        for (var c = 0u; c * CHUNK4 < HEAD_SIZE4; c++) {
            acc[2u * c] *= factor0;
            acc[2u * c + 1u] *= factor1;
        }
        sum_over_keys(GRADIENT, key0, head, lane);
    }
    workgroupBarrier();
    if part == 0u {
        partial[row] = row_sum;
        if query0 + row < params.rows {
            row_lse[(query0 + row) * params.heads + head] = row_values[row].x + log(row_sum);
        }
    }
    workgroupBarrier();
    let i = lane / 16u * 2u;
    store_rows(query0, head, 1.0 / partial[i], 1.0 / partial[i + 1u], lane);
}

// delta = Σ dout·out, one thread a row and head; `q` is bound to out.
@compute @workgroup_size(64)
fn delta(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = (group.x + group.y * groups.x) * 64u + lane;
    if row >= params.rows * params.heads {
        return;
    }
    var sum = 0.0;
    for (var d = 0u; d < HEAD_SIZE4; d++) {
        sum += dot(q[row * HEAD_SIZE4 + d], dout[row * HEAD_SIZE4 + d]);
    }
    row_delta[row] = sum;
}

@compute @workgroup_size(256)
fn backward_q(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let query0 = group.x * BLOCK;
    let head = group.y;
    clear_acc();
    load_row_values(query0, head, lane);
    let end = min(query0 + BLOCK, params.rows);
    for (var key0 = first_key(query0); key0 < end; key0 += BLOCK) {
        store_score_gradients(query0, key0, head, lane);
        sum_over_keys(VALUE, key0, head, lane);
    }
    store_rows(query0, head, 1.0, 1.0, lane);
}

// dk of one query head, in [T, H, K]: sum_heads adds up those that share a key.
@compute @workgroup_size(256)
fn backward_k(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let key0 = group.x * BLOCK;
    let head = group.y;
    clear_acc();
    let end = end_query(key0);
    for (var query0 = key0; query0 < end; query0 += BLOCK) {
        load_row_values(query0, head, lane);
        store_score_gradients(query0, key0, head, lane);
        sum_over_queries(VALUE, query0, head, lane);
    }
    store_rows(key0, head, 1.0, 1.0, lane);
}

// dv of one query head, likewise.
@compute @workgroup_size(256)
fn backward_v(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let key0 = group.x * BLOCK;
    let head = group.y;
    clear_acc();
    let end = end_query(key0);
    for (var query0 = key0; query0 < end; query0 += BLOCK) {
        load_row_values(query0, head, lane);
        scores(VALUE, query0, key0, head, lane);
        store_probabilities(query0, key0, lane);
        sum_over_queries(GRADIENT, query0, head, lane);
    }
    store_rows(key0, head, 1.0, 1.0, lane);
}

// dk or dv += the gradients of the query heads that share it; `q` is bound to those [T, H, K].
@compute @workgroup_size(64)
fn sum_heads(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + group.y * groups.x) * 64u + lane;
    if i >= params.rows * params.kv_heads * HEAD_SIZE4 {
        return;
    }
    let sharing = params.heads / params.kv_heads;
    let first = i / HEAD_SIZE4 * sharing * HEAD_SIZE4 + i % HEAD_SIZE4;
    var sum = result[i];
    for (var s = 0u; s < sharing; s++) {
        sum += q[first + s * HEAD_SIZE4];
    }
    result[i] = sum;
}
