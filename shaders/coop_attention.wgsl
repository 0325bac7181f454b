// The attention of attention.wgsl on cooperative matrices, blocks of 64 queries against blocks of 64 keys. q, k, v and
// dout come packed (shaders/pack.wgsl) and are read as matrices straight from memory; scores pass through workgroup
// memory. Forward finds each row's log-sum-exp first, so that the weights of the second pass are final.
// Subgroup s makes 16 / SUBGROUPS matrices of the scores, and 64 rows by 16·OUT columns of the result.
enable f16;
enable wgpu_cooperative_matrix;

// Twin of `Params` in src/ops/coop_attention.rs.
struct Params {
    rows: u32,          // T
    tiles: u32,         // T/16, rounded up
    heads: u32,         // H
    kv_heads: u32,      // G
    window: u32,        // 0: none
    factor_stride: u32, // from the factors of q to those of k, of v and of dout
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> q: array<vec4<f16>>;          // [H·K/16, T/16, 16, 16]
@group(0) @binding(2) var<storage, read> k: array<vec4<f16>>;          // [G·K/16, T/16, 16, 16]
@group(0) @binding(3) var<storage, read> v: array<vec4<f16>>;          // [G·K/16, T/16, 16, 16]
@group(0) @binding(4) var<storage, read> dout: array<vec4<f16>>;       // [H·K/16, T/16, 16, 16]
@group(0) @binding(5) var<storage, read> bounds: array<vec2<u32>>;     // start and end row of each token's sample [T]
@group(0) @binding(6) var<storage, read> factors: array<f32>;          // what undoes the scaling of q, k, v, dout [4, T]
@group(0) @binding(7) var<storage, read_write> row_lse: array<f32>;    // [T, H]
@group(0) @binding(8) var<storage, read> row_delta: array<f32>;        // [T, H]
@group(0) @binding(9) var<storage, read_write> result: array<vec4<f32>>; // out, dq, or a head's dk or dv [T, H, K]

const BLOCK: u32 = 64u;
const THREADS: u32 = {SUBGROUPS}u * 32u;
const SHARES: u32 = THREADS / 64u;          // threads that share a row of scores
const DEPTH: u32 = {DEPTH}u;                // matrices over a head: K/16
const SCORE_PITCH: u32 = 17u;               // vec4s of a row of scores
const WEIGHT_PITCH: u32 = 18u;              // vec4s of a row of weights
const LOWEST: f32 = -1e30;

var<workgroup> scores: array<vec4<f32>, 1088>;      // [queries, keys]; at the end, 16×16 results of each subgroup
var<workgroup> weights: array<vec4<f16>, 1152>;     // [queries, keys]
var<workgroup> shared_rows: array<vec2<f32>, 256>;

fn matrix_at(row: u32, column: u32) -> u32 {
    return (column * params.tiles + min(row, params.tiles - 1u)) * 64u;
}

fn kv_head(head: u32) -> u32 {
    return head / (params.heads / params.kv_heads);
}

fn factor(what: u32, row: u32) -> f32 {
    return factors[what * params.factor_stride + min(row, params.rows - 1u)];
}

fn factor4(what: u32, row: u32) -> vec4<f32> {
    return vec4<f32>(factor(what, row), factor(what, row + 1u), factor(what, row + 2u), factor(what, row + 3u));
}

// Which of four neighbouring keys a query sees; `start` is the first row of its sample.
fn visible4(query: u32, start: u32, key: u32) -> vec4<bool> {
    let keys = vec4<u32>(key) + vec4<u32>(0u, 1u, 2u, 3u);
    let first = max(start, select(0u, query + 1u - min(params.window, query + 1u), params.window != 0u));
    return (keys >= vec4<u32>(first)) & (keys <= vec4<u32>(query)) & vec4<bool>(query < params.rows);
}

fn start_of(row: u32) -> u32 {
    return bounds[min(row, params.rows - 1u)].x;
}

// The first key that any query of the block from `query0` on sees, rounded down to a block.
fn first_key(query0: u32) -> u32 {
    var first = bounds[query0].x;
    if params.window != 0u && query0 + 1u > params.window {
        first = max(first, query0 + 1u - params.window);
    }
    return first / BLOCK * BLOCK;
}

// One past the last query that sees any key of the block from `key0` on.
fn end_query(key0: u32) -> u32 {
    let last = min(key0 + BLOCK, params.rows) - 1u;
    var end = bounds[last].y;
    if params.window != 0u {
        end = min(end, last + params.window);
    }
    return end;
}

// scores = q·k, without the factors.
fn make_scores(query0: u32, key0: u32, head: u32, lane: u32) {
    let first = lane / 32u * {AROWS}u * {BCOLS}u;
    let row = first / 4u;
    let col = first % 4u;
#for a in 0..{AROWS}
#for b in 0..{BCOLS}
    var s{a}{b} = coop_mat16x16<f32, C>();
#end
#end
    for (var d = 0u; d < DEPTH; d++) {
#for a in 0..{AROWS}
        let a{a} = coopLoadT<coop_mat16x16<f16, A>>(&q[matrix_at(query0 / 16u + row + {a}u, head * DEPTH + d)], 4u);
#end
#for b in 0..{BCOLS}
        let b{b} = coopLoad<coop_mat16x16<f16, B>>(&k[matrix_at(key0 / 16u + col + {b}u, kv_head(head) * DEPTH + d)], 4u);
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
    let v{a}{b} = s{a}{b};
    let at{a}{b} = (row + {a}u) * 16u * SCORE_PITCH + (col + {b}u) * 4u;
    coopStoreT(v{a}{b}, &scores[at{a}{b}], pitch);
#end
#end
    workgroupBarrier();
}

// scores = dout·v, without the factors.
fn make_weight_gradients(query0: u32, key0: u32, head: u32, lane: u32) {
    let first = lane / 32u * {AROWS}u * {BCOLS}u;
    let row = first / 4u;
    let col = first % 4u;
#for a in 0..{AROWS}
#for b in 0..{BCOLS}
    var s{a}{b} = coop_mat16x16<f32, C>();
#end
#end
    for (var d = 0u; d < DEPTH; d++) {
#for a in 0..{AROWS}
        let a{a} = coopLoadT<coop_mat16x16<f16, A>>(&dout[matrix_at(query0 / 16u + row + {a}u, head * DEPTH + d)], 4u);
#end
#for b in 0..{BCOLS}
        let b{b} = coopLoad<coop_mat16x16<f16, B>>(&v[matrix_at(key0 / 16u + col + {b}u, kv_head(head) * DEPTH + d)], 4u);
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
    let v{a}{b} = s{a}{b};
    let at{a}{b} = (row + {a}u) * 16u * SCORE_PITCH + (col + {b}u) * 4u;
    coopStoreT(v{a}{b}, &scores[at{a}{b}], pitch);
#end
#end
    workgroupBarrier();
}

// weights = p·by_row·by_key, p = exp(q·k − lse): by_row is this thread's row's, by_key the factors of `what`.
fn store_probabilities(query: u32, key0: u32, start: u32, lse: f32, by_row: f32, what: u32, lane: u32) {
    let row = lane / SHARES;
    let scale = factor(0u, query);
    for (var c = lane % SHARES; c < 16u; c += SHARES) {
        let key = key0 + c * 4u;
        let s = scale * factor4(1u, key) * scores[row * SCORE_PITCH + c];
        var p = select(vec4<f32>(), exp(s - lse), visible4(query, start, key));
        if what < 4u {
            p *= factor4(what, key);
        }
        weights[row * WEIGHT_PITCH + c] = vec4<f16>(by_row * p);
    }
    workgroupBarrier();
}

// weights = ds·by_row·by_key, ds = p·(dout·v − delta) in units of the factor of dout's row; p is in `weights`.
fn store_score_gradients(query: u32, key0: u32, delta: f32, by_row: f32, what: u32, lane: u32) {
    let row = lane / SHARES;
    for (var c = lane % SHARES; c < 16u; c += SHARES) {
        let key = key0 + c * 4u;
        let p = vec4<f32>(weights[row * WEIGHT_PITCH + c]);
        var ds = p * (factor4(2u, key) * scores[row * SCORE_PITCH + c] - delta);
        if what < 4u {
            ds *= factor4(what, key);
        }
        weights[row * WEIGHT_PITCH + c] = vec4<f16>(by_row * ds);
    }
    workgroupBarrier();
}

// Stores the 16×16 results that this subgroup has left in `scores`, each row times its factor.
fn store(row0: u32, head: u32, col4: u32, lane: u32) {
    for (var i = lane % 32u; i < 64u; i += 32u) {
        let row = row0 + i / 4u;
        if row < params.rows {
            let value = scores[lane / 32u * 80u + i / 4u * 5u + i % 4u];
            result[(row * params.heads + head) * DEPTH * 4u + col4 + i % 4u] = shared_rows[row % BLOCK].x * value;
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
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let query0 = group.x * BLOCK;
    let head = group.y;
    let row = lane / SHARES;
    let query = query0 + row;
    let start = start_of(query);
    let scale = factor(0u, query);
    let end = min(query0 + BLOCK, params.rows);
    var most = LOWEST;
    var sum = 0.0;
    for (var key0 = first_key(query0); key0 < end; key0 += BLOCK) {
        make_scores(query0, key0, head, lane);
        for (var c = lane % SHARES; c < 16u; c += SHARES) {
            let key = key0 + c * 4u;
            let s = scale * factor4(1u, key) * scores[row * SCORE_PITCH + c];
            let seen = visible4(query, start, key);
            let masked = select(vec4<f32>(LOWEST), s, seen);
            let before = most;
            most = max(most, max(max(masked.x, masked.y), max(masked.z, masked.w)));
            let p = select(vec4<f32>(), exp(s - most), seen);
            sum = sum * exp(before - most) + p.x + p.y + p.z + p.w;
        }
        workgroupBarrier();
    }
    shared_rows[lane] = vec2<f32>(most, sum);
    workgroupBarrier();
    for (var i = 0u; i < SHARES; i++) {
        most = max(most, shared_rows[row * SHARES + i].x);
    }
    sum = 0.0;
    for (var i = 0u; i < SHARES; i++) {
        let part = shared_rows[row * SHARES + i];
        sum += part.y * exp(part.x - most);
    }
    let lse = most + log(max(sum, 1e-30));
    if lane % SHARES == 0u && query < params.rows {
        row_lse[query * params.heads + head] = lse;
    }
    workgroupBarrier();
    if lane % SHARES == 0u {
        shared_rows[row].x = 1.0;
    }
#for i in 0..4
#for j in 0..{OUT}
    var c{i}{j} = coop_mat16x16<f32, C>();
#end
#end
    let column = lane / 32u * {OUT}u;
    for (var key0 = first_key(query0); key0 < end; key0 += BLOCK) {
        make_scores(query0, key0, head, lane);
        store_probabilities(query, key0, start, lse, 1.0, 2u, lane);
        for (var t = 0u; t < 4u; t++) {
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
    let at = lane / 32u * 80u;
    let pitch = 5u;
    workgroupBarrier();
#for i in 0..4
#for j in 0..{OUT}
    let v{i}{j} = c{i}{j};
    coopStoreT(v{i}{j}, &scores[at], pitch);
    workgroupBarrier();
    store(query0 + {i}u * 16u, head, (column + {j}u) * 4u, lane);
    workgroupBarrier();
#end
#end
}

@compute @workgroup_size({THREADS})
fn backward_q(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let query0 = group.x * BLOCK;
    let head = group.y;
    let query = query0 + lane / SHARES;
    let start = start_of(query);
    let at_row = min(query, params.rows - 1u) * params.heads + head;
    let lse = row_lse[at_row];
    let unit = factor(3u, query);
    let delta = row_delta[at_row] / unit;
    let end = min(query0 + BLOCK, params.rows);
    if lane % SHARES == 0u {
        shared_rows[lane / SHARES].x = unit;
    }
#for i in 0..4
#for j in 0..{OUT}
    var c{i}{j} = coop_mat16x16<f32, C>();
#end
#end
    let column = lane / 32u * {OUT}u;
    for (var key0 = first_key(query0); key0 < end; key0 += BLOCK) {
        make_scores(query0, key0, head, lane);
        store_probabilities(query, key0, start, lse, 1.0, 4u, lane);
        make_weight_gradients(query0, key0, head, lane);
        store_score_gradients(query, key0, delta, 1.0, 1u, lane);
        for (var t = 0u; t < 4u; t++) {
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
    workgroupBarrier();
    store(query0 + {i}u * 16u, head, (column + {j}u) * 4u, lane);
    workgroupBarrier();
#end
#end
}

// dk of one query head.
@compute @workgroup_size({THREADS})
fn backward_k(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let key0 = group.x * BLOCK;
    let head = group.y;
    let end = end_query(key0);
    // One unit for the sum over queries: rows that f16 loses beside the largest do not count.
    var most = 0.0;
    for (var row = key0 + lane; row < end; row += THREADS) {
        most = max(most, factor(0u, row) * factor(3u, row));
    }
    let unit = largest(most, lane);
    workgroupBarrier();
    if lane < BLOCK {
        shared_rows[lane].x = unit;
    }
#for i in 0..4
#for j in 0..{OUT}
    var c{i}{j} = coop_mat16x16<f32, C>();
#end
#end
    let column = lane / 32u * {OUT}u;
    for (var query0 = key0; query0 < end; query0 += BLOCK) {
        let query = query0 + lane / SHARES;
        let at_row = min(query, params.rows - 1u) * params.heads + head;
        let row_unit = factor(3u, query);
        make_scores(query0, key0, head, lane);
        store_probabilities(query, key0, start_of(query), row_lse[at_row], 1.0, 4u, lane);
        make_weight_gradients(query0, key0, head, lane);
        store_score_gradients(query, key0, row_delta[at_row] / row_unit, row_unit * factor(0u, query) / unit, 4u, lane);
        for (var t = 0u; t < 4u; t++) {
#for i in 0..4
            let p{i} = coopLoad<coop_mat16x16<f16, A>>(&weights[t * 16u * WEIGHT_PITCH + {i}u * 4u], WEIGHT_PITCH);
#end
#for j in 0..{OUT}
            let q{j} = coopLoadT<coop_mat16x16<f16, B>>(&q[matrix_at(query0 / 16u + t, head * DEPTH + column + {j}u)], 4u);
#end
#for i in 0..4
#for j in 0..{OUT}
            c{i}{j} = coopMultiplyAdd(p{i}, q{j}, c{i}{j});
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
    workgroupBarrier();
    store(key0 + {i}u * 16u, head, (column + {j}u) * 4u, lane);
    workgroupBarrier();
#end
#end
}

// dv of one query head.
@compute @workgroup_size({THREADS})
fn backward_v(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let key0 = group.x * BLOCK;
    let head = group.y;
    let end = end_query(key0);
    var most = 0.0;
    for (var row = key0 + lane; row < end; row += THREADS) {
        most = max(most, factor(3u, row));
    }
    let unit = largest(most, lane);
    workgroupBarrier();
    if lane < BLOCK {
        shared_rows[lane].x = unit;
    }
#for i in 0..4
#for j in 0..{OUT}
    var c{i}{j} = coop_mat16x16<f32, C>();
#end
#end
    let column = lane / 32u * {OUT}u;
    for (var query0 = key0; query0 < end; query0 += BLOCK) {
        let query = query0 + lane / SHARES;
        let lse = row_lse[min(query, params.rows - 1u) * params.heads + head];
        make_scores(query0, key0, head, lane);
        store_probabilities(query, key0, start_of(query), lse, factor(3u, query) / unit, 4u, lane);
        for (var t = 0u; t < 4u; t++) {
#for i in 0..4
            let p{i} = coopLoad<coop_mat16x16<f16, A>>(&weights[t * 16u * WEIGHT_PITCH + {i}u * 4u], WEIGHT_PITCH);
#end
#for j in 0..{OUT}
            let d{j} = coopLoadT<coop_mat16x16<f16, B>>(&dout[matrix_at(query0 / 16u + t, head * DEPTH + column + {j}u)], 4u);
#end
#for i in 0..4
#for j in 0..{OUT}
            c{i}{j} = coopMultiplyAdd(p{i}, d{j}, c{i}{j});
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
    workgroupBarrier();
    store(key0 + {i}u * 16u, head, (column + {j}u) * 4u, lane);
    workgroupBarrier();
#end
#end
}
