// shaders/delta/scan.wgsl on cooperative matrices of 16×16: one workgroup of four subgroups per head, 16 columns of its state and run of
// chunks. The state stays in f32, in registers: a thread holds four neighbouring columns of two rows in each of its subgroup's blocks of 16 rows. Chunks wait
// for each other, so every operand is loaded before it is needed: the left ones a chunk ahead, the others a product ahead.
enable f16;
enable wgpu_cooperative_matrix;
#import common/delta_coop16
#import common/delta_runs

@group(0) @binding(3) var<storage, read> mixed: array<vec4<f32>>;          // queries, keys, values [T, C]
@group(0) @binding(4) var<storage, read_write> wu: array<vec4<f32>>;       // W, U [T, 2, Hv, K]
@group(0) @binding(5) var<storage, read_write> states: array<vec4<f32>>;   // before each chunk; backward: gradients behind it [N, Hv, K, K]
@group(0) @binding(6) var<storage, read> dout: array<vec4<f32>>;           // [T, Hv, K]
@group(0) @binding(7) var<storage, read_write> du: array<vec4<f32>>;       // of U [T, 2, Hv, K]

const TILES: u32 = {TILES}u;                // blocks of 16 rows of a state per subgroup
const NARROW: u32 = 6u;                     // 16 columns and 8 halves, / 4

var<workgroup> state: array<vec4<f16>, {STATE}>;    // [K, 16]
var<workgroup> values: array<vec4<f16>, 768>;       // U or dU of the chunk, and dO [2, 64, 16]
var<workgroup> value_maxima: array<f32, 4>;         // of subgroups, as they enter the state
var<workgroup> own_maxima: array<f32, 4>;           // of U or dU

// A token's sum of decays' logarithms and first token, and those of the chunk's last token.
struct Token {
    sum: f32,
    last_sum: f32,
    start: u32,
    last_start: u32,
}

fn token_of(first: u32, head: u32, lane: u32) -> Token {
    let t = token(first, lane % CHUNK);
    let last = token(first, CHUNK - 1u);
    return Token(sum_at(t, head), sum_at(last, head), bounds[t].x, bounds[last].x);
}

// Stores the values of `load_chunk` that a scan needs.
fn store_token(own: Token, first: u32, lane: u32) {
    if lane < CHUNK {
        let t = token(first, lane);
        seen[lane] = select(0.0, exp(own.sum), own.start < first);
        left[lane] = select(0.0, exp(own.last_sum - own.sum), lane < count_of(first) && own.last_start <= t);
    }
}

fn w_row(first: u32, head: u32, i: u32, c: u32) -> vec4<f32> {
    let own = wu[part_at(token(first, i), 2u, 0u, head) + min(c, SIZE4 - 1u)];
    return select(vec4<f32>(), own, i < count_of(first) && c < SIZE4);
}

// The blocks of a state that this subgroup holds; other subgroups of a small head have none.
fn has(tile: u32, lane: u32) -> bool {
    return lane / 32u * TILES + tile < SIZE / 16u;
}

// Subgroups without a block load the first and do not use what they get.
fn block_column(tile: u32, lane: u32) -> u32 {
    return select(0u, lane / 32u * TILES + tile, has(tile, lane)) * 4u;
}

// The rows of a 16×16 result of which this thread has four columns, and the rows of the state and of the chunk that these are.
fn row_of(half: u32, lane: u32) -> u32 {
    return lane % 32u / 4u + 8u * half;
}

fn state_row(tile: u32, half: u32, lane: u32) -> u32 {
    return (lane / 32u * TILES + tile) * 16u + row_of(half, lane);
}

fn chunk_row(half: u32, lane: u32) -> u32 {
    return lane / 32u * 16u + row_of(half, lane);
}

fn result(half: u32, lane: u32) -> vec4<f32> {
    return finished[lane / 32u * 80u + row_of(half, lane) * 5u + lane % 4u];
}

// U₀ or dU₀ of a token, with what the state adds to it, and the factor with which it enters the new state; and dO of the token.
fn input_forward(t: u32, head: u32, column: u32) -> vec4<f32> {
    return wu[part_at(t, 2u, 1u, head) + column];
}

fn input_backward(t: u32, head: u32, column: u32) -> vec4<f32> {
    return du[part_at(t, 2u, 0u, head) + column];
}

fn changed_forward(u: vec4<f32>, by_state: vec4<f32>, i: u32) -> vec4<f32> {
    return u - by_state;
}

fn changed_backward(u: vec4<f32>, by_state: vec4<f32>, i: u32) -> vec4<f32> {
    return u + left[i] * by_state;
}

fn keep_forward(t: u32, head: u32, column: u32, u: vec4<f32>) {
    wu[part_at(t, 2u, 1u, head) + column] = u;
}

fn keep_backward(t: u32, head: u32, column: u32, u: vec4<f32>) {
    du[part_at(t, 2u, 0u, head) + column] = u;
}

fn factor_forward(i: u32) -> f32 {
    return left[i];
}

fn factor_backward(i: u32) -> f32 {
    return 1.0;
}

// Whether the state behind a run's silent chunk depends on a token.
fn matters_forward(i: u32) -> bool {
    return left[i] > 0.0;
}

fn matters_backward(i: u32) -> bool {
    return seen[i] > 0.0;
}

fn output_forward(t: u32, head: u32, column: u32) -> vec4<f32> {
    return vec4<f32>();
}

fn output_backward(t: u32, head: u32, column: u32) -> vec4<f32> {
    return dout[part_at(t, 1u, 0u, head) + column];
}

// Row `j` of the left operand's 32 rows in round `round` of the sum over the chunk, its factor, and where the right operand's rows begin.
fn round_row_forward(round: u32, first: u32, head: u32, j: u32, c: u32) -> vec4<f32> {
    return key_row(first, head, round * 32u + j, c);
}

fn round_row_backward(round: u32, first: u32, head: u32, j: u32, c: u32) -> vec4<f32> {
    if round < 2u {
        return query_row(first, head, round * 32u + j, c);
    }
    return w_row(first, head, round % 2u * 32u + j, c);
}

fn round_factor_forward(round: u32, j: u32) -> f32 {
    return 1.0;
}

fn round_factor_backward(round: u32, j: u32) -> f32 {
    return select(-1.0, seen[round % 2u * 32u + j], round < 2u);
}

fn right_row_forward(round: u32) -> u32 {
    return round * 32u;
}

fn right_row_backward(round: u32) -> u32 {
    return round % 2u * 32u + select(0u, 64u, round < 2u);
}

// forward: U = U₀ − W·S, S' = Γ[last]·S + (D[last]·K)ᵀ·U. backward: dU = dU₀ + D[last]·K·dS', dS = Γ[last]·dS' + (Γ·Q)ᵀ·dO − Wᵀ·dU.
// `row` is the left operand of the product with the state. Each round adds a product with 32 rows of the chunk to the state.
#for (pass, chunk, row, rounds) in (forward, run.first + n, w_row, 2u) (backward, run.first - n, key_row, 4u)
@compute @workgroup_size(128)
fn {pass}(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let head = group.x;
    let column = group.y * 4u + lane % 4u;
    let run = run_{pass}(group.z, groups.z);
    let own_row = lane / 32u * 16u + lane % 32u / 8u;
    let at = lane / 32u * 80u;
    let narrow = 5u;
#for t in 0..{TILES}
#for h in 0..2
    var s{t}{h} = vec4<f32>();
#end
#end
    maxima[lane / 32u] = 0.0;
    var n = 0u;
    var first = ({chunk}) * CHUNK;
    var own_token = token_of(first, head, lane);
#for s in 0..{STEPS}
#for m in 0..4
    var l{s}{m} = {row}(first, head, own_row + {m}u * 4u, {s}u * 8u + lane % 8u);
#end
#end
#for m in 0..{LOADS}
    var r{m} = round_row_{pass}(0u, first, head, lane / SIZE4 + {m}u * (128u / SIZE4), lane % SIZE4);
#end
    while n < run.count {
        let count = count_of(first);
        let writes = n > 0u || !run.silent;
        workgroupBarrier();
        store_token(own_token, first, lane);
        let most_of_all = max(max(maxima[0], maxima[1]), max(maxima[2], maxima[3]));
        let e = exponent(most_of_all);
        if writes && lane == 0u {
            states[largest_at(first, head) + group.y / 4u][group.y % 4u] = most_of_all;
        }
#for t in 0..{TILES}
#for h in 0..2
        if has({t}u, lane) {
            let k = state_row({t}u, {h}u, lane);
            if writes {
                states[state_at(first / CHUNK, head) + k * SIZE4 + column] = s{t}{h};
            }
            state[k * NARROW + lane % 4u] = vec4<f16>(scaling(e) * s{t}{h});
        }
#end
#end
#for h in 0..2
        let t{h} = token(first, chunk_row({h}u, lane));
        let inside{h} = chunk_row({h}u, lane) < count;
        var u{h} = input_{pass}(t{h}, head, column);
        var o{h} = output_{pass}(t{h}, head, column);
#end
        workgroupBarrier();
        var by_state = coop_mat16x16<f32, C>();
#for s in 0..{STEPS}
#for m in 0..4
        lhs[(own_row + {m}u * 4u) * LHS_PITCH + lane % 8u] = vec4<f16>(l{s}{m});
#end
        subgroupBarrier();
#for k in 0..{DEEP}
        let a{s}{k} = coopLoadT<coop_mat16x16<f16, A>>(&lhs[lane / 32u * 16u * LHS_PITCH + {k}u * 4u], LHS_PITCH);
        let b{s}{k} = coopLoadT<coop_mat16x16<f16, B>>(&state[({s}u * 2u + {k}u) * 16u * NARROW], NARROW);
        by_state = coopMultiplyAdd(a{s}{k}, b{s}{k}, by_state);
#end
        subgroupBarrier();
#end
        let current = first;
        n++;
        if n < run.count {
            first = ({chunk}) * CHUNK;
        }
        own_token = token_of(first, head, lane);
#for s in 0..{STEPS}
#for m in 0..4
        l{s}{m} = {row}(first, head, own_row + {m}u * 4u, {s}u * 8u + lane % 8u);
#end
#end
        let stored = by_state;
        coopStoreT(stored, &finished[at], narrow);
        subgroupBarrier();
        var most = 0.0;
        var own_most = 0.0;
#for h in 0..2
        // A silent chunk has values of another sample, which are perhaps being written.
        let matters{h} = inside{h} && (writes || matters_{pass}(chunk_row({h}u, lane)));
        o{h} = select(vec4<f32>(), o{h}, matters{h});
        u{h} = select(vec4<f32>(), changed_{pass}(u{h}, undoing(e) * result({h}u, lane), chunk_row({h}u, lane)), matters{h});
        if inside{h} && writes {
            keep_{pass}(t{h}, head, column, u{h});
        }
        own_most = max(own_most, most4(u{h}));
        u{h} *= factor_{pass}(chunk_row({h}u, lane));
        most = max(most, max(most4(u{h}), most4(o{h})));
#end
        let most_of_subgroup = subgroupMax(most);
        value_maxima[lane / 32u] = most_of_subgroup;
        let own_of_subgroup = subgroupMax(own_most);
        own_maxima[lane / 32u] = own_of_subgroup;
        workgroupBarrier();
        if writes && lane == 0u {
            let most_of_own = max(max(own_maxima[0], own_maxima[1]), max(own_maxima[2], own_maxima[3]));
            states[largest_at(current, head) + 2u + group.y / 4u][group.y % 4u] = most_of_own;
        }
        let own = exponent(max(max(value_maxima[0], value_maxima[1]), max(value_maxima[2], value_maxima[3])));
#for h in 0..2
        values[chunk_row({h}u, lane) * NARROW + lane % 4u] = vec4<f16>(scaling(own) * u{h});
        values[(64u + chunk_row({h}u, lane)) * NARROW + lane % 4u] = vec4<f16>(scaling(own) * o{h});
#end
#for t in 0..{TILES}
        var c{t} = coop_mat16x16<f32, C>();
#end
        for (var round = 0u; round < {rounds}; round++) {
#for m in 0..{LOADS}
            let j{m} = lane / SIZE4 + {m}u * (128u / SIZE4);
            rhs[j{m} * RHS_PITCH + lane % SIZE4] = vec4<f16>(round_factor_{pass}(round, j{m}) * r{m});
#end
            let next = (round + 1u) % {rounds};
            let of_next = select(current, first, next == 0u);
#for m in 0..{LOADS}
            r{m} = round_row_{pass}(next, of_next, head, j{m}, lane % SIZE4);
#end
            workgroupBarrier();
#for k in 0..2
            let b{k} = coopLoadT<coop_mat16x16<f16, B>>(&values[(right_row_{pass}(round) + {k}u * 16u) * NARROW], NARROW);
#for t in 0..{TILES}
            let a{k}{t} = coopLoad<coop_mat16x16<f16, A>>(&rhs[{k}u * 16u * RHS_PITCH + block_column({t}u, lane)], RHS_PITCH);
            c{t} = coopMultiplyAdd(a{k}{t}, b{k}, c{t});
#end
#end
            workgroupBarrier();
        }
        let kept = seen[count - 1u];
        most = 0.0;
#for t in 0..{TILES}
        let v{t} = c{t};
        coopStoreT(v{t}, &finished[at], narrow);
        subgroupBarrier();
#for h in 0..2
        s{t}{h} = select(vec4<f32>(), kept * s{t}{h} + undoing(own) * result({h}u, lane), has({t}u, lane));
        most = max(most, most4(s{t}{h}));
#end
        subgroupBarrier();
#end
        let most_of_state = subgroupMax(most);
        maxima[lane / 32u] = most_of_state;
    }
}

#end
