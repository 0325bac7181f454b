// Divergence from a teacher's distribution, and cross entropy, in place; one workgroup per row of logits. With c = cap·tanh(z/cap):
// loss = weight·D(teacher, softmax(c/T)) + sft_weight·(log Σ exp(c) − c[target]). The teacher's distribution is given for its likeliest
// tokens, and as one number for all others. With p the student's probability of such a token, or of all others, and g = ∂D/∂(log p):
// ∂D/∂c = (g − p·Σg)/T for a token of the teacher; for any other one, g of the rest is multiplied by its part of the rest.
#import common/reduce

const NONE: f32 = -1e30;

// Twin of `Params` in src/ops/distill/mod.rs.
struct Params {
    rows: u32,
    vocab: u32,
    stride: u32,        // floats from one row of logits to the next
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
@group(0) @binding(1) var<storage, read_write> logits: array<f32>;   // [rows, V] → capped logits, or dlogits
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

fn capped(z: f32) -> f32 {
    if params.softcap == 0.0 {
        return z;
    }
    return params.softcap * tanh(clamp(z / params.softcap, -10.0, 10.0));
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

// The first place, from `place` on, whose token is one of this thread's.
fn next_own(at: u32, place: u32, lane: u32) -> u32 {
    var next = place;
    while next < params.top && ids[at + next] % 64u != lane {
        next++;
    }
    return next;
}

// The first place of a thread; unused where the teacher has all tokens.
fn first_own(at: u32, lane: u32) -> u32 {
    // `params.top` means: none is left.
    if is_whole() {
        return params.top;
    }
    return next_own(at, 0u, lane);
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

// log Σ exp from the largest value and the sum of this thread.
fn log_sum(largest: f32, sum: f32) -> f32 {
    if sum == 0.0 {
        return NONE;
    }
    return largest + log(sum);
}

// Caps the row in place, and writes its divergence and whether both models agree. Every thread reads only logits that it has capped itself.
fn row_of(row: u32, lane: u32) -> Row {
    let at = row * params.stride;
    let ids_at = ids_of(row);
    let teacher_at = teacher_of(row);
    let whole = is_whole();
    let likeliest = ids[ids_at + select(params.top, 0u, whole)];
    let of_likeliest = capped(logits[at + min(likeliest, params.vocab - 1u)]);
    // All threads have read it before one of them writes.
    storageBarrier();
    var largest = NONE;
    var rest_largest = NONE;
    var disagrees = 0.0;
    var place = first_own(ids_at, lane);
    for (var i = lane; i < params.vocab; i += 64u) {
        let c = capped(logits[at + i]);
        logits[at + i] = c;
        largest = max(largest, c);
        if c > of_likeliest || (c == of_likeliest && i < likeliest) {
            disagrees = 1.0;
        }
        if place < params.top && ids[ids_at + place] == i {
            place = next_own(ids_at, place + 1u, lane);
        } else if !whole {
            rest_largest = max(rest_largest, c);
        }
    }
    largest = reduce_max(largest, lane);
    rest_largest = reduce_max(rest_largest, lane);
    disagrees = reduce_max(disagrees, lane);
    var sum = 0.0;
    var warm_sum = 0.0;
    var rest_sum = 0.0;
    place = first_own(ids_at, lane);
    for (var i = lane; i < params.vocab; i += 64u) {
        let c = logits[at + i];
        sum += exp(c - largest);
        warm_sum += exp((c - largest) * params.warmth);
        if place < params.top && ids[ids_at + place] == i {
            place = next_own(ids_at, place + 1u, lane);
        } else if !whole {
            rest_sum += exp((c - rest_largest) * params.warmth);
        }
    }
    var found: Row;
    found.lse = largest + log(reduce_sum(sum, lane));
    found.warm = largest * params.warmth + log(reduce_sum(warm_sum, lane));
    found.rest = log_sum(rest_largest * params.warmth, reduce_sum(rest_sum, lane));
    var total = vec2<f32>();
    if whole {
        for (var i = lane; i < params.vocab; i += 64u) {
            total += divergence_of(teacher[teacher_at + i], logits[at + i] * params.warmth - found.warm);
        }
    } else {
        for (var n = first_own(ids_at, lane); n < params.top; n = next_own(ids_at, n + 1u, lane)) {
            let c = logits[at + ids[ids_at + n]];
            total += divergence_of(teacher[teacher_at + n], c * params.warmth - found.warm);
        }
    }
    let of_rest = divergence_of(teacher[teacher_at + params.top], found.rest - found.warm);
    found.of_rest = of_rest.y;
    let divergence = reduce_sum(total.x, lane) + of_rest.x;
    found.slopes = reduce_sum(total.y, lane) + of_rest.y;
    if lane == 0u {
        let result = 2u * (params.loss_offset + row);
        results[result] = divergence;
        results[result + 1u] = 1.0 - disagrees;
    }
    return found;
}

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let target_id = targets[params.target_offset + group.x];
    let found = row_of(group.x, lane);
    if lane == target_id % 64u {
        losses[params.loss_offset + group.x] = found.lse - logits[group.x * params.stride + target_id];
    }
}

@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = group.x * params.stride;
    let ids_at = ids_of(group.x);
    let teacher_at = teacher_of(group.x);
    let whole = is_whole();
    let target_id = targets[params.target_offset + group.x];
    let found = row_of(group.x, lane);
    let coefficient = coefficients[params.loss_offset + group.x];
    var place = first_own(ids_at, lane);
    for (var i = lane; i < params.vocab; i += 64u) {
        let c = logits[at + i];
        if i == target_id {
            losses[params.loss_offset + group.x] = found.lse - c;
        }
        let warm = c * params.warmth;
        let is_listed = whole || (place < params.top && ids[ids_at + place] == i);
        var g = 0.0;
        if is_listed {
            let of_teacher = teacher[teacher_at + select(place, i, whole)];
            g = divergence_of(of_teacher, warm - found.warm).y;
        } else {
            g = found.of_rest * exp(warm - found.rest);
        }
        if is_listed && !whole {
            place = next_own(ids_at, place + 1u, lane);
        }
        let divergence = (g - exp(warm - found.warm) * found.slopes) * params.warmth;
        let entropy = exp(c - found.lse) - select(0.0, 1.0, i == target_id);
        let slope_root = select(0.0, c / params.softcap, params.softcap != 0.0);
        let slope = 1.0 - slope_root * slope_root;
        logits[at + i] = coefficient * (params.weight * divergence + params.sft_weight * entropy) * slope;
    }
}
