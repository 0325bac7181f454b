// The gated delta net's sizes, and where values of a token and head lie, in vec4s.

// Twin of `Params` in src/ops/delta/mod.rs.
struct Params {
    tokens: u32,        // T
    key_heads: u32,     // Hk
    value_heads: u32,   // Hv
    eps: f32,
    scale: f32,         // of queries, 1/√K
}

const SIZE: u32 = {SIZE}u;      // K
const SIZE4: u32 = SIZE / 4u;
const CHUNK: u32 = 64u;

@group(0) @binding(0) var<uniform> params: Params;

// Channels of the convolution: queries, keys and values.
fn channels4() -> u32 {
    return (2u * params.key_heads + params.value_heads) * SIZE4;
}

fn query_at(token: u32, head: u32) -> u32 {
    return token * channels4() + head % params.key_heads * SIZE4;
}

fn key_at(token: u32, head: u32) -> u32 {
    return query_at(token, head) + params.key_heads * SIZE4;
}

fn value_at(token: u32, head: u32) -> u32 {
    return token * channels4() + (2u * params.key_heads + head) * SIZE4;
}

// Row of `part` in rows [T, parts, Hv, K].
fn part_at(token: u32, parts: u32, part: u32, head: u32) -> u32 {
    return ((token * parts + part) * params.value_heads + head) * SIZE4;
}

fn state_at(chunk: u32, head: u32) -> u32 {
    return (chunk * params.value_heads + head) * SIZE * SIZE4;
}

// Floats from one row of gates to the next.
fn gate_stride() -> u32 {
    return (params.value_heads + 3u) / 4u * 4u;
}
