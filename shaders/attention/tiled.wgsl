// Causal attention over packed samples, whose scores are never stored: s = q·k, p = exp(s − lse), out = Σ p·v, with key j visible to query i
// if start(i) <= j <= i and i − j < window. H query heads share G key/value heads. Backward rebuilds p from q, k and the saved row
// log-sum-exp: dv = pᵀ·dout, ds = p·(dout·v − delta), dq = ds·k, dk = dsᵀ·q, delta = Σ dout·out. dk and dv are added to.
//
// A workgroup computes the results of some rows of one head, its own: queries, or keys in backward_k and backward_v. It takes 32 of the
// others at a time: slices of 4·{SLICE4} columns for scores, and 64 columns for sums over the others. Operands may be f16; weights and
// sums are f32. Where threads have few registers and a head is long, several workgroups compute the same scores, each with other columns of
// the sums.
#if {HALF}
enable f16;
#end
#import common/attention
#import common/packed

#if {HALF}
alias operand = f16;
#else
alias operand = f32;
#end

// A vec{ROWS} has one value for each of the thread's own rows, which 16 threads share. It has no alias: naga's HLSL would define it twice.
const ROWS: u32 = {ROWS}u;
const THREADS: u32 = {THREADS}u;
const GROUPS: u32 = THREADS / 16u;   // groups of threads that share their own rows
const OWN: u32 = GROUPS * ROWS;
const BLOCK: u32 = OWN;             // keys that end_query asks for
const OTHERS: u32 = 32u;
const SLICE4: u32 = {SLICE4}u;
const PITCH: u32 = SLICE4 + 1u;     // vec4s of a row of a slice: one more spreads the banks
const MASKED: f32 = -1e30;

// Scores: a slice of the own rows, then of the others. Sums: [others, 64 columns].
var<workgroup> stage: array<vec4<operand>, {STAGE}>;
// Weights, or score gradients, [others, own]; in forward also maxima and sums.
var<workgroup> block: array<vec{ROWS}<f32>, 32 * {THREADS} / 16>;

#if {SPLIT}
var<private> before: u32; // columns of other workgroups' sums before the own ones, in fours
#else
const before: u32 = 0u;
#end
#for j in 0..2
var<private> s{j}: vec{ROWS}<f32>; // scores with other lane % 16 + 16·j
#end
// Sums of the own rows, four columns from 4·(before + lane % 16) + 64·c on.
#for c in 0..{COLS}
#for r in 0..{ROWS}
var<private> acc{c}_{r}: vec4<f32>;
#end
#end

#if {CAP}
fn capped(s: vec{ROWS}<f32>) -> vec{ROWS}<f32> {
    let cap = bitcast<f32>({CAP}u);
    return cap * tanh(clamp(s / cap, vec{ROWS}<f32>(-10.0), vec{ROWS}<f32>(10.0)));
}

// The slope of `capped` where its value is `s`.
fn slope_at(s: vec{ROWS}<f32>) -> vec{ROWS}<f32> {
    let share = s / bitcast<f32>({CAP}u);
    return 1.0 - share * share;
}

#for j in 0..2
var<private> slope{j}: vec{ROWS}<f32>; // of the capped scores with other lane % 16 + 16·j
#end
#end
// The thread's own rows, in the block from `own0` on.
fn own_rows(own0: u32, lane: u32) -> vec{ROWS}<u32> {
    var rows = vec{ROWS}<u32>(own0 + lane / 16u * ROWS);
#for r in 0..{ROWS}
    rows[{r}] += {r}u;
#end
    return rows;
}

fn add_dot(sum: f32, a: vec4<f32>, b: vec4<f32>) -> f32 {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}

// s = own·other. The next slice is loaded while one is multiplied.
#for (name, own, other) in (query_scores, q, k) (query_gradients, dout, v) (key_scores, k, q) (value_gradients, v, dout)
fn load_{name}(own0: u32, other0: u32, head: u32, row: u32, column: u32) -> vec4<operand> {
    if column >= HEAD4 || row >= OWN + OTHERS {
        return vec4<operand>();
    }
    if row < OWN {
        return load_{own}(own0 + row, head, column);
    }
    return load_{other}(other0 + row - OWN, head, column);
}

fn {name}(own0: u32, other0: u32, head: u32, lane: u32) {
#for j in 0..2
    var sum{j} = vec{ROWS}<f32>();
#end
#for n in 0..{LOADS}
    let row{n} = {n}u * (THREADS / SLICE4) + lane / SLICE4;
    var value{n} = load_{name}(own0, other0, head, row{n}, lane % SLICE4);
#end
    for (var slice = 0u; slice < HEAD4; slice += SLICE4) {
        workgroupBarrier();
#for n in 0..{LOADS}
        if row{n} < OWN + OTHERS {
            stage[row{n} * PITCH + lane % SLICE4] = value{n};
        }
#end
        workgroupBarrier();
#for n in 0..{LOADS}
        value{n} = load_{name}(own0, other0, head, row{n}, slice + SLICE4 + lane % SLICE4);
#end
        // Each slice is summed separately: long sums of f32 lose more.
#for j in 0..2
        var part{j} = vec{ROWS}<f32>();
#end
        for (var d = 0u; d < SLICE4; d++) {
#for r in 0..{ROWS}
            let a{r} = vec4<f32>(stage[(lane / 16u * ROWS + {r}u) * PITCH + d]);
#end
#for j in 0..2
            let b{j} = vec4<f32>(stage[(OWN + lane % 16u + {j}u * 16u) * PITCH + d]);
#for r in 0..{ROWS}
            part{j}[{r}] = add_dot(part{j}[{r}], a{r}, b{j});
#end
#end
        }
#for j in 0..2
        sum{j} += part{j};
#end
    }
#for j in 0..2
    s{j} = sum{j};
#end
}

#end
fn leave(lane: u32) {
#for j in 0..2
    block[(lane % 16u + {j}u * 16u) * GROUPS + lane / 16u] = s{j};
#end
}

// acc[own] += Σ block[other, own]·other. The next columns are loaded while some are added; with few registers they are not, and the number
// of rows is one that the compiler does not know, so that it cannot mix the rounds of the loop.
#for (name, other) in (add_values, v) (add_keys, k) (add_queries, q) (add_gradients, dout)
fn load_to_{name}(other: u32, head: u32, column: u32) -> vec4<operand> {
#if {FEW}
    if HEAD4 % ({COLS}u * 16u) != 0u && column >= HEAD4 {
#else
    if column >= HEAD4 {
#end
        return vec4<operand>();
    }
    return load_{other}(other, head, column);
}

fn {name}(first: u32, head: u32, lane: u32) {
#for n in 0..{PARTS}
    let other{n} = first + {n}u * GROUPS + lane / 16u;
#if !{FEW}
    var value{n} = load_to_{name}(other{n}, head, lane % 16u);
#end
#end
#for c in 0..{COLS}
    workgroupBarrier();
#for n in 0..{PARTS}
#if {FEW}
    stage[{n}u * THREADS + lane] = load_to_{name}(other{n}, head, before + {c}u * 16u + lane % 16u);
#else
    stage[{n}u * THREADS + lane] = value{n};
#end
#end
    workgroupBarrier();
#if {FEW}
    for (var row = 0u; row < min(OTHERS, params.rows - first); row++) {
#else
#for n in 0..{PARTS}
    value{n} = load_to_{name}(other{n}, head, {c}u * 16u + 16u + lane % 16u);
#end
    for (var row = 0u; row < OTHERS; row++) {
#end
        let value = vec4<f32>(stage[row * 16u + lane % 16u]);
        let by = block[row * GROUPS + lane / 16u];
#for r in 0..{ROWS}
        acc{c}_{r} += by[{r}] * value;
#end
    }
#end
}

#end
// result[row] = factor·acc for the own rows, [T, H, K].
fn store_rows(own0: u32, head: u32, factor: vec{ROWS}<f32>, lane: u32) {
    let rows = own_rows(own0, lane);
#for c in 0..{COLS}
    let column{c} = before + {c}u * 16u + lane % 16u;
#for r in 0..{ROWS}
    if column{c} < HEAD4 && rows[{r}] < params.rows {
        result[query_at(rows[{r}], head) + column{c}] = factor[{r}] * acc{c}_{r};
    }
#end
#end
}

// Other lane % 16 + 16·j of a block.
fn other(others: u32, j: u32, lane: u32) -> u32 {
    return others + j * 16u + lane % 16u;
}

fn first_keys(queries: vec{ROWS}<u32>) -> vec{ROWS}<u32> {
    var first = vec{ROWS}<u32>();
#for r in 0..{ROWS}
    first[{r}] = first_key(queries[{r}]);
#end
    return first;
}

// Which of the own queries see a key.
fn seen_key(queries: vec{ROWS}<u32>, first: vec{ROWS}<u32>, key: u32) -> vec{ROWS}<bool> {
    return (vec{ROWS}<u32>(key) <= queries) & (vec{ROWS}<u32>(key) >= first) & (queries < vec{ROWS}<u32>(params.rows));
}

@compute @workgroup_size(THREADS)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
#if {SPLIT}
    before = group.z * {COLS}u * 16u;
#end
    // The last queries see the most keys, so they start first.
    let own0 = (groups.x - 1u - group.x) * OWN;
    let head = group.y;
    let queries = own_rows(own0, lane);
    let first = first_keys(queries);
    let place = lane % 16u * GROUPS + lane / 16u;
#if {SINKS}
    var most = vec{ROWS}<f32>(sinks[head]);
    var sum = vec{ROWS}<f32>(select(0.0, 1.0, lane % 16u == 0u));
#else
    var most = vec{ROWS}<f32>(MASKED);
    var sum = vec{ROWS}<f32>();
#end
    let end = min(own0 + OWN, params.rows);
    for (var others = first_key(own0); others < end; others += OTHERS) {
        query_scores(own0, others, head, lane);
#for j in 0..2
        let seen{j} = seen_key(queries, first, other(others, {j}u, lane));
#if {CAP}
        s{j} = select(vec{ROWS}<f32>(MASKED), capped(params.scale * s{j}), seen{j});
#else
        s{j} = select(vec{ROWS}<f32>(MASKED), params.scale * s{j}, seen{j});
#end
#end
        block[place] = max(s0, s1);
        workgroupBarrier();
        let before = most;
        for (var i = 0u; i < 16u; i++) {
            most = max(most, block[i * GROUPS + lane / 16u]);
        }
        workgroupBarrier();
        let factor = exp(before - most);
        sum *= factor;
#for j in 0..2
        s{j} = select(vec{ROWS}<f32>(), exp(s{j} - most), seen{j});
        sum += s{j};
#end
        leave(lane);
#for c in 0..{COLS}
#for r in 0..{ROWS}
        acc{c}_{r} *= factor[{r}];
#end
#end
        add_values(others, head, lane);
    }
    workgroupBarrier();
    block[place] = sum;
    workgroupBarrier();
    sum = vec{ROWS}<f32>();
    for (var i = 0u; i < 16u; i++) {
        sum += block[i * GROUPS + lane / 16u];
    }
#for r in 0..{ROWS}
    if before + lane % 16u == 0u && queries[{r}] < params.rows {
        row_lse[query_row(queries[{r}], head)] = most[{r}] + log(sum[{r}]);
    }
#end
    store_rows(own0, head, 1.0 / sum, lane);
}

@compute @workgroup_size(THREADS)
fn backward_q(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
#if {SPLIT}
    before = group.z * {COLS}u * 16u;
#end
    let own0 = (groups.x - 1u - group.x) * OWN;
    let head = group.y;
    let queries = own_rows(own0, lane);
    let first = first_keys(queries);
    var lse = vec{ROWS}<f32>();
    var delta = vec{ROWS}<f32>();
    var unit = vec{ROWS}<f32>();
#for r in 0..{ROWS}
    let row{r} = query_row(queries[{r}], head);
    lse[{r}] = row_lse[row{r}];
    delta[{r}] = row_delta[row{r}].x;
    unit[{r}] = row_delta[row{r}].y;
#end
    let end = min(own0 + OWN, params.rows);
    for (var others = first_key(own0); others < end; others += OTHERS) {
        query_scores(own0, others, head, lane);
#for j in 0..2
        let seen{j} = seen_key(queries, first, other(others, {j}u, lane));
#if {CAP}
        let capped{j} = capped(params.scale * s{j});
        slope{j} = slope_at(capped{j});
        let p{j} = select(vec{ROWS}<f32>(), exp(capped{j} - lse), seen{j});
#else
        let p{j} = select(vec{ROWS}<f32>(), exp(params.scale * s{j} - lse), seen{j});
#end
#end
        query_gradients(own0, others, head, lane);
#for j in 0..2
        s{j} = p{j} * (unit * s{j} - delta);
#if {CAP}
        s{j} *= slope{j};
#end
#end
        leave(lane);
        add_keys(others, head, lane);
    }
    store_rows(own0, head, vec{ROWS}<f32>(1.0 / params.k_scale), lane);
}

// Replaces the scores by the weights of the own keys in the others, which are queries.
fn key_weights(own0: u32, others: u32, head: u32, lane: u32) {
    key_scores(own0, others, head, lane);
    let keys = own_rows(own0, lane);
#for j in 0..2
    let query{j} = other(others, {j}u, lane);
    let first{j} = first_key(query{j});
    let seen{j} = (keys <= vec{ROWS}<u32>(query{j})) & (keys >= vec{ROWS}<u32>(first{j})) & vec{ROWS}<bool>(query{j} < params.rows);
#if {CAP}
    let capped{j} = capped(params.scale * s{j});
    slope{j} = slope_at(capped{j});
    s{j} = select(vec{ROWS}<f32>(), exp(capped{j} - row_lse[query_row(query{j}, head)]), seen{j});
#else
    s{j} = select(vec{ROWS}<f32>(), exp(params.scale * s{j} - row_lse[query_row(query{j}, head)]), seen{j});
#end
#end
}

// dk of one query head, [T, H, K]: sum_heads adds up the heads that share a key.
@compute @workgroup_size(THREADS)
fn backward_k(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
#if {SPLIT}
    before = group.z * {COLS}u * 16u;
#end
    let own0 = group.x * OWN;
    let head = group.y;
    let end = end_query(own0);
    for (var others = own0; others < end; others += OTHERS) {
        key_weights(own0, others, head, lane);
#for j in 0..2
        let p{j} = s{j};
#end
        value_gradients(own0, others, head, lane);
#for j in 0..2
        let delta{j} = row_delta[query_row(other(others, {j}u, lane), head)];
        s{j} = p{j} * (delta{j}.y * s{j} - delta{j}.x);
#if {CAP}
        s{j} *= slope{j};
#end
#end
        leave(lane);
        add_queries(others, head, lane);
    }
    store_rows(own0, head, vec{ROWS}<f32>(1.0 / params.q_scale), lane);
}

// dv of one query head, [T, H, K].
@compute @workgroup_size(THREADS)
fn backward_v(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
#if {SPLIT}
    before = group.z * {COLS}u * 16u;
#end
    let own0 = group.x * OWN;
    let head = group.y;
    let end = end_query(own0);
    for (var others = own0; others < end; others += OTHERS) {
        key_weights(own0, others, head, lane);
#for j in 0..2
        s{j} *= row_delta[query_row(other(others, {j}u, lane), head)].y;
#end
        leave(lane);
        add_gradients(others, head, lane);
    }
    store_rows(own0, head, vec{ROWS}<f32>(1.0), lane);
}

#import common/attention_heads
