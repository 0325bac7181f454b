// Products within a chunk of one head, [64, K]. One workgroup of 256 threads per chunk and head; a thread has 4 neighbouring columns of
// some blocks of 4 rows. The left operand is staged 32 columns at a time.
#import common/delta_operands

@group(0) @binding(7) var<storage, read_write> result: array<vec4<f32>>;   // O [T, Hv, K]
@group(0) @binding(12) var<storage, read_write> dmixed: array<vec4<f32>>;  // of queries, keys, values by value head [T, 3, Hv, K]
@group(0) @binding(13) var<storage, read_write> dsums: array<f32>;         // of the sums of decays' logarithms [T, Hv]
@group(0) @binding(14) var<storage, read_write> dbeta: array<f32>;         // of σ⁻¹(rate) [T, Hv]

const GROUPS: u32 = 256u / SIZE4;   // threads that have the same columns

// The left operand [32 columns, 64 rows], or parts of the dot products of rows [16 blocks of 4 rows, K/4].
var<workgroup> block: array<vec4<f32>, 512>;

#for n in 0..{ITEMS}
#for r in 0..4
var<private> acc{n}_{r}: vec4<f32>;
#end
#end

// acc += left·right, where the sum has `length` terms.
#for (name, left, right) in (invert_keys, inverse_of, keys_seen) (invert_values, inverse_of, values_rated) (add_state, queries_seen, state_row) (add_scores, scores, u_row) (add_scores_back, scores_back, dout_row) (invert_back, inverse_back, du_row) (add_queries_state, gradients_seen, state_column) (add_query_pairs, query_pairs, key_row) (add_keys_state, errors_seen, state_column) (add_key_pairs, key_pairs, key_row) (add_key_pairs_back, key_pairs_back, key_row) (add_query_pairs_back, query_pairs_back, query_row) (add_written, written_left, dstate_column)
fn {name}(first: u32, head: u32, length: u32, lane: u32) {
    let c = lane % SIZE4;
    for (var column = 0u; column < length; column += 32u) {
        workgroupBarrier();
        let end = min(32u, length - column);
        for (var n = lane; n < 512u; n += 256u) {
            let i = n / 32u * 4u;
            let j = column + n % 32u;
            var rows = vec4<f32>();
            if n % 32u < end {
#for r in 0..4
                rows[{r}] = {left}(first, head, i + {r}u, j);
#end
            }
            block[n % 32u * 16u + n / 32u] = rows;
        }
        workgroupBarrier();
        for (var j = 0u; j < end; j++) {
            let row = {right}(first, head, column + j, c);
#for n in 0..{ITEMS}
            let own{n} = block[j * 16u + min(lane / SIZE4 + {n}u * GROUPS, 15u)];
#for r in 0..4
            acc{n}_{r} += own{n}[{r}] * row;
#end
#end
        }
    }
    workgroupBarrier();
}

#end
fn clear() {
#for n in 0..{ITEMS}
#for r in 0..4
    acc{n}_{r} = vec4<f32>();
#end
#end
}

// Whether the thread has block `n` of its columns, and a row of it is a token.
fn has(first: u32, row: u32, lane: u32) -> bool {
    return lane < GROUPS * SIZE4 && row < count_of(first);
}

fn row_of(n: u32, r: u32, lane: u32) -> u32 {
    return (lane / SIZE4 + n * GROUPS) * 4u + r;
}

#for (name, part, parts) in (w_at, 0u, 2u) (u_at, 1u, 2u) (o_at, 0u, 1u) (dq_at, 0u, 3u) (dk_at, 1u, 3u) (dv_at, 2u, 3u)
fn {name}(t: u32, head: u32) -> u32 {
    return part_at(t, {parts}, {part}, head);
}

#end
// Stores the result's rows, or adds them.
#for (name, buffer, place, how) in (store_w, wu, w_at, =) (store_u, wu, u_at, =) (store_result, result, o_at, =) (store_du, du, w_at, =) (store_dk, dmixed, dk_at, =) (add_dk, dmixed, dk_at, +=)
fn {name}(first: u32, head: u32, lane: u32) {
    let c = lane % SIZE4;
#for n in 0..{ITEMS}
#for r in 0..4
    if has(first, row_of({n}u, {r}u, lane), lane) {
        {buffer}[{place}(first + row_of({n}u, {r}u, lane), head) + c] {how} acc{n}_{r};
    }
#end
#end
}

#end
// Stores or adds the result's rows with the parts of the diagonal.
#for (name, place, how, operand) in (store_dq_diagonal, dq_at, =, key_row) (add_dk_diagonal, dk_at, +=, query_row)
fn {name}(first: u32, head: u32, lane: u32) {
    let c = lane % SIZE4;
#for n in 0..{ITEMS}
#for r in 0..4
    if has(first, row_of({n}u, {r}u, lane), lane) {
        let row = row_of({n}u, {r}u, lane);
        let diagonal = pair(first, head, 0u, row, row) * {operand}(first, head, row, c);
        dmixed[{place}(first + row, head) + c] {how} acc{n}_{r} + diagonal;
    }
#end
#end
}

#end
// R, and the gradients of values, β·R.
fn store_errors(first: u32, head: u32, lane: u32) {
    let c = lane % SIZE4;
#for n in 0..{ITEMS}
#for r in 0..4
    if has(first, row_of({n}u, {r}u, lane), lane) {
        let row = row_of({n}u, {r}u, lane);
        du[u_at(first + row, head) + c] = acc{n}_{r};
        dmixed[dv_at(first + row, head) + c] = rates[row] * acc{n}_{r};
    }
#end
#end
}

// Dot products of the result's rows with queries or keys; the first threads have one each.
#for (name, operand) in (dot_queries, query_row) (dot_keys, key_row)
fn {name}(first: u32, head: u32, lane: u32) -> f32 {
    let c = lane % SIZE4;
    workgroupBarrier();
#for n in 0..{ITEMS}
    if has(first, row_of({n}u, 0u, lane), lane) {
        let last = count_of(first) - 1u;
        var parts{n} = vec4<f32>();
#for r in 0..4
        parts{n}[{r}] = dot(acc{n}_{r}, {operand}(first, head, min(row_of({n}u, {r}u, lane), last), c));
#end
        block[row_of({n}u, 0u, lane) / 4u * SIZE4 + c] = parts{n};
    }
#end
    workgroupBarrier();
    var sum = 0.0;
    if lane < count_of(first) {
        for (var i = 0u; i < SIZE4; i++) {
            sum += block[lane / 4u * SIZE4 + i][lane % 4u];
        }
    }
    workgroupBarrier();
    return sum;
}

#end
// W = (I + A)⁻¹·β·Γ·K and U₀ = (I + A)⁻¹·β·V.
@compute @workgroup_size(256)
fn invert(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.x * CHUNK;
    let head = group.y;
    load_chunk(first, head, lane);
    invert_keys(first, head, count_of(first), lane);
    store_w(first, head, lane);
    clear();
    invert_values(first, head, count_of(first), lane);
    store_u(first, head, lane);
}

// O = Γ·Q·S + P·U.
@compute @workgroup_size(256)
fn outputs(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.x * CHUNK;
    let head = group.y;
    load_chunk(first, head, lane);
    add_state(first, head, SIZE, lane);
    add_scores(first, head, count_of(first), lane);
    store_result(first, head, lane);
}

// dU₀ = Pᵀ·dO.
@compute @workgroup_size(256)
fn outputs_back(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.x * CHUNK;
    let head = group.y;
    load_chunk(first, head, lane);
    add_scores_back(first, head, count_of(first), lane);
    store_du(first, head, lane);
}

// R = (I + A)⁻ᵀ·dU, the gradient of β·(V − Γ·K·S).
@compute @workgroup_size(256)
fn invert_errors(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.x * CHUNK;
    let head = group.y;
    load_chunk(first, head, lane);
    invert_back(first, head, count_of(first), lane);
    store_errors(first, head, lane);
}

// D·dP = D·dO·Uᵀ on and below the diagonal, β·D·dA = −β·D·R·Uᵀ below it, and the gradient of the rates.
@compute @workgroup_size(256)
fn pair_gradients(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.x * CHUNK;
    let head = group.y;
    let count = count_of(first);
    load_chunk(first, head, lane);
    for (var n = lane; n < count * CHUNK; n += 256u) {
        let i = n / CHUNK;
        let j = n % CHUNK;
        let left = decay(first, i, j);
        var dp = 0.0;
        var da = 0.0;
        if left > 0.0 {
            let gradient = part_at(first + i, 1u, 0u, head);
            let error = part_at(first + i, 2u, 1u, head);
            let u = part_at(first + j, 2u, 1u, head);
            for (var c = 0u; c < SIZE4; c++) {
                dp += dot(dout[gradient + c], wu[u + c]);
                da += dot(du[error + c], wu[u + c]);
            }
        }
        let at = ((first + i) * 2u * params.value_heads + head) * CHUNK + j;
        pairs[at] = left * dp;
        pairs[at + params.value_heads * CHUNK] = select(0.0, -rates[i] * left * da, j < i);
    }
    if lane < count {
        let own = part_at(first + lane, 2u, 1u, head);
        var sum = 0.0;
        for (var c = 0u; c < SIZE4; c++) {
            sum += dot(du[own + c], wu[own + c]);
        }
        dbeta[(first + lane) * gate_stride() + head] = (1.0 - rates[lane]) * sum;
    }
}

// dQ = Γ·dO·Sᵀ + D·dP·K.
@compute @workgroup_size(256)
fn query_gradients(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.x * CHUNK;
    let head = group.y;
    load_chunk(first, head, lane);
    add_queries_state(first, head, SIZE, lane);
    add_query_pairs(first, head, count_of(first), lane);
    let read = dot_queries(first, head, lane);
    store_dq_diagonal(first, head, lane);
    if lane < count_of(first) {
        dsums[(first + lane) * gate_stride() + head] = read;
    }
}

// dK where keys read: −β·Γ·R·Sᵀ + β·D·dA·K; and where they are written: (D·dP)ᵀ·Q + (β·D·dA)ᵀ·K.
@compute @workgroup_size(256)
fn key_gradients(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.x * CHUNK;
    let head = group.y;
    let count = count_of(first);
    load_chunk(first, head, lane);
    add_keys_state(first, head, SIZE, lane);
    add_key_pairs(first, head, count, lane);
    let read = dot_keys(first, head, lane);
    store_dk(first, head, lane);
    clear();
    add_key_pairs_back(first, head, count, lane);
    add_query_pairs_back(first, head, count, lane);
    let written = dot_keys(first, head, lane);
    add_dk_diagonal(first, head, lane);
    if lane < count {
        dsums[(first + lane) * gate_stride() + head] += read - written;
    }
}

// dK through the state behind the chunk: D[last]·U·dS'ᵀ.
@compute @workgroup_size(256)
fn state_gradients(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.x * CHUNK;
    let head = group.y;
    let last = count_of(first) - 1u;
    load_chunk(first, head, lane);
    add_written(first, head, SIZE, lane);
    let written = dot_keys(first, head, lane);
    add_dk(first, head, lane);
    if lane <= last {
        dsums[(first + lane) * gate_stride() + head] -= written;
    }
    // The last sum has a part of each token, and one of the state.
    var sum = 0.0;
    for (var n = lane; n < SIZE * SIZE4; n += 256u) {
        let at = state_at(first / CHUNK, head) + n;
        sum += dot(states[at], dstates[at]);
    }
    workgroupBarrier();
    block[lane] = vec4<f32>(select(0.0, written, lane <= last), kept_of(first) * sum, 0.0, 0.0);
    workgroupBarrier();
    if lane == last {
        var total = 0.0;
        for (var n = 0u; n < 256u; n++) {
            total += block[n].x + block[n].y;
        }
        dsums[(first + lane) * gate_stride() + head] += total;
    }
}
