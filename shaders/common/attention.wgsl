// Parameters, bindings and reads of shaders/attention/{tiled,coop8,software}.wgsl. Operands have the importer's type `operand`, f16 or f32.
// Queries and keys are multiplied by powers of two, because a norm bounds them; rows of dout by the factor that `delta` stores; values are
// unscaled.
#import common/seen

// Twin of `Params` in src/ops/attention/mod.rs.
struct Params {
    rows: u32,          // T
    heads: u32,         // H
    kv_heads: u32,      // G
    window: u32,        // 0: none
    q_scale: f32,       // power of two of queries
    k_scale: f32,       // power of two of keys
    scale: f32,         // undoes both
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;          // [T, H, K]
@group(0) @binding(2) var<storage, read> k: array<vec4<f32>>;          // [T, G, K]
@group(0) @binding(3) var<storage, read> v: array<vec4<f32>>;          // [T, G, K]
@group(0) @binding(4) var<storage, read> bounds: array<vec2<u32>>;     // start and end row of each token's sample [T]
@group(0) @binding(5) var<storage, read> dout: array<vec4<f32>>;       // [T, H, K]
@group(0) @binding(6) var<storage, read_write> result: array<vec4<f32>>; // out, dq, or dk or dv of a query head [T, H, K]; dk or dv [T, G, K]
@group(0) @binding(7) var<storage, read_write> row_lse: array<f32>;    // [T, H]
@group(0) @binding(8) var<storage, read_write> row_delta: array<vec2<f32>>; // delta, and the factor that undoes the scaling of dout [T, H]
#if {SINKS}
@group(0) @binding(10) var<storage, read> sinks: array<f32>;           // one more score of each head, without a value [H]
#end

const HEAD4: u32 = {HEAD4}u;        // K / 4, at most 128

fn kv_head(head: u32) -> u32 {
    return head / (params.heads / params.kv_heads);
}

// The index of a query and head in arrays [T, H].
fn query_row(query: u32, head: u32) -> u32 {
    return min(query, params.rows - 1u) * params.heads + head;
}

fn query_at(query: u32, head: u32) -> u32 {
    return query_row(query, head) * HEAD4;
}

fn key_at(key: u32, head: u32) -> u32 {
    return (min(key, params.rows - 1u) * params.kv_heads + head) * HEAD4;
}

// Four columns of a row, scaled as an operand.
fn load_q(row: u32, head: u32, d: u32) -> vec4<operand> {
    return vec4<operand>(params.q_scale * q[query_at(row, head) + d]);
}

fn load_k(row: u32, head: u32, d: u32) -> vec4<operand> {
    return vec4<operand>(params.k_scale * k[key_at(row, kv_head(head)) + d]);
}

fn load_v(row: u32, head: u32, d: u32) -> vec4<operand> {
    return vec4<operand>(v[key_at(row, kv_head(head)) + d]);
}

fn load_dout(row: u32, head: u32, d: u32) -> vec4<operand> {
    return vec4<operand>(1.0 / row_delta[query_row(row, head)].y * dout[query_at(row, head) + d]);
}

fn first_key(query: u32) -> u32 {
    return first_of(query, bounds[min(query, params.rows - 1u)].x);
}
