// shaders/attention/tiled.wgsl with operands in f16 on cooperative matrices of 8×8, which Apple's GPUs have. A workgroup has four subgroups of
// {LANES} lanes. It computes the results of 32 rows of one head, its own, from 32 of the others at a time. Scores take 32 columns of a head
// at a time, 16×16 of them per subgroup. Sums over the others take 64 columns at a time, 16 of them per subgroup, which stay in its
// registers. `lse` runs first: with it every weight is computed as in backward, and no sum needs rescaling. Staged values lie matrix by
// matrix, and as scalars (see common/coop8.wgsl). Weights and score gradients are in units of their query's row of dout; where keys are the
// own rows, in units of the largest of all queries that see them. Under a softcap, weights come times its slope where their gradients follow.
enable f16;
enable wgpu_cooperative_matrix;
alias operand = f16;
#import common/attention
#import common/softcap

const THREADS: u32 = 4u * {LANES}u;
const OWN: u32 = 32u;
const BLOCK: u32 = OWN;     // keys that end_query asks for
const OTHERS: u32 = 32u;
const PITCH: u32 = 36u;     // floats from one own row's scores to the next: 4 more than 32 spread the banks
const WIDE: u32 = 68u;      // floats per row of 64 columns of results
const LOWEST: f32 = -1e30;

var<workgroup> staged_own: array<f16, 1024>;    // [4, 4, 8, 8]: matrices over the columns, over the rows, row, column
var<workgroup> staged: array<f16, 2048>;        // of the others; scores: as staged_own; sums: [4, 8, 8, 8], over the rows, over the columns
var<workgroup> weights: array<f16, 1024>;       // [4, 4, 8, 8]: over the others, over the own, own, other
var<workgroup> block: array<f32, 1152>;         // scores [own, other]; at the end 8 rows of results
// Values of a block's queries: lse, delta in units of dout's row, that unit over the unit of the sum, the first key that they see (f32 is
// exact up to 2^24).
var<workgroup> queries: array<vec4<f32>, 32>;
var<workgroup> states: array<vec2<f32>, 256>;   // lse: the largest score and the sum of a quarter of each row; backward: x of a thread

// The place of column `k` of row `row` in `staged_own`, and in the other arrays.
fn staged_at(row: u32, k: u32) -> u32 {
    return (k / 8u * 4u + row / 8u) * 64u + row % 8u * 8u + k % 8u;
}

#for (name, own, other) in (query_scores, q, k) (query_gradients, dout, v) (key_scores, k, q) (value_gradients, v, dout)
// block = own·other.
fn {name}(own0: u32, other0: u32, head: u32, lane: u32, subgroup: u32) {
    let down = subgroup / 2u * 2u;      // the first 8×8 matrix of this subgroup
    let across = subgroup % 2u * 2u;
#for i in 0..2
#for j in 0..2
    var c{i}{j}: coop_mat8x8<f32, C>;
#end
#end
    for (var slice = 0u; slice < HEAD4; slice += 8u) {
        workgroupBarrier();
        for (var i = lane; i < 256u; i += THREADS) {
            var own = vec4<f16>();
            var other = vec4<f16>();
            if slice + i % 8u < HEAD4 {
                own = load_{own}(own0 + i / 8u, head, slice + i % 8u);
                other = load_{other}(other0 + i / 8u, head, slice + i % 8u);
            }
            let at = staged_at(i / 8u, i % 8u * 4u);
#for (n, c) in (0, x) (1, y) (2, z) (3, w)
            staged_own[at + {n}u] = own.{c};
            staged[at + {n}u] = other.{c};
#end
        }
        workgroupBarrier();
        for (var k = 0u; k < 4u; k++) {
#for i in 0..2
            let a{i} = coopLoadT<coop_mat8x8<f16, A>>(&staged_own[(k * 4u + down + {i}u) * 64u], 8u);
#end
#for j in 0..2
            let b{j} = coopLoad<coop_mat8x8<f16, B>>(&staged[(k * 4u + across + {j}u) * 64u], 8u);
#for i in 0..2
            c{i}{j} = coopMultiplyAdd(a{i}, b{j}, c{i}{j});
#end
#end
        }
    }
    let pitch = PITCH;
#for i in 0..2
#for j in 0..2
    let at{i}{j} = (down + {i}u) * 8u * PITCH + (across + {j}u) * 8u;
    let score{i}{j} = c{i}{j};
    coopStoreT(score{i}{j}, &block[at{i}{j}], pitch);
#end
#end
    workgroupBarrier();
}

#end
// Whether a query of a block, which is row `query`, sees a key.
fn sees(place: u32, query: u32, key: u32) -> bool {
    return query < params.rows && key <= query && f32(key) >= queries[place].w;
}

// Fills `queries`, before a barrier; in forward without `delta`.
fn load_queries(query0: u32, head: u32, lane: u32) {
    for (var i = lane; i < 32u; i += THREADS) {
        queries[i] = vec4<f32>(row_lse[query_row(query0 + i, head)], 0.0, 1.0, f32(first_key(query0 + i)));
    }
}

// `unit` is the unit of the sum; 0: each row's own.
fn load_backward(query0: u32, head: u32, unit: f32, lane: u32) {
    for (var i = lane; i < 32u; i += THREADS) {
        let row = query_row(query0 + i, head);
        let own = row_delta[row];
        queries[i] = vec4<f32>(row_lse[row], own.x / own.y, select(own.y / unit, 1.0, unit == 0.0), f32(first_key(query0 + i)));
    }
}

// Replaces the scores in `block` by weights, with queries or keys as own rows, and then by score gradients.
#for (side, there, sloped, query, key, place) in (queries, 1, 0, own0 + own, other0 + other, own) (keys, 1, 0, other0 + other, own0 + own, other) (queries_sloped, {CAP}, 1, own0 + own, other0 + other, own) (keys_sloped, {CAP}, 1, other0 + other, own0 + own, other)
#if {there}
fn weigh_{side}(own0: u32, other0: u32, lane: u32) {
    for (var i = lane; i < 1024u; i += THREADS) {
        let own = i / 32u;
        let other = i % 32u;
#if {CAP}
        let s = capped_one(params.scale * block[own * PITCH + other]);
#if {sloped}
        let p = queries[{place}].z * slope_of_one(s) * exp(s - queries[{place}].x);
#else
        let p = queries[{place}].z * exp(s - queries[{place}].x);
#end
#else
        let p = queries[{place}].z * exp(params.scale * block[own * PITCH + other] - queries[{place}].x);
#end
        weights[staged_at(own, other)] = f16(select(0.0, p, sees({place}, {query}, {key})));
    }
}

#end
#end
#for (side, place) in (queries, own) (keys, other)
fn differentiate_{side}(lane: u32) {
    for (var i = lane; i < 1024u; i += THREADS) {
        let own = i / 32u;
        let other = i % 32u;
        let at = staged_at(own, other);
        weights[at] = f16(f32(weights[at]) * (block[own * PITCH + other] - queries[{place}].y));
    }
}

#end
// Stages 64 columns of 32 of the others.
#for (name, load) in (stage_q, load_q) (stage_k, load_k) (stage_v, load_v) (stage_dout, load_dout)
fn {name}(other0: u32, head: u32, column4: u32, lane: u32) {
    for (var i = lane; i < 512u; i += THREADS) {
        let row = i / 16u;
        let column = i % 16u * 4u;
        var value = vec4<f16>();
        if column4 + i % 16u < HEAD4 {
            value = {load}(other0 + row, head, column4 + i % 16u);
        }
        let at = (row / 8u * 8u + column / 8u) * 64u + row % 8u * 8u + column % 8u;
#for (n, c) in (0, x) (1, y) (2, z) (3, w)
        staged[at + {n}u] = value.{c};
#end
    }
}

#end
// First and end row of a workgroup's own rows, and of the others that it reads.
fn queries_from(group: u32, groups: u32) -> u32 {
    return (groups - 1u - group) * OWN; // the last rows see the most keys, so they start first
}

fn keys_from(group: u32, groups: u32) -> u32 {
    return group * OWN;
}

fn end_of_queries(own0: u32) -> u32 {
    return min(own0 + OWN, params.rows);
}

fn end_of_keys(own0: u32) -> u32 {
    return end_query(own0);
}

fn first_of_queries(own0: u32) -> u32 {
    return first_key(own0);
}

fn first_of_keys(own0: u32) -> u32 {
    return own0;
}

// lse of 32 queries; each thread takes a quarter of the scores of one.
@compute @workgroup_size(THREADS)
fn lse(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32, @builtin(subgroup_id) subgroup: u32) {
    let own0 = queries_from(group.x, groups.x);
    let head = group.y;
    for (var i = lane; i < 128u; i += THREADS) {
        states[i] = vec2<f32>(LOWEST, 0.0);
    }
    for (var i = lane; i < 32u; i += THREADS) {
        queries[i].w = f32(first_key(own0 + i));
    }
    let end = end_of_queries(own0);
    for (var other0 = first_of_queries(own0); other0 < end; other0 += OTHERS) {
        query_scores(own0, other0, head, lane, subgroup);
        for (var i = lane; i < 128u; i += THREADS) {
            let own = i / 4u;
            let before = states[i];
            var most = before.x;
            for (var other = i % 4u; other < 32u; other += 4u) {
                if sees(own, own0 + own, other0 + other) {
#if {CAP}
                    most = max(most, capped_one(params.scale * block[own * PITCH + other]));
#else
                    most = max(most, params.scale * block[own * PITCH + other]);
#end
                }
            }
            var sum = before.y * exp(before.x - most);
            for (var other = i % 4u; other < 32u; other += 4u) {
                if sees(own, own0 + own, other0 + other) {
#if {CAP}
                    sum += exp(capped_one(params.scale * block[own * PITCH + other]) - most);
#else
                    sum += exp(params.scale * block[own * PITCH + other] - most);
#end
                }
            }
            states[i] = vec2<f32>(most, sum);
        }
    }
    workgroupBarrier();
    for (var i = lane; i < 32u; i += THREADS) {
        var most = LOWEST;
        var sum = 0.0;
        for (var part = i * 4u; part < i * 4u + 4u; part++) {
            most = max(most, states[part].x);
        }
#if {SINKS}
        most = max(most, sinks[head]);
        sum = exp(sinks[head] - most);
#end
        for (var part = i * 4u; part < i * 4u + 4u; part++) {
            sum += states[part].y * exp(states[part].x - most);
        }
        if own0 + i < params.rows {
            row_lse[query_row(own0 + i, head)] = most + log(sum);
        }
    }
}

// The largest unit of all queries that see the own keys.
fn sum_unit(own0: u32, end: u32, head: u32, lane: u32) -> f32 {
    var unit = 0.0;
    for (var query = own0 + lane; query < end; query += THREADS) {
        unit = max(unit, row_delta[query_row(query, head)].y);
    }
    states[lane].x = unit;
    workgroupBarrier();
    for (var i = 0u; i < THREADS; i++) {
        unit = max(unit, states[i].x);
    }
    return unit;
}

// Stores four columns of an own row, which is row `i` / 16 of 8 in `block`.
fn store(own0: u32, first: u32, head: u32, column4: u32, factor: f32, i: u32) {
    let row = own0 + first + i / 16u;
    let at = i / 16u * WIDE + i % 16u * 4u;
    if row < params.rows && column4 + i % 16u < HEAD4 {
        let sum = vec4<f32>(block[at], block[at + 1u], block[at + 2u], block[at + 3u]);
        result[query_at(row, head) + column4 + i % 16u] = factor * sum;
    }
}

// The passes: what each prepares, how it weighs a block of the others, and the factor of its sums. out = Σ p·v:
fn prepare_forward(own0: u32, end: u32, head: u32, lane: u32) -> f32 {
    load_queries(own0, head, lane);
    return 1.0;
}

fn weigh_forward(own0: u32, other0: u32, head: u32, unit: f32, lane: u32, subgroup: u32) {
    query_scores(own0, other0, head, lane, subgroup);
    weigh_queries(own0, other0, lane);
}

fn factor_forward(row: u32, head: u32, unit: f32) -> f32 {
    return 1.0;
}

// dq = Σ ds·k
fn prepare_backward_q(own0: u32, end: u32, head: u32, lane: u32) -> f32 {
    load_backward(own0, head, 0.0, lane);
    return 1.0;
}

fn weigh_backward_q(own0: u32, other0: u32, head: u32, unit: f32, lane: u32, subgroup: u32) {
#if {CAP}
    query_scores(own0, other0, head, lane, subgroup);
    weigh_queries_sloped(own0, other0, lane);
#else
    weigh_forward(own0, other0, head, unit, lane, subgroup);
#end
    query_gradients(own0, other0, head, lane, subgroup);
    differentiate_queries(lane);
}

fn factor_backward_q(row: u32, head: u32, unit: f32) -> f32 {
    return row_delta[query_row(row, head)].y / params.k_scale;
}

// dv = Σ p·dout of one query head, and dk = Σ ds·q: the unit of the sums over all queries that see the own keys is the largest of theirs.
#for (pass, factor) in (backward_v, unit) (backward_k, unit / params.q_scale)
fn prepare_{pass}(own0: u32, end: u32, head: u32, lane: u32) -> f32 {
    return sum_unit(own0, end, head, lane);
}

fn factor_{pass}(row: u32, head: u32, unit: f32) -> f32 {
    return {factor};
}

#end
fn weigh_backward_v(own0: u32, other0: u32, head: u32, unit: f32, lane: u32, subgroup: u32) {
    load_backward(other0, head, unit, lane);
    key_scores(own0, other0, head, lane, subgroup);
    weigh_keys(own0, other0, lane);
}

fn weigh_backward_k(own0: u32, other0: u32, head: u32, unit: f32, lane: u32, subgroup: u32) {
#if {CAP}
    load_backward(other0, head, unit, lane);
    key_scores(own0, other0, head, lane, subgroup);
    weigh_keys_sloped(own0, other0, lane);
#else
    weigh_backward_v(own0, other0, head, unit, lane, subgroup);
#end
    value_gradients(own0, other0, head, lane, subgroup);
    differentiate_keys(lane);
}

#for (pass, side, summed) in (forward, queries, v) (backward_q, queries, k) (backward_k, keys, q) (backward_v, keys, dout)
@compute @workgroup_size(THREADS)
fn {pass}(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32, @builtin(subgroup_id) subgroup: u32) {
    let own0 = {side}_from(group.x, groups.x);
    let head = group.y;
    let end = end_of_{side}(own0);
    let unit = prepare_{pass}(own0, end, head, lane);
#for c in 0..{COLS}
#for i in 0..4
#for n in 0..2
    var c{c}{i}{n}: coop_mat8x8<f32, C>;
#end
#end
#end
    for (var other0 = first_of_{side}(own0); other0 < end; other0 += OTHERS) {
        weigh_{pass}(own0, other0, head, unit, lane, subgroup);
#for c in 0..{COLS}
        workgroupBarrier();
        stage_{summed}(other0, head, {c}u * 16u, lane);
        workgroupBarrier();
        for (var step = 0u; step < 4u; step++) {
#for i in 0..4
            let a{i} = coopLoadT<coop_mat8x8<f16, A>>(&weights[(step * 4u + {i}u) * 64u], 8u);
#end
#for n in 0..2
            let b{n} = coopLoadT<coop_mat8x8<f16, B>>(&staged[(step * 8u + subgroup * 2u + {n}u) * 64u], 8u);
#for i in 0..4
            c{c}{i}{n} = coopMultiplyAdd(a{i}, b{n}, c{c}{i}{n});
#end
#end
        }
#end
    }
    let pitch = WIDE;
    let at0 = subgroup * 16u;
    let at1 = at0 + 8u;
#for c in 0..{COLS}
#for i in 0..4
    workgroupBarrier();
#for n in 0..2
    let sum{c}{i}{n} = c{c}{i}{n};
    coopStoreT(sum{c}{i}{n}, &block[at{n}], pitch);
#end
    workgroupBarrier();
    for (var n = lane; n < 128u; n += THREADS) {
        store(own0, {i}u * 8u, head, {c}u * 16u, factor_{pass}(own0 + {i}u * 8u + n / 16u, head, unit), n);
    }
#end
#end
}

#end
