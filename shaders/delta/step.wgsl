// The recurrence of one token, from the state behind the token before it: S ← e^g·S, S ← S + k·(β·(v − Sᵀ·k))ᵀ, o = Sᵀ·q. One workgroup
// per head and 16 columns of its state. With EACH, of one token of every sequence.
#import common/delta

@group(0) @binding(2) var<storage, read> gates: array<f32>;                // decay's logarithm, rate [2, Hv]
@group(0) @binding(3) var<storage, read> mixed: array<vec4<f32>>;          // queries, keys, values [C]
@group(0) @binding(7) var<storage, read_write> result: array<vec4<f32>>;   // o [Hv, K]
#if {EACH}
#import common/steps
@group(0) @binding(8) var<storage, read> steps: array<vec2<u32>>;          // tokens before this one, and its sequence [T]
#else
@group(0) @binding(8) var<storage, read> past: array<u32>;                 // tokens before this one [1]
#end
@group(0) @binding(9) var<storage, read_write> carried: array<vec4<f32>>;  // state [Hv, K, K]

var<workgroup> parts: array<vec4<f32>, 256>;

// Sum over the threads that have the same columns.
fn column_sum(value: vec4<f32>, lane: u32) -> vec4<f32> {
    workgroupBarrier();
    parts[lane] = value;
    workgroupBarrier();
    for (var half = 128u; half >= 4u; half /= 2u) {
        if lane < half {
            parts[lane] += parts[lane + half];
        }
        workgroupBarrier();
    }
    return parts[lane % 4u];
}

@compute @workgroup_size(256)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let head = group.x;
#if {EACH}
    let row = group.z;
    let step = steps[row];
    if step.y == NO_SEQUENCE {
        return;
    }
    let earlier = step.x;
    // A sequence's states begin at a multiple of 256 bytes.
    let state = step.y * ((params.value_heads * SIZE * SIZE4 + 15u) / 16u * 16u) + state_at(0u, head);
#else
    let row = 0u;
    let earlier = past[0];
    let state = state_at(0u, head);
#end
    let gate = 2u * row * gate_stride() + head;
    let column = group.y * 4u + lane % 4u;
    let kept = exp(gates[gate]);
    var own: array<vec4<f32>, 2>;  // rows lane / 4 and lane / 4 + 64
    var read = vec4<f32>();
    for (var n = 0u; n < 2u; n++) {
        let k = lane / 4u + 64u * n;
        if k < SIZE && column < SIZE4 && earlier > 0u {
            own[n] = kept * carried[state + k * SIZE4 + column];
            read += mixed[key_at(row, head) + k / 4u][k % 4u] * own[n];
        }
    }
    let value = mixed[value_at(row, head) + min(column, SIZE4 - 1u)];
    let u = gates[gate_stride() + gate] * (value - column_sum(read, lane));
    var sum = vec4<f32>();
    for (var n = 0u; n < 2u; n++) {
        let k = lane / 4u + 64u * n;
        if k < SIZE && column < SIZE4 {
            let after = own[n] + mixed[key_at(row, head) + k / 4u][k % 4u] * u;
            carried[state + k * SIZE4 + column] = after;
            sum += mixed[query_at(row, head) + k / 4u][k % 4u] * after;
        }
    }
    let o = column_sum(sum, lane);
    if lane < 4u && column < SIZE4 {
        result[(row * params.value_heads + head) * SIZE4 + column] = o;
    }
}
