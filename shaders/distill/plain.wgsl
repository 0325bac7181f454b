// Divergence from a teacher's distribution, and cross entropy, in place; one workgroup per row of logits. With c = cap·tanh(z/cap):
// loss = weight·D(teacher, softmax(c/T)) + sft_weight·(log Σ exp(c) − c[target]). The teacher's distribution is given for its likeliest
// tokens, and as one number for all others. With p the student's probability of such a token, or of all others, and g = ∂D/∂(log p):
// ∂D/∂c = (g − p·Σg)/T for a token of the teacher; for any other one, g of the rest is multiplied by its part of the rest.
#import common/log_sum
#import common/verdict

const THREADS: u32 = {THREADS}u;
const NONE: f32 = -1e30;

// Twin of `Params` in src/ops/distill/mod.rs.
struct Params {
    rows: u32,
    vocab: u32,
    stride4: u32,       // vec4s from one row of logits to the next
    top: u32,           // tokens of the teacher per row; V: all of them, and `ids` has the likeliest one alone
    target_offset: u32, // place of the first row in targets, ids and teacher
    loss_offset: u32,   // and in losses, coefficients and results
    softcap: f32,       // 0: none
    divergence: u32,    // 0: forward KL, 1: reverse KL, 2: Jensen-Shannon
    beta: f32,          // part of the teacher in the mixture
    warmth: f32,        // 1 / T
    weight: f32,
    sft_weight: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> logits: array<vec4<f32>>; // [rows, V], replaced by dlogits in backward
@group(0) @binding(2) var<storage, read> targets: array<u32>;        // [N]
@group(0) @binding(3) var<storage, read_write> losses: array<f32>;   // [N], cross entropies
@group(0) @binding(4) var<storage, read> coefficients: array<f32>;   // [N], gradient of the objective by each row's loss
@group(0) @binding(5) var<storage, read> ids: array<u32>;            // [N, top + 1], ascending; the last one is the likeliest
@group(0) @binding(6) var<storage, read> teacher: array<f32>;        // [N, top + 1], log-probabilities; the last is that of the rest
@group(0) @binding(7) var<storage, read_write> results: array<f32>;  // [N, 2], divergence; 1 where both find the same token likeliest

struct Row {
    lse: f32,     // log Σ exp(c)
    warm: f32,    // log Σ exp(c/T)
    rest: f32,    // the same over tokens that the teacher's list lacks
    of_rest: f32, // g of the rest
    slopes: f32,  // Σ g
}

// The largest value and both sums of a part of a row; then its divergence, Σ g, and whether the student finds another token likelier.
var<workgroup> partial: array<vec3<f32>, THREADS>;
var<workgroup> partial_rest: array<vec2<f32>, THREADS>; // likewise of its rest, the first two

fn capped4(z: vec4<f32>) -> vec4<f32> {
    if params.softcap == 0.0 {
        return z;
    }
    return params.softcap * tanh(clamp(z / params.softcap, vec4<f32>(-10.0), vec4<f32>(10.0)));
}

fn capped(row: u32, id: u32) -> f32 {
    let z = logits[row * params.stride4 + id / 4u];
    return capped4(z)[id % 4u];
}

fn is_whole() -> bool {
    return params.top == params.vocab;
}

// Place of a row's tokens in `ids`.
fn ids_of(row: u32) -> u32 {
    return (params.target_offset + row) * select(params.top + 1u, 1u, is_whole());
}

// Place of a row's log-probabilities in `teacher`.
fn teacher_of(row: u32) -> u32 {
    return (params.target_offset + row) * (params.top + 1u);
}

// The first place in a list, from `place` on, whose token is one of this thread's; `params.top` if none is left.
fn next_own(at: u32, place: u32, lane: u32) -> u32 {
    var next = place;
    while next < params.top && (ids[at + next] / 4u) % THREADS != lane {
        next++;
    }
    return next;
}

// The first place of a thread; none where the teacher has all tokens.
fn first_own(at: u32, lane: u32) -> u32 {
    if is_whole() {
        return params.top;
    }
    return next_own(at, 0u, lane);
}

// The token at a place; none, behind the vocabulary, where none is left.
fn token_at(at: u32, place: u32) -> u32 {
    if place < params.top {
        return ids[at + place];
    }
    return 0xffffffffu;
}

// Divergence of a token or of the rest, and its derivative by the student's log-probability, without a constant that cancels out.
fn divergence_of(of_teacher: f32, of_student: f32) -> vec2<f32> {
    let teacher_part = exp(of_teacher);
    let student_part = exp(of_student);
    if params.divergence == 0u {
        return vec2<f32>(teacher_part * (of_teacher - of_student), -teacher_part);
    }
    if params.divergence == 1u {
        let gap = student_part * (of_student - of_teacher);
        return vec2<f32>(gap, gap);
    }
    let a = of_teacher + log(params.beta);
    let b = of_student + log(1.0 - params.beta);
    let mixed = max(a, b) + log(1.0 + exp(-abs(a - b)));
    let own = (1.0 - params.beta) * student_part * (of_student - mixed);
    return vec2<f32>(params.beta * teacher_part * (of_teacher - mixed) + own, own);
}

// log Σ exp from the largest value and the sum.
fn log_sum(largest: f32, sum: f32) -> f32 {
    return select(NONE, largest + log(sum), sum > 0.0);
}

// Writes the row's cross entropy and divergence, and whether both models agree. All threads have read the row when it returns.
fn row_of(row: u32, lane: u32) -> Row {
    let at = row * params.stride4;
    let ids_at = ids_of(row);
    let teacher_at = teacher_of(row);
    let whole = is_whole();
    let likeliest = min(ids[ids_at + select(params.top, 0u, whole)], params.vocab - 1u);
    let of_likeliest = capped(row, likeliest);
    let of_target = capped(row, targets[params.target_offset + row]);
    var all = vec3<f32>(NONE, 0.0, 0.0);
    var others = vec2<f32>(NONE, 0.0);
    var disagrees = 0.0;
    var place = first_own(ids_at, lane);
    var listed = token_at(ids_at, place);
    for (var c = lane; c < (params.vocab + 3u) / 4u; c += THREADS) {
        let there = vec4<u32>(c * 4u) + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(params.vocab);
        let z = select(vec4<f32>(NONE), capped4(logits[at + c]), there);
        disagrees = max(disagrees, f32(any(likelier(z, c, of_likeliest, likeliest))));
        let m = max(all.x, largest_of(z));
        let p = sum_of(select(vec4<f32>(), exp(z - m), there));
        let q = sum_of(select(vec4<f32>(), exp((z - m) * params.warmth), there));
        all = vec3<f32>(m, all.y * exp(all.x - m) + p, all.z * exp((all.x - m) * params.warmth) + q);
        var unlisted = there & vec4<bool>(!whole);
        while listed / 4u == c {
            unlisted[listed % 4u] = false;
            place = next_own(ids_at, place + 1u, lane);
            listed = token_at(ids_at, place);
        }
        let r = max(others.x, largest_of(select(vec4<f32>(NONE), z, unlisted)));
        let s = sum_of(select(vec4<f32>(), exp((z - r) * params.warmth), unlisted));
        others = vec2<f32>(r, others.y * exp((others.x - r) * params.warmth) + s);
    }
    partial[lane] = all;
    partial_rest[lane] = others;
    for (var step = THREADS / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if lane < step {
            let a = partial[lane];
            let b = partial[lane + step];
            let cold = joined(a.xy, b.xy, 1.0);
            partial[lane] = vec3<f32>(cold, joined(a.xz, b.xz, params.warmth).y);
            partial_rest[lane] = joined(partial_rest[lane], partial_rest[lane + step], params.warmth);
        }
    }
    workgroupBarrier();
    let sums = partial[0];
    let rest = partial_rest[0];
    var found: Row;
    found.lse = sums.x + log(sums.y);
    found.warm = sums.x * params.warmth + log(sums.z);
    found.rest = log_sum(rest.x * params.warmth, rest.y);
    var total = vec2<f32>();
    for (var n = lane; n < params.top; n += THREADS) {
        let id = select(ids[ids_at + select(n, 0u, whole)], n, whole);
        total += divergence_of(teacher[teacher_at + n], capped(row, id) * params.warmth - found.warm);
    }
    workgroupBarrier();
    partial[lane] = vec3<f32>(total, disagrees);
    for (var step = THREADS / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if lane < step {
            let b = partial[lane + step];
            partial[lane] = vec3<f32>(partial[lane].xy + b.xy, max(partial[lane].z, b.z));
        }
    }
    workgroupBarrier();
    let of_rest = divergence_of(teacher[teacher_at + params.top], found.rest - found.warm);
    found.of_rest = of_rest.y;
    found.slopes = partial[0].y + of_rest.y;
    if lane == 0u {
        let result = 2u * (params.loss_offset + row);
        results[result] = partial[0].x + of_rest.x;
        results[result + 1u] = 1.0 - partial[0].z;
        losses[params.loss_offset + row] = found.lse - of_target;
    }
    return found;
}

@compute @workgroup_size({THREADS})
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let found = row_of(group.x, lane);
}

@compute @workgroup_size({THREADS})
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = group.x * params.stride4;
    let ids_at = ids_of(group.x);
    let teacher_at = teacher_of(group.x);
    let whole = is_whole();
    let target_id = targets[params.target_offset + group.x];
    let found = row_of(group.x, lane);
    let coefficient = coefficients[params.loss_offset + group.x];
    var place = first_own(ids_at, lane);
    var listed = token_at(ids_at, place);
    for (var c = lane; c < (params.vocab + 3u) / 4u; c += THREADS) {
        let i = vec4<u32>(c * 4u) + vec4<u32>(0u, 1u, 2u, 3u);
        let z = capped4(logits[at + c]);
        let warm = z * params.warmth;
        var g = found.of_rest * exp(warm - found.rest);
        while listed / 4u == c {
            let own = warm[listed % 4u] - found.warm;
            g[listed % 4u] = divergence_of(teacher[teacher_at + place], own).y;
            place = next_own(ids_at, place + 1u, lane);
            listed = token_at(ids_at, place);
        }
        if whole {
            for (var j = 0u; j < 4u; j++) {
                g[j] = divergence_of(teacher[teacher_at + min(i[j], params.top)], warm[j] - found.warm).y;
            }
        }
        let divergence = (g - exp(warm - found.warm) * found.slopes) * params.warmth;
        let entropy = exp(z - found.lse) - select(vec4<f32>(), vec4<f32>(1.0), i == vec4<u32>(target_id));
        let root = select(vec4<f32>(), z / params.softcap, vec4<bool>(params.softcap != 0.0));
        let gradient = (params.weight * divergence + params.sft_weight * entropy) * (1.0 - root * root);
        logits[at + c] = select(vec4<f32>(), coefficient * gradient, i < vec4<u32>(params.vocab));
    }
}
