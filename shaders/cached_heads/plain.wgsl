// Queries, keys and values of new tokens, one workgroup per head: adds the adapter's term to the products, then applies RMSNorm and rotary
// embedding. Queries stay in place; keys and values go to their token's row of the cache. With EACH every token is of a sequence of its own.
// With BEHIND the weights of the norm are multiplied behind the rotary embedding. With EARLY, which EACH, BEHIND and IDENTITY exclude, the kernel
// starts before the products are there, and loads all else until then.
#import common/reduce_wide
#if {EARLY}
#import common/ahead
#end
#if {EACH}
#import common/steps
#end

// Twin of `Params` in src/ops/cached_heads/mod.rs.
struct Params {
    heads: u32,         // H
    kv_heads: u32,      // G; 0 where the layer shares another layer's cache
    head_size: u32,     // K
    stride: u32,        // floats of a row of products: queries, keys, values, z
    values: u32,        // first column of the raw values; that of the keys where the layer has no matrix for values
    rank: u32,          // padded rank of the adapter term; 0 for none
    z_offset: u32,      // first column of the queries' z
    k_z_offset: u32,
    v_z_offset: u32,
    k_b_offset: u32,    // first float of the keys' Bᵀ; the queries' Bᵀ begins at 0
    v_b_offset: u32,
    ring: u32,          // rows of the cache: token p is in row p % ring
    query_size: u32,    // floats from one query to the next: K, or 2·K where gates follow each query
    pairs: u32,         // rotated pairs of a head, at its start; K/2 or fewer
    eps: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> products: array<f32>;   // [T, stride]
@group(0) @binding(2) var<storage, read> b: array<f32>;                // Bᵀ of queries, keys and values [R, N]
#if !{IDENTITY}
@group(0) @binding(3) var<storage, read> q_norm: array<f32>;           // [K]
@group(0) @binding(4) var<storage, read> k_norm: array<f32>;           // [K]
#end
@group(0) @binding(5) var<storage, read> q_table: array<vec2<f32>>;    // scale·cos, scale·sin [positions, K/2]
#if {EACH}
@group(0) @binding(6) var<storage, read> steps: array<vec2<u32>>;      // tokens before this one, and its sequence [T]
#else
@group(0) @binding(6) var<storage, read> past: array<u32>;             // tokens in the cache before these [1]
#end
@group(0) @binding(7) var<storage, read_write> cache: array<f32>;      // [ring, keys and values, G, K]
@group(0) @binding(8) var<storage, read> k_table: array<vec2<f32>>;    // cos, sin [positions, K/2]

var<workgroup> head: array<f32, 512>; // K at most

const QUERY: u32 = 0u;
const KEY: u32 = 1u;
const VALUE: u32 = 2u;

// Σ_r B[n, r]·z[r], with N rows of B from b_at on. Loads the rows for DEEP vec4s of z together.
fn adapter_term(b_at: u32, n_rows: u32, z_at: u32) -> f32 {
    var sum = 0.0;
    for (var r = 0u; r < params.rank; r += 4u * {DEEP}u) {
#for j in 0..{DEEP}
#for i in 0..4
        let b{j}x{i} = b[b_at + (r + 4u * {j}u + {i}u) * n_rows];
        let z{j}x{i} = products[z_at + r + 4u * {j}u + {i}u];
#end
#end
#for j in 0..{DEEP}
#for i in 0..4
        sum += b{j}x{i} * z{j}x{i};
#end
#end
    }
    return sum;
}

#if {EARLY}
fn norms_of(kind: u32, pair: u32) -> vec2<f32> {
    if kind == QUERY {
        return vec2<f32>(q_norm[pair], q_norm[pair + params.pairs]);
    }
    return vec2<f32>(k_norm[pair], k_norm[pair + params.pairs]);
}

fn turn_of(kind: u32, at: u32) -> vec2<f32> {
    if kind == QUERY {
        return q_table[at];
    }
    return k_table[at];
}

#end
@compute @workgroup_size(256)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
#if {EACH}
    let step = steps[group.y];
    if step.y == NO_SEQUENCE {
        return;
    }
#end
    let row = group.y * params.stride;
    var kind = QUERY;
    var n = group.x; // head among queries, keys or values
    var raw = row;
    var z = row + params.z_offset;
    var b_at = 0u;
    var b_rows = params.heads * params.query_size;
    if n >= params.heads + params.kv_heads {
        kind = VALUE;
        n -= params.heads + params.kv_heads;
        raw = row + params.values;
        z = row + params.v_z_offset;
        b_at = params.v_b_offset;
        b_rows = params.kv_heads * params.head_size;
    } else if n >= params.heads {
        kind = KEY;
        n -= params.heads;
        raw = row + params.heads * params.query_size;
        z = row + params.k_z_offset;
        b_at = params.k_b_offset;
        b_rows = params.kv_heads * params.head_size;
    }
    let size = select(params.head_size, params.query_size, kind == QUERY);
    raw += n * size;
    b_at += n * size;

#if {EARLY}
    let own = min(lane, params.head_size - 1u);
#for j in 0..{DEEP}
#for i in 0..4
    var ahead{j}x{i} = 0.0;
    if params.rank > 0u {
        ahead{j}x{i} = b[b_at + own + (4u * {j}u + {i}u) * b_rows];
    }
#end
#end
    let position = past[0] + group.y;
    let pair = min(lane, max(params.pairs, 1u) - 1u);
    let first_turn = turn_of(kind, position * params.pairs + pair);
    let first_norms = norms_of(kind, pair);
    wait_for_kernel_ahead();
#end
#if !{IDENTITY}
    var squares = 0.0;
#end
    for (var i = lane; i < params.head_size; i += 256u) {
#if {EARLY}
        var term = 0.0;
        if i < 256u && params.rank == 4u * {DEEP}u {
#for j in 0..{DEEP}
#for i in 0..4
            term += ahead{j}x{i} * products[z + 4u * {j}u + {i}u];
#end
#end
        } else {
            term = adapter_term(b_at + i, b_rows, z);
        }
        let value = products[raw + i] + term;
#else
        let value = products[raw + i] + adapter_term(b_at + i, b_rows, z);
#end
        head[i] = value;
#if {IDENTITY}
    }
    workgroupBarrier();
#else
        squares += value * value;
    }
    let rstd = 1.0 / sqrt(wide_sum(squares, lane) / f32(params.head_size) + params.eps);
#end
#if {EACH}
    let position = step.x;
    let cached = ((step.y * params.ring + position % params.ring) * 2u * params.kv_heads + n) * params.head_size;
#else
#if !{EARLY}
    let position = past[0] + group.y;
#end
    let cached = (position % params.ring * 2u * params.kv_heads + n) * params.head_size;
#end
    let half = params.pairs;
    // What is not rotated is all of values, and the rest of queries and keys.
    for (var i = select(2u * half, 0u, kind == VALUE) + lane; i < params.head_size; i += 256u) {
        var value = head[i];
#if !{IDENTITY}
#if {NORMED_VALUES}
        value *= rstd;
#else
        value *= select(rstd, 1.0, kind == VALUE);
#end
        if kind == QUERY {
            value *= q_norm[i];
        } else if kind == KEY {
            value *= k_norm[i];
        }
#end
        if kind == QUERY {
            products[raw + i] = value;
        } else {
            cache[cached + select(0u, params.kv_heads * params.head_size, kind == VALUE) + i] = value;
        }
    }
    if kind == VALUE {
        return;
    }
    for (var i = lane; i < half; i += 256u) {
        var low = head[i];
        var high = head[i + half];
#if {EARLY}
        var norms = first_norms;
        var turn = first_turn;
        if i != lane {
            norms = norms_of(kind, i);
            turn = turn_of(kind, position * half + i);
        }
        low = low * rstd * norms.x;
        high = high * rstd * norms.y;
#else
#if !{IDENTITY}
        low *= rstd;
        high *= rstd;
#if !{BEHIND}
        if kind == QUERY {
            low *= q_norm[i];
            high *= q_norm[i + half];
        } else {
            low *= k_norm[i];
            high *= k_norm[i + half];
        }
#end
#end
        var turn = k_table[position * half + i];
        if kind == QUERY {
            turn = q_table[position * half + i];
        }
#end
#if {BEHIND}
        let weight_low = select(k_norm[i], q_norm[i], kind == QUERY);
        let weight_high = select(k_norm[i + half], q_norm[i + half], kind == QUERY);
        let turned_low = weight_low * (low * turn.x - high * turn.y);
        let turned_high = weight_high * (high * turn.x + low * turn.y);
#else
        let turned_low = low * turn.x - high * turn.y;
        let turned_high = high * turn.x + low * turn.y;
#end
        if kind == QUERY {
            products[raw + i] = turned_low;
            products[raw + i + half] = turned_high;
        } else {
            cache[cached + i] = turned_low;
            cache[cached + i + half] = turned_high;
        }
    }
}
