// Products of shaders/delta/products.wgsl on cooperative matrices of 16×16. A subgroup computes 16·ROWS rows of 16·COLUMNS columns of a
// result [64, K].
enable f16;
enable wgpu_cooperative_matrix;
#import common/delta_coop16

@group(0) @binding(3) var<storage, read> mixed: array<vec4<f32>>;          // queries, keys, values [T, C]
@group(0) @binding(4) var<storage, read> inverse: array<vec4<f32>>;        // (I + A)⁻¹ [T, Hv, 64]
@group(0) @binding(5) var<storage, read_write> wu: array<vec4<f32>>;       // W, U [T, 2, Hv, K]
@group(0) @binding(6) var<storage, read> states: array<vec4<f32>>;         // before each chunk [N, Hv, K, K]
@group(0) @binding(8) var<storage, read> dout: array<vec4<f32>>;           // of O [T, Hv, K]
@group(0) @binding(9) var<storage, read_write> du: array<vec4<f32>>;       // of U, R [T, 2, Hv, K]
@group(0) @binding(10) var<storage, read_write> dstates: array<vec4<f32>>; // behind each chunk [N, Hv, K, K]
@group(0) @binding(11) var<storage, read> pairs: array<vec4<f32>>;         // D·dP, β·D·dA [T, 2, Hv, 64]
@group(0) @binding(12) var<storage, read_write> dmixed: array<vec4<f32>>;  // of queries, keys, values by value head [T, 3, Hv, K]
@group(0) @binding(13) var<storage, read_write> dsums: array<f32>;         // of the sums of decays' logarithms [T, Hv]

const DOTS: u32 = ACROSS * 4u;              // partial dot products of a row

var<workgroup> dots: array<f32, 1024>;      // partial dot products of rows

// Powers of two that multiply an operand beside a state, a state, and any other operand; and the one that undoes them in the result.
struct Units {
    beside: f32,
    state: f32,
    own: f32,
    undo: f32,
}

// Rows of the operands by token; 0 behind the last.
fn inverse_row(first: u32, head: u32, i: u32, c: u32) -> vec4<f32> {
    return select(vec4<f32>(), inverse[(token(first, i) * params.value_heads + head) * 16u + c], i < count_of(first));
}

// β·Γ·K and β·V.
fn rated_key_row(first: u32, head: u32, j: u32, c: u32) -> vec4<f32> {
    return rates[j] * seen[j] * key_row(first, head, j, c);
}

fn rated_value_row(first: u32, head: u32, j: u32, c: u32) -> vec4<f32> {
    return rates[j] * value_row(first, head, j, c);
}

#for (name, buffer, parts, part) in (u_row, wu, 2u, 1u) (dout_row, dout, 1u, 0u) (du_row, du, 2u, 0u) (error_row, du, 2u, 1u)
fn {name}(first: u32, head: u32, i: u32, c: u32) -> vec4<f32> {
    let own = {buffer}[part_at(token(first, i), {parts}, {part}, head) + min(c, SIZE4 - 1u)];
    return select(vec4<f32>(), own, i < count_of(first) && c < SIZE4);
}

#end
fn pair_row(first: u32, head: u32, part: u32, i: u32, c: u32) -> vec4<f32> {
    let at = ((token(first, i) * 2u + part) * params.value_heads + head) * 16u + c;
    return select(vec4<f32>(), pairs[at], i < count_of(first));
}

// Without the diagonal: its parts of the gradients of the sums cancel.
fn query_pair_row(first: u32, head: u32, i: u32, c: u32) -> vec4<f32> {
    let column = vec4<u32>(4u * c) + vec4<u32>(0u, 1u, 2u, 3u);
    return select(vec4<f32>(), pair_row(first, head, 0u, i, c), column < vec4<u32>(i));
}

fn key_pair_row(first: u32, head: u32, i: u32, c: u32) -> vec4<f32> {
    return pair_row(first, head, 1u, i, c);
}

#for (name, buffer) in (state_row, states) (dstate_row, dstates)
fn {name}(first: u32, head: u32, k: u32, c: u32) -> vec4<f32> {
    let own = {buffer}[state_at(first / CHUNK, head) + k * SIZE4 + min(c, SIZE4 - 1u)];
    return select(vec4<f32>(), own, c < SIZE4);
}

#end
// The largest value of an operand, for every thread: of values from themselves, of all others as the kernels that made them left it.
fn most_of_values(first: u32, head: u32, lane: u32) -> f32 {
    var most = 0.0;
    for (var n = lane; n < CHUNK * SIZE4; n += 512u) {
#for m in 0..4
        let n{m} = min(n + {m}u * 128u, CHUNK * SIZE4 - 1u);
        let x{m} = value_row(first, head, n{m} / SIZE4, n{m} % SIZE4);
#end
        most = max(most, max(max(most4(x0), most4(x1)), max(most4(x2), most4(x3))));
    }
    return workgroup_max(most, lane);
}

#for (name, part) in (dstate, 0u) (du, 2u)
fn most_of_{name}(first: u32, head: u32) -> f32 {
    let at = largest_at(first, head) + {part};
    return of_columns(dstates[at], dstates[at + 1u]);
}

#end
#for (name, part) in (dout, x) (errors, y) (query_pairs, z) (key_pairs, w)
fn most_of_{name}(first: u32, head: u32) -> f32 {
    return dstates[largest_at(first, head) + 4u].{part};
}

#end
fn units(beside: f32, state: f32, own: f32) -> Units {
    let e = exponent(state);
    let result = exponent(max(beside * undoing(e), own));
    return Units(undoing(e) * scaling(result), scaling(e), scaling(result), undoing(result));
}

fn units_invert(first: u32, head: u32, part: u32, lane: u32) -> Units {
    if part == 0u {
        return Units(1.0, 1.0, 1.0, 1.0);
    }
    return units(0.0, 0.0, most_of_values(first, head, lane));
}

fn units_invert_errors(first: u32, head: u32, part: u32, lane: u32) -> Units {
    return units(0.0, 0.0, most_of_du(first, head));
}

#for (pass, beside, own) in (query_gradients, dout, query_pairs) (key_reads, errors, key_pairs)
fn units_{pass}(first: u32, head: u32, part: u32, lane: u32) -> Units {
    return units(most_of_{beside}(first, head), most_of_state(first, head), most_of_{own}(first, head));
}

#end
fn units_key_writes(first: u32, head: u32, part: u32, lane: u32) -> Units {
    return units(0.0, 0.0, max(most_of_query_pairs(first, head), most_of_key_pairs(first, head)));
}

fn units_state_gradients(first: u32, head: u32, part: u32, lane: u32) -> Units {
    return units(most_of_u(first, head), most_of_dstate(first, head), 0.0);
}

fn transposed(a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>) -> mat4x4<f32> {
    return transpose(mat4x4<f32>(a, b, c, d));
}

#for (name, factor) in (one, 1.0) (seen_of, seen[i]) (left_of, left[i]) (rated, -seen[i] * rates[i])
fn {name}(i: u32) -> f32 {
    return {factor};
}

#end
// Stages 32 terms of the left operand's rows times a factor, from term 32·step on.
#for (name, row, factor) in (inverse, inverse_row, one) (seen_dout, dout_row, seen_of) (seen_errors, error_row, rated) (left_u, u_row, left_of) (query_pairs, query_pair_row, one) (key_pairs, key_pair_row, one)
fn lhs_{name}(first: u32, head: u32, step: u32, unit: f32, lane: u32) {
    let c = lane % 8u;
#for m in 0..4
    let i{m} = lane / 8u + {m}u * 16u;
    let x{m} = {row}(first, head, i{m}, step * 8u + c);
#end
#for m in 0..4
    lhs[i{m} * LHS_PITCH + c] = vec4<f16>(unit * {factor}(i{m}) * x{m});
#end
}

#end
// Stages them where the operand's columns are the rows: each thread turns a block of 4×4.
#for (name, row) in (inverse_back, inverse_row) (query_pairs_back, query_pair_row) (key_pairs_back, key_pair_row)
fn lhs_{name}(first: u32, head: u32, step: u32, unit: f32, lane: u32) {
    let j = step * 32u + lane % 8u * 4u;
    let c = lane / 8u;
    let block = unit * transposed({row}(first, head, j, c), {row}(first, head, j + 1u, c), {row}(first, head, j + 2u, c), {row}(first, head, j + 3u, c));
#for r in 0..4
    lhs[(c * 4u + {r}u) * LHS_PITCH + lane % 8u] = vec4<f16>(block[{r}]);
#end
}

#end
// Stages 32 terms of the right operand's columns.
#for (name, row) in (keys_rated, rated_key_row) (values_rated, rated_value_row) (du, du_row) (keys, key_row) (queries, query_row)
fn rhs_{name}(first: u32, head: u32, step: u32, unit: f32, lane: u32) {
    let c = lane % SIZE4;
#for m in 0..{LOADS}
    let x{m} = {row}(first, head, step * 32u + lane / SIZE4 + {m}u * (128u / SIZE4), c);
#end
#for m in 0..{LOADS}
    rhs[(lane / SIZE4 + {m}u * (128u / SIZE4)) * RHS_PITCH + c] = vec4<f16>(unit * x{m});
#end
}

#end
// The terms of a state are its columns.
#for (name, row) in (state, state_row) (dstate, dstate_row)
fn rhs_{name}(first: u32, head: u32, step: u32, unit: f32, lane: u32) {
    for (var n = lane; n < SIZE * 2u; n += 128u) {
        let c = step * 8u + n % 8u;
        let k = n / 8u * 4u;
        let block = unit * transposed({row}(first, head, k, c), {row}(first, head, k + 1u, c), {row}(first, head, k + 2u, c), {row}(first, head, k + 3u, c));
#for r in 0..4
        rhs[(n % 8u * 4u + {r}u) * RHS_PITCH + n / 8u] = vec4<f16>(block[{r}]);
#end
    }
}

#end
fn stage_invert(first: u32, head: u32, part: u32, step: u32, unit: Units, lane: u32) {
    lhs_inverse(first, head, step, 1.0, lane);
    if part == 0u {
        rhs_keys_rated(first, head, step, 1.0, lane);
    } else {
        rhs_values_rated(first, head, step, unit.own, lane);
    }
}

fn stage_invert_errors(first: u32, head: u32, part: u32, step: u32, unit: Units, lane: u32) {
    lhs_inverse_back(first, head, step, 1.0, lane);
    rhs_du(first, head, step, unit.own, lane);
}

#for (pass, beside, own) in (query_gradients, seen_dout, query_pairs) (key_reads, seen_errors, key_pairs)
fn stage_{pass}(first: u32, head: u32, part: u32, step: u32, unit: Units, lane: u32) {
    if step < HEAD_STEPS {
        lhs_{beside}(first, head, step, unit.beside, lane);
        rhs_state(first, head, step, unit.state, lane);
    } else {
        lhs_{own}(first, head, step - HEAD_STEPS, unit.own, lane);
        rhs_keys(first, head, step - HEAD_STEPS, 1.0, lane);
    }
}

#end
fn stage_key_writes(first: u32, head: u32, part: u32, step: u32, unit: Units, lane: u32) {
    if step < CHUNK_STEPS {
        lhs_key_pairs_back(first, head, step, unit.own, lane);
        rhs_keys(first, head, step, 1.0, lane);
    } else {
        lhs_query_pairs_back(first, head, step - CHUNK_STEPS, unit.own, lane);
        rhs_queries(first, head, step - CHUNK_STEPS, 1.0, lane);
    }
}

fn stage_state_gradients(first: u32, head: u32, part: u32, step: u32, unit: Units, lane: u32) {
    lhs_left_u(first, head, step, unit.beside, lane);
    rhs_dstate(first, head, step, unit.state, lane);
}

// Stores or adds four values of a result, and returns their part of its row's dot product with the query or key.
fn finish_invert(first: u32, head: u32, part: u32, i: u32, c: u32, value: vec4<f32>) -> f32 {
    wu[part_at(first + i, 2u, part, head) + c] = value;
    return 0.0;
}

// R, and the gradients of values, β·R.
fn finish_invert_errors(first: u32, head: u32, part: u32, i: u32, c: u32, value: vec4<f32>) -> f32 {
    du[part_at(first + i, 2u, 1u, head) + c] = value;
    dmixed[part_at(first + i, 3u, 2u, head) + c] = rates[i] * value;
    return 0.0;
}

fn diagonal(first: u32, head: u32, i: u32) -> f32 {
    return pair_row(first, head, 0u, i, i / 4u)[i % 4u];
}

fn finish_query_gradients(first: u32, head: u32, part: u32, i: u32, c: u32, value: vec4<f32>) -> f32 {
    dmixed[part_at(first + i, 3u, 0u, head) + c] = value + diagonal(first, head, i) * key_row(first, head, i, c);
    return dot(value, query_row(first, head, i, c));
}

fn finish_key_reads(first: u32, head: u32, part: u32, i: u32, c: u32, value: vec4<f32>) -> f32 {
    dmixed[part_at(first + i, 3u, 1u, head) + c] = value;
    return dot(value, key_row(first, head, i, c));
}

fn finish_key_writes(first: u32, head: u32, part: u32, i: u32, c: u32, value: vec4<f32>) -> f32 {
    dmixed[part_at(first + i, 3u, 1u, head) + c] += value + diagonal(first, head, i) * query_row(first, head, i, c);
    return dot(value, key_row(first, head, i, c));
}

fn finish_state_gradients(first: u32, head: u32, part: u32, i: u32, c: u32, value: vec4<f32>) -> f32 {
    dmixed[part_at(first + i, 3u, 1u, head) + c] += value;
    return dot(value, key_row(first, head, i, c));
}

// The dot product of this thread's row.
fn dot_of(lane: u32) -> f32 {
    var sum = 0.0;
    for (var n = 0u; n < DOTS; n++) {
        sum += dots[lane * DOTS + n];
    }
    return sum;
}

fn conclude_invert(first: u32, head: u32, most: f32, lane: u32) {}

fn conclude_invert_errors(first: u32, head: u32, most: f32, lane: u32) {
    let most_of_all = workgroup_max(most, lane);
    if lane == 0u {
        dstates[largest_at(first, head) + 4u].y = most_of_all;
    }
}

#for (pass, how) in (query_gradients, =) (key_reads, +=) (key_writes, -=)
fn conclude_{pass}(first: u32, head: u32, most: f32, lane: u32) {
    if lane < count_of(first) {
        dsums[(first + lane) * gate_stride() + head] {how} dot_of(lane);
    }
}

#end
// The last sum has a part of each token, and one of the state.
fn conclude_state_gradients(first: u32, head: u32, most: f32, lane: u32) {
    let last = count_of(first) - 1u;
    var written = 0.0;
    if lane <= last {
        written = dot_of(lane);
        dsums[(first + lane) * gate_stride() + head] -= written;
    }
    var sum = 0.0;
    for (var n = lane; n < SIZE * SIZE4; n += 128u) {
        let at = state_at(first / CHUNK, head) + n;
        sum += dot(states[at], dstates[at]);
    }
    workgroupBarrier();
    dots[lane] = written + kept_of(first) * sum;
    workgroupBarrier();
    if lane == last {
        var total = 0.0;
        for (var n = 0u; n < 128u; n++) {
            total += dots[n];
        }
        dsums[(first + lane) * gate_stride() + head] += total;
    }
}

// invert: W = (I + A)⁻¹·β·Γ·K and U₀ = (I + A)⁻¹·β·V, as parts 0 and 1. invert_errors: R = (I + A)⁻ᵀ·dU, the gradient of β·(V − Γ·K·S).
// query_gradients: dQ = Γ·dO·Sᵀ + D·dP·K. dK where keys read: −β·Γ·R·Sᵀ + β·D·dA·K; where they are written: (β·D·dA)ᵀ·K + (D·dP)ᵀ·Q; and
// through the state behind the chunk: D[last]·U·dS'ᵀ.
#for (pass, steps) in (invert, CHUNK_STEPS) (invert_errors, CHUNK_STEPS) (query_gradients, HEAD_STEPS + CHUNK_STEPS) (key_reads, HEAD_STEPS + CHUNK_STEPS) (key_writes, 2u * CHUNK_STEPS) (state_gradients, HEAD_STEPS)
@compute @workgroup_size(128)
fn {pass}(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.x * CHUNK;
    let head = group.y;
    load_chunk(first, head, lane);
    let unit = units_{pass}(first, head, group.z, lane);
#for i in 0..{ROWS}
#for j in 0..{COLUMNS}
    var c{i}{j} = coop_mat16x16<f32, C>();
#end
#end
    let row = lane / 32u / ACROSS * {ROWS}u;
    let column = lane / 32u % ACROSS * {COLUMNS}u;
    for (var step = 0u; step < {steps}; step++) {
        workgroupBarrier();
        stage_{pass}(first, head, group.z, step, unit, lane);
        workgroupBarrier();
#for k in 0..2
#for i in 0..{ROWS}
        let a{k}{i} = coopLoadT<coop_mat16x16<f16, A>>(&lhs[(row + {i}u) * 16u * LHS_PITCH + {k}u * 4u], LHS_PITCH);
#end
#for j in 0..{COLUMNS}
        let b{k}{j} = coopLoadT<coop_mat16x16<f16, B>>(&rhs[{k}u * 16u * RHS_PITCH + (column + {j}u) * 4u], RHS_PITCH);
#for i in 0..{ROWS}
        c{i}{j} = coopMultiplyAdd(a{k}{i}, b{k}{j}, c{i}{j});
#end
#end
#end
    }
    let at = lane / 32u * 80u;
    let narrow = 5u;
    var most = 0.0;
#for i in 0..{ROWS}
    var dots{i} = vec2<f32>();
#for j in 0..{COLUMNS}
    let v{i}{j} = c{i}{j};
    coopStoreT(v{i}{j}, &finished[at], narrow);
    subgroupBarrier();
    for (var half = 0u; half < 2u; half++) {
        let r = lane % 32u / 4u + 8u * half;
        let own = (row + {i}u) * 16u + r;
        if own < count_of(first) {
            let value = unit.undo * finished[at + r * 5u + lane % 4u];
            most = max(most, most4(value));
            dots{i}[half] += finish_{pass}(first, head, group.z, own, (column + {j}u) * 4u + lane % 4u, value);
        }
    }
    subgroupBarrier();
#end
    let at{i} = ((row + {i}u) * 16u + lane % 32u / 4u) * DOTS + lane / 32u % ACROSS * 4u + lane % 4u;
    dots[at{i}] = dots{i}.x;
    dots[at{i} + 8u * DOTS] = dots{i}.y;
#end
    workgroupBarrier();
    conclude_{pass}(first, head, most, lane);
}

#end
