// shaders/attention/tiled.wgsl for a software renderer: blocks of 2·{LANES} queries, one query per lane, against blocks of 4·{LANES} keys.
// For dk and dv one key per lane, against the queries of all heads that share it. Sums over a block are accumulated in the result itself.
alias operand = f32;
#import common/attention
#import common/simd
#import common/softcap

@group(0) @binding(9) var<storage, read_write> dv: array<vec4<f32>>;   // [T, G, K]

const MASKED: f32 = -1e30;
const BLOCK: u32 = 2u * {LANES}u;
const OTHERS: u32 = 4u * {LANES}u;

#for r in 0..2
var<private> row{r}: u32;    // of the block, on this lane
var<private> low{r}: u32;    // the first that it sees
var<private> high{r}: u32;   // one past the last that it sees
var<private> at{r}: u32;     // where its vectors begin
#for g in 0..4
#for c in 0..{QUADS}
var<private> s{r}_{g}_{c}: vec4<f32>; // scores with the others, then probabilities
var<private> t{r}_{g}_{c}: vec4<f32>; // gradients of probabilities, then of scores
#end
#end
#end
#for g in 0..4
var<private> other{g}: u32;  // where the vectors of the others begin, of those that this lane loads
#end

// Which of the four rows from `first` on are seen.
fn seen(first: u32, low: u32, high: u32) -> vec4<bool> {
    let rows = first + vec4<u32>(0u, 1u, 2u, 3u);
    return (rows >= vec4<u32>(low)) & (rows < vec4<u32>(high));
}

#for (name, s, mine, other) in (query_scores, s, q, k) (query_gradients, t, dout, v) (key_scores, s, k, q) (key_gradients, t, v, dout)
fn {name}() {
#for r in 0..2
#for g in 0..4
#for c in 0..{QUADS}
    {s}{r}_{g}_{c} = vec4<f32>();
#end
#end
#end
    for (var d = 0u; d < HEAD4; d++) {
#for r in 0..2
        let mine{r} = {mine}[at{r} + d];
#end
#for g in 0..4
        let other{g}_d = {other}[other{g} + d];
#for c in 0..{QUADS}
        let other{g}_{c} = rows_{c}(other{g}_d);
#for r in 0..2
        {s}{r}_{g}_{c} += mine{r} * other{g}_{c};
#end
#end
#end
    }
}

#end
#if {CAP}
fn cap_scores() {
#for r in 0..2
#for g in 0..4
#for c in 0..{QUADS}
    s{r}_{g}_{c} = capped(s{r}_{g}_{c});
#end
#end
#end
}

#end
// result = factor·result + Σ over the others; without `keep` the result starts at zero.
#for (name, s, other, to) in (add_values, s, v, result) (add_keys, t, k, result) (add_queries, t, q, result) (add_gradients, s, dout, dv)
fn {name}(factor: vec2<f32>, keep: bool) {
    for (var d = 0u; d < HEAD4; d++) {
#for r in 0..2
        var sum{r} = vec4<f32>();
        if keep {
            sum{r} = factor[{r}] * {to}[at{r} + d];
        }
#end
#for g in 0..4
        let other{g}_d = {other}[other{g} + d];
#for c in 0..{QUADS}
        let other{g}_{c} = rows_{c}(other{g}_d);
#for r in 0..2
        sum{r} += other{g}_{c} * {s}{r}_{g}_{c};
#end
#end
#end
#for r in 0..2
        if row{r} < params.rows {
            {to}[at{r} + d] = sum{r};
        }
#end
    }
}

#end
fn choose_queries(block: u32, head: u32, lane: u32) {
#for r in 0..2
    row{r} = block + {r}u * {LANES}u + lane;
    low{r} = first_key(row{r});
    high{r} = row{r} + 1u;
    at{r} = query_at(row{r}, head);
#end
}

@compute @workgroup_size({LANES})
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let block = group.x * BLOCK;
    choose_queries(block, group.y, lane);
#if {SINKS}
    var most = vec2<f32>(sinks[group.y]);
    var total = vec2<f32>(1.0);
#else
    var most = vec2<f32>(MASKED);
    var total = vec2<f32>();
#end
    let first = first_key(block);
    for (var key = first; key < min(block + BLOCK, params.rows); key += OTHERS) {
#for g in 0..4
        other{g} = key_at(key + {g}u * {LANES}u + lane, kv_head(group.y));
#end
        query_scores();
#if {CAP}
        cap_scores();
#end
        let before = most;
#for r in 0..2
        var most{r} = vec4<f32>(most[{r}]);
#for g in 0..4
#for c in 0..{QUADS}
        most{r} = max(most{r}, select(vec4<f32>(MASKED), s{r}_{g}_{c}, seen(key + {g}u * {LANES}u + {c}u * 4u, low{r}, high{r})));
#end
#end
        most[{r}] = max(max(most{r}.x, most{r}.y), max(most{r}.z, most{r}.w));
        var sum{r} = vec4<f32>();
#for g in 0..4
#for c in 0..{QUADS}
        s{r}_{g}_{c} = select(vec4<f32>(), exp(s{r}_{g}_{c} - most[{r}]), seen(key + {g}u * {LANES}u + {c}u * 4u, low{r}, high{r}));
        sum{r} += s{r}_{g}_{c};
#end
#end
#end
        let factor = exp(before - most);
        total = total * factor + vec2<f32>(dot(sum0, vec4<f32>(1.0)), dot(sum1, vec4<f32>(1.0)));
        add_values(factor, key != first);
    }
#for r in 0..2
    if row{r} < params.rows {
        for (var d = 0u; d < HEAD4; d++) {
            result[at{r} + d] /= total[{r}];
        }
        row_lse[row{r} * params.heads + group.y] = most[{r}] + log(total[{r}]);
    }
#end
}

@compute @workgroup_size({LANES})
fn backward_q(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let block = group.x * BLOCK;
    choose_queries(block, group.y, lane);
#for r in 0..2
    let values{r} = min(row{r}, params.rows - 1u) * params.heads + group.y;
    let lse{r} = row_lse[values{r}];
    let delta{r} = row_delta[values{r}].x;
#end
    let first = first_key(block);
    for (var key = first; key < min(block + BLOCK, params.rows); key += OTHERS) {
#for g in 0..4
        other{g} = key_at(key + {g}u * {LANES}u + lane, kv_head(group.y));
#end
        query_scores();
        query_gradients();
#if {CAP}
        cap_scores();
#end
#for r in 0..2
#for g in 0..4
#for c in 0..{QUADS}
#if {CAP}
        let slope{r}_{g}_{c} = slope_at(s{r}_{g}_{c});
#end
        s{r}_{g}_{c} = select(vec4<f32>(), exp(s{r}_{g}_{c} - lse{r}), seen(key + {g}u * {LANES}u + {c}u * 4u, low{r}, high{r}));
        t{r}_{g}_{c} = s{r}_{g}_{c} * (t{r}_{g}_{c} - delta{r});
#if {CAP}
        t{r}_{g}_{c} *= slope{r}_{g}_{c};
#end
#end
#end
#end
        add_keys(vec2<f32>(1.0), key != first);
    }
}

// dk and dv of a block of keys, from all query heads that share them.
@compute @workgroup_size({LANES})
fn backward_kv(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let block = group.x * BLOCK;
#for r in 0..2
    row{r} = block + {r}u * {LANES}u + lane;
    low{r} = row{r};
    high{r} = end_of(min(row{r}, params.rows - 1u));
    at{r} = key_at(row{r}, group.y);
#end
    let end = end_query(block);
    let sharing = params.heads / params.kv_heads;
    for (var head = group.y * sharing; head < (group.y + 1u) * sharing; head++) {
        for (var query = block; query < end; query += OTHERS) {
#for g in 0..4
            let query{g} = query + {g}u * {LANES}u + lane;
            let values{g} = min(query{g}, params.rows - 1u) * params.heads + head;
            let lse{g} = row_lse[values{g}];
            let delta{g} = row_delta[values{g}].x;
            other{g} = query_at(query{g}, head);
#end
            key_scores();
            key_gradients();
#if {CAP}
            cap_scores();
#end
#for g in 0..4
#for c in 0..{QUADS}
            let lse{g}_{c} = values_{c}(lse{g});
            let delta{g}_{c} = values_{c}(delta{g});
#for r in 0..2
#if {CAP}
            let slope{r}_{g}_{c} = slope_at(s{r}_{g}_{c});
#end
            s{r}_{g}_{c} = select(vec4<f32>(), exp(s{r}_{g}_{c} - lse{g}_{c}), seen(query + {g}u * {LANES}u + {c}u * 4u, low{r}, high{r}));
            t{r}_{g}_{c} = s{r}_{g}_{c} * (t{r}_{g}_{c} - delta{g}_{c});
#if {CAP}
            t{r}_{g}_{c} *= slope{r}_{g}_{c};
#end
#end
#end
#end
            add_gradients(vec2<f32>(1.0), true);
            add_queries(vec2<f32>(1.0), true);
        }
    }
}
