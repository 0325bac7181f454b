// Products over pairs of a chunk's tokens, on cooperative matrices of 16×16: A for shaders/delta/solve.wgsl, the outputs with their scores P,
// and the gradients of A and P. Of a result [64, 64], each subgroup computes 16 rows.
enable f16;
enable wgpu_cooperative_matrix;
#import common/delta_coop16

@group(0) @binding(3) var<storage, read> mixed: array<vec4<f32>>;          // queries, keys, values [T, C]
@group(0) @binding(4) var<storage, read_write> inverse: array<vec4<f32>>;  // A [T, Hv, 64]
@group(0) @binding(5) var<storage, read> wu: array<vec4<f32>>;             // W, U [T, 2, Hv, K]
@group(0) @binding(6) var<storage, read> states: array<vec4<f32>>;         // before each chunk [N, Hv, K, K]
@group(0) @binding(7) var<storage, read_write> result: array<vec4<f32>>;   // O [T, Hv, K]
@group(0) @binding(8) var<storage, read> dout: array<vec4<f32>>;           // of O [T, Hv, K]
@group(0) @binding(9) var<storage, read_write> du: array<vec4<f32>>;       // of U, R [T, 2, Hv, K]
@group(0) @binding(10) var<storage, read_write> dstates: array<vec4<f32>>; // behind each chunk [N, Hv, K, K]
@group(0) @binding(11) var<storage, read_write> pairs: array<vec4<f32>>;   // D·dP, β·D·dA [T, 2, Hv, 64]
@group(0) @binding(14) var<storage, read_write> dbeta: array<f32>;         // of σ⁻¹(rate) [T, Hv]

const SCORE_PITCH: u32 = 18u;   // 64 columns and 8 halves, / 4

var<workgroup> weights: array<vec4<f16>, 1152>;     // P [64, 64]

#for (name, buffer, parts, part) in (u_row, wu, 2u, 1u) (dout_row, dout, 1u, 0u) (error_row, du, 2u, 1u)
fn {name}(first: u32, head: u32, i: u32, c: u32) -> vec4<f32> {
    let own = {buffer}[part_at(token(first, i), {parts}, {part}, head) + min(c, SIZE4 - 1u)];
    return select(vec4<f32>(), own, i < count_of(first) && c < SIZE4);
}

#end
fn seen_query_row(first: u32, head: u32, i: u32, c: u32) -> vec4<f32> {
    return seen[i] * query_row(first, head, i, c);
}

fn state_row(first: u32, head: u32, k: u32, c: u32) -> vec4<f32> {
    let own = states[state_at(first / CHUNK, head) + min(k, SIZE - 1u) * SIZE4 + c];
    return select(vec4<f32>(), own, k < SIZE);
}

// The largest value of an operand, for every thread.
fn most_dout(first: u32, head: u32, lane: u32) -> f32 {
    var most = 0.0;
    for (var n = lane; n < CHUNK * SIZE4; n += 512u) {
#for m in 0..4
        let n{m} = min(n + {m}u * 128u, CHUNK * SIZE4 - 1u);
        let x{m} = dout_row(first, head, n{m} / SIZE4, n{m} % SIZE4);
#end
        most = max(most, max(max(most4(x0), most4(x1)), max(most4(x2), most4(x3))));
    }
    return workgroup_max(most, lane);
}

// D[i, j] for the four tokens j of column `c`.
fn decay4(first: u32, i: u32, c: u32) -> vec4<f32> {
    return vec4<f32>(decay(first, i, 4u * c), decay(first, i, 4u * c + 1u), decay(first, i, 4u * c + 2u), decay(first, i, 4u * c + 3u));
}

// Where j < i.
fn below(i: u32, c: u32, value: vec4<f32>) -> vec4<f32> {
    return select(vec4<f32>(), value, vec4<u32>(4u * c) + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(i));
}

// Stages 32 columns of 64 rows, from column 32·step on.
#for (name, block, row) in (left_keys, lhs, key_row) (right_keys, rhs, key_row) (left_queries, lhs, query_row) (left_dout, lhs, dout_row) (left_errors, lhs, error_row) (right_u, rhs, u_row) (seen_queries, lhs, seen_query_row)
fn stage_{name}(first: u32, head: u32, step: u32, unit: f32, lane: u32) {
    let c = lane % 8u;
#for m in 0..4
    let x{m} = {row}(first, head, lane / 8u + {m}u * 16u, step * 8u + c);
#end
#for m in 0..4
    {block}[(lane / 8u + {m}u * 16u) * LHS_PITCH + c] = vec4<f16>(unit * x{m});
#end
}

#end
// Stages 32 rows of K columns.
#for (name, row) in (state_rows, state_row) (u_rows, u_row) (dout_rows, dout_row)
fn stage_{name}(first: u32, head: u32, step: u32, unit: f32, lane: u32) {
    let c = lane % SIZE4;
#for m in 0..{LOADS}
    let x{m} = {row}(first, head, step * 32u + lane / SIZE4 + {m}u * (128u / SIZE4), c);
#end
#for m in 0..{LOADS}
    rhs[(lane / SIZE4 + {m}u * (128u / SIZE4)) * RHS_PITCH + c] = vec4<f16>(unit * x{m});
#end
}

#end
// These keep four values, and return the largest of those that products read.

// A = β·D·K·Kᵀ below the diagonal.
fn keep_gram(first: u32, head: u32, i: u32, c: u32, value: vec4<f32>) -> f32 {
    if i < count_of(first) {
        inverse[((first + i) * params.value_heads + head) * 16u + c] = below(i, c, rates[i] * decay4(first, i, c) * value);
    }
    return 0.0;
}

// P = D·Q·Kᵀ on and below the diagonal.
fn keep_scores(first: u32, head: u32, i: u32, c: u32, value: vec4<f32>) -> f32 {
    weights[i * SCORE_PITCH + c] = vec4<f16>(decay4(first, i, c) * value);
    return 0.0;
}

fn keep_query_pairs(first: u32, head: u32, i: u32, c: u32, value: vec4<f32>) -> f32 {
    if i >= count_of(first) {
        return 0.0;
    }
    let pair = decay4(first, i, c) * value;
    pairs[((first + i) * 2u * params.value_heads + head) * 16u + c] = pair;
    return most4(below(i, c, pair));
}

fn keep_key_pairs(first: u32, head: u32, i: u32, c: u32, value: vec4<f32>) -> f32 {
    if i >= count_of(first) {
        return 0.0;
    }
    let pair = below(i, c, -rates[i] * decay4(first, i, c) * value);
    pairs[(((first + i) * 2u + 1u) * params.value_heads + head) * 16u + c] = pair;
    return most4(pair);
}

// left·rightᵀ [64, 64], where operands are multiplied by powers of two, and the result by what undoes them. Returns the largest of this thread's.
#for (name, left, right) in (gram, left_keys, right_keys) (scores, left_queries, right_keys) (query_pairs, left_dout, right_u) (key_pairs, left_errors, right_u)
fn make_{name}(first: u32, head: u32, left_unit: f32, right_unit: f32, undo: f32, lane: u32) -> f32 {
    var most = 0.0;
#for j in 0..4
    var c{j} = coop_mat16x16<f32, C>();
#end
    let row = lane / 32u;
    for (var step = 0u; step < HEAD_STEPS; step++) {
        workgroupBarrier();
        stage_{left}(first, head, step, left_unit, lane);
        stage_{right}(first, head, step, right_unit, lane);
        workgroupBarrier();
#for k in 0..2
        let a{k} = coopLoadT<coop_mat16x16<f16, A>>(&lhs[row * 16u * LHS_PITCH + {k}u * 4u], LHS_PITCH);
#for j in 0..4
        let b{k}{j} = coopLoad<coop_mat16x16<f16, B>>(&rhs[{j}u * 16u * LHS_PITCH + {k}u * 4u], LHS_PITCH);
        c{j} = coopMultiplyAdd(a{k}, b{k}{j}, c{j});
#end
#end
    }
    let at = row * 80u;
    let narrow = 5u;
#for j in 0..4
    let v{j} = c{j};
    coopStoreT(v{j}, &finished[at], narrow);
    subgroupBarrier();
    for (var r = lane % 32u / 4u; r < 16u; r += 8u) {
        let value = undo * finished[at + r * 5u + lane % 4u];
        most = max(most, keep_{name}(first, head, row * 16u + r, {j}u * 4u + lane % 4u, value));
    }
    subgroupBarrier();
#end
    workgroupBarrier();
    return most;
}

#end
@compute @workgroup_size(128)
fn gram(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.x * CHUNK;
    load_chunk(first, group.y, lane);
    _ = make_gram(first, group.y, 1.0, 1.0, 1.0, lane);
}

// D·dP = D·dO·Uᵀ on and below the diagonal, β·D·dA = −β·D·R·Uᵀ below it, and the gradient of the rates.
@compute @workgroup_size(128)
fn pair_gradients(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.x * CHUNK;
    let head = group.y;
    load_chunk(first, head, lane);
    let at = largest_at(first, head) + 4u;
    let u = exponent(most_of_u(first, head));
    let o = exponent(dstates[at].x);
    let r = exponent(dstates[at].y);
    let own_query = make_query_pairs(first, head, scaling(o), scaling(u), undoing(o) * undoing(u), lane);
    let own_key = make_key_pairs(first, head, scaling(r), scaling(u), undoing(r) * undoing(u), lane);
    let most_query = workgroup_max(own_query, lane);
    let most_key = workgroup_max(own_key, lane);
    if lane == 0u {
        dstates[at].z = most_query;
        dstates[at].w = most_key;
    }
    if lane < count_of(first) {
        var sum = 0.0;
        for (var c = 0u; c < SIZE4; c++) {
            sum += dot(error_row(first, head, lane, c), u_row(first, head, lane, c));
        }
        dbeta[(first + lane) * gate_stride() + head] = (1.0 - rates[lane]) * sum;
    }
}

fn unit_outputs(first: u32, head: u32, lane: u32) -> u32 {
    return exponent(max(most_of_state(first, head), most_of_u(first, head)));
}

fn unit_outputs_back(first: u32, head: u32, lane: u32) -> u32 {
    let most = most_dout(first, head, lane);
    if lane == 0u {
        dstates[largest_at(first, head) + 4u].x = most;
    }
    return exponent(most);
}

fn finish_outputs(first: u32, head: u32, i: u32, c: u32, value: vec4<f32>) {
    result[part_at(first + i, 1u, 0u, head) + c] = value;
}

fn finish_outputs_back(first: u32, head: u32, i: u32, c: u32, value: vec4<f32>) {
    du[part_at(first + i, 2u, 0u, head) + c] = value;
}

// O = Γ·Q·S + P·U, and dU₀ = Pᵀ·dO.
#for (pass, head_steps, right, load, down, across) in (outputs, HEAD_STEPS, u_rows, coopLoadT, 16u * SCORE_PITCH, 4u) (outputs_back, 0u, dout_rows, coopLoad, 4u, 16u * SCORE_PITCH)
@compute @workgroup_size(128)
fn {pass}(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.x * CHUNK;
    let head = group.y;
    load_chunk(first, head, lane);
    _ = make_scores(first, head, 1.0, 1.0, 1.0, lane);
    let unit = unit_{pass}(first, head, lane);
#for i in 0..{ROWS}
#for j in 0..{COLUMNS}
    var c{i}{j} = coop_mat16x16<f32, C>();
#end
#end
    let row = lane / 32u / ACROSS * {ROWS}u;
    let column = lane / 32u % ACROSS * {COLUMNS}u;
    for (var step = 0u; step < {head_steps}; step++) {
        workgroupBarrier();
        stage_seen_queries(first, head, step, 1.0, lane);
        stage_state_rows(first, head, step, scaling(unit), lane);
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
    for (var step = 0u; step < CHUNK_STEPS; step++) {
        workgroupBarrier();
        stage_{right}(first, head, step, scaling(unit), lane);
        workgroupBarrier();
#for k in 0..2
#for i in 0..{ROWS}
        let p{k}{i} = {load}<coop_mat16x16<f16, A>>(&weights[(row + {i}u) * {down} + (step * 2u + {k}u) * {across}], SCORE_PITCH);
#end
#for j in 0..{COLUMNS}
        let r{k}{j} = coopLoadT<coop_mat16x16<f16, B>>(&rhs[{k}u * 16u * RHS_PITCH + (column + {j}u) * 4u], RHS_PITCH);
#for i in 0..{ROWS}
        c{i}{j} = coopMultiplyAdd(p{k}{i}, r{k}{j}, c{i}{j});
#end
#end
#end
    }
    let at = lane / 32u * 80u;
    let narrow = 5u;
#for i in 0..{ROWS}
#for j in 0..{COLUMNS}
    let v{i}{j} = c{i}{j};
    coopStoreT(v{i}{j}, &finished[at], narrow);
    subgroupBarrier();
    for (var r = lane % 32u / 4u; r < 16u; r += 8u) {
        let own = (row + {i}u) * 16u + r;
        if own < count_of(first) {
            finish_{pass}(first, head, own, (column + {j}u) * 4u + lane % 4u, undoing(unit) * finished[at + r * 5u + lane % 4u]);
        }
    }
    subgroupBarrier();
#end
#end
}

#end
