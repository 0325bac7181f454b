// Operands of the products within a chunk of one head: elements of the left ones, rows of the right ones.
#import common/delta_chunk

@group(0) @binding(3) var<storage, read> mixed: array<vec4<f32>>;          // queries, keys, values [T, C]
@group(0) @binding(4) var<storage, read> inverse: array<f32>;              // (I + A)⁻¹ [T, Hv, 64]
@group(0) @binding(5) var<storage, read_write> wu: array<vec4<f32>>;       // W, U [T, 2, Hv, K]
@group(0) @binding(6) var<storage, read> states: array<vec4<f32>>;         // before each chunk [N, Hv, K, K]
@group(0) @binding(8) var<storage, read> dout: array<vec4<f32>>;           // of O [T, Hv, K]
@group(0) @binding(9) var<storage, read_write> du: array<vec4<f32>>;       // of U, R [T, 2, Hv, K]
@group(0) @binding(10) var<storage, read> dstates: array<vec4<f32>>;       // behind each chunk [N, Hv, K, K]
@group(0) @binding(11) var<storage, read_write> pairs: array<f32>;         // D·dP, β·D·dA [T, 2, Hv, 64]

fn float4(values: vec4<f32>, i: u32) -> f32 {
    return values[i % 4u];
}

// Element [i, j] of each left operand.
fn inverse_of(first: u32, head: u32, i: u32, j: u32) -> f32 {
    return inverse[(token(first, i) * params.value_heads + head) * CHUNK + j];
}

fn inverse_back(first: u32, head: u32, i: u32, j: u32) -> f32 {
    return inverse_of(first, head, j, i);
}

fn scores(first: u32, head: u32, i: u32, j: u32) -> f32 {
    let left = decay(first, i, j);
    if left == 0.0 {
        return 0.0;
    }
    let a = query_at(token(first, i), head);
    let b = key_at(token(first, j), head);
    var sum = 0.0;
    for (var c = 0u; c < SIZE4; c++) {
        sum += dot(mixed[a + c], mixed[b + c]);
    }
    return left * sum;
}

fn scores_back(first: u32, head: u32, i: u32, j: u32) -> f32 {
    return scores(first, head, j, i);
}

fn queries_seen(first: u32, head: u32, i: u32, j: u32) -> f32 {
    return seen[i] * float4(mixed[query_at(token(first, i), head) + j / 4u], j);
}

fn gradients_seen(first: u32, head: u32, i: u32, j: u32) -> f32 {
    return seen[i] * float4(dout[part_at(token(first, i), 1u, 0u, head) + j / 4u], j);
}

fn errors_seen(first: u32, head: u32, i: u32, j: u32) -> f32 {
    return -seen[i] * rates[i] * float4(du[part_at(token(first, i), 2u, 1u, head) + j / 4u], j);
}

fn written_left(first: u32, head: u32, i: u32, j: u32) -> f32 {
    return left[i] * float4(wu[part_at(token(first, i), 2u, 1u, head) + j / 4u], j);
}

fn pair(first: u32, head: u32, part: u32, i: u32, j: u32) -> f32 {
    return pairs[((token(first, i) * 2u + part) * params.value_heads + head) * CHUNK + j];
}

// The diagonal is left out: its parts of the gradients of the sums cancel.
fn query_pairs(first: u32, head: u32, i: u32, j: u32) -> f32 {
    return select(0.0, pair(first, head, 0u, i, j), j < i);
}

fn query_pairs_back(first: u32, head: u32, i: u32, j: u32) -> f32 {
    return query_pairs(first, head, j, i);
}

fn key_pairs(first: u32, head: u32, i: u32, j: u32) -> f32 {
    return pair(first, head, 1u, i, j);
}

fn key_pairs_back(first: u32, head: u32, i: u32, j: u32) -> f32 {
    return pair(first, head, 1u, j, i);
}

// Row j of each right operand.
fn keys_seen(first: u32, head: u32, j: u32, c: u32) -> vec4<f32> {
    return rates[j] * seen[j] * mixed[key_at(first + j, head) + c];
}

fn values_rated(first: u32, head: u32, j: u32, c: u32) -> vec4<f32> {
    return rates[j] * mixed[value_at(first + j, head) + c];
}

fn state_row(first: u32, head: u32, j: u32, c: u32) -> vec4<f32> {
    return states[state_at(first / CHUNK, head) + j * SIZE4 + c];
}

#for (name, buffer) in (state_column, states) (dstate_column, dstates)
fn {name}(first: u32, head: u32, j: u32, c: u32) -> vec4<f32> {
    let at = state_at(first / CHUNK, head) + 4u * c * SIZE4 + j / 4u;
    return vec4<f32>(
        float4({buffer}[at], j),
        float4({buffer}[at + SIZE4], j),
        float4({buffer}[at + 2u * SIZE4], j),
        float4({buffer}[at + 3u * SIZE4], j),
    );
}

#end
fn u_row(first: u32, head: u32, j: u32, c: u32) -> vec4<f32> {
    return wu[part_at(first + j, 2u, 1u, head) + c];
}

fn dout_row(first: u32, head: u32, j: u32, c: u32) -> vec4<f32> {
    return dout[part_at(first + j, 1u, 0u, head) + c];
}

fn du_row(first: u32, head: u32, j: u32, c: u32) -> vec4<f32> {
    return du[part_at(first + j, 2u, 0u, head) + c];
}

fn query_row(first: u32, head: u32, j: u32, c: u32) -> vec4<f32> {
    return mixed[query_at(first + j, head) + c];
}

fn key_row(first: u32, head: u32, j: u32, c: u32) -> vec4<f32> {
    return mixed[key_at(first + j, head) + c];
}
