// Products within a chunk of one head on cooperative matrices of 16×16, by a workgroup of four subgroups: [64, K] += left·right, 32 terms
// of the sum at a time. Operands become f16 on their way into workgroup memory, divided by a power of two where their size is not known.
#import common/delta_chunk
#import common/packed

const HEAD_STEPS: u32 = (SIZE + 31u) / 32u;         // steps of a sum over a head
const CHUNK_STEPS: u32 = 2u;                        // steps of a sum over a chunk
const LHS_PITCH: u32 = 10u;                         // 32 columns and 8 halves, / 4
const RHS_PITCH: u32 = SIZE4 + 2u;
const ACROSS: u32 = SIZE / 16u / {COLUMNS}u;        // subgroups beside each other

var<workgroup> lhs: array<vec4<f16>, 640>;          // 64 rows of 32 terms
var<workgroup> rhs: array<vec4<f16>, {RHS}>;        // 32 terms of K columns, or 64 rows of 32 terms
var<workgroup> finished: array<vec4<f32>, 320>;     // 16×16 results per subgroup, 5 vec4s per row
var<workgroup> maxima: array<f32, 4>;               // of subgroups

// The largest of all threads' values.
fn workgroup_max(value: f32, lane: u32) -> f32 {
    let most = subgroupMax(value);
    workgroupBarrier();
    maxima[lane / 32u] = most;
    workgroupBarrier();
    return max(max(maxima[0], maxima[1]), max(maxima[2], maxima[3]));
}

// Behind the states lie the largest values of each chunk and head, five vec4s, so that readers know how to scale operands: those of the state
// and of U by 16 columns, or of their gradients; and in the fifth, beside gradients, those of dO, R and both parts of the pairs.
fn largest_at(first: u32, head: u32) -> u32 {
    let chunks = (params.tokens + CHUNK - 1u) / CHUNK;
    return state_at(chunks, 0u) + (first / CHUNK * params.value_heads + head) * 5u;
}

// The largest of the values by 16 columns.
fn of_columns(a: vec4<f32>, b: vec4<f32>) -> f32 {
    let columns = vec4<u32>(SIZE / 16u);
    let own_a = select(vec4<f32>(), a, vec4<u32>(0u, 1u, 2u, 3u) < columns);
    let own_b = select(vec4<f32>(), b, vec4<u32>(4u, 5u, 6u, 7u) < columns);
    return most4(max(own_a, own_b));
}

// The importer has `states`.
#for (name, part) in (state, 0u) (u, 2u)
fn most_of_{name}(first: u32, head: u32) -> f32 {
    let at = largest_at(first, head) + {part};
    return of_columns(states[at], states[at + 1u]);
}

#end
// Queries, keys and values of token `i` of the chunk; 0 behind the last. Reads are unconditional, so that several are in flight at once.
#for (name, place) in (query_row, query_at) (key_row, key_at) (value_row, value_at)
fn {name}(first: u32, head: u32, i: u32, c: u32) -> vec4<f32> {
    let own = mixed[{place}(token(first, i), head) + min(c, SIZE4 - 1u)];
    return select(vec4<f32>(), own, i < count_of(first) && c < SIZE4);
}

#end
