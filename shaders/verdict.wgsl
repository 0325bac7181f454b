// What to know of each row that carries loss before its logits become gradients: whether its target is the likeliest
// token, and whether everything in it is finite. Softcap and cross entropy hide what is not: they clamp it.
// Must run before cross_entropy; the softcap is monotonic, so that the likeliest token is the same.
#import common/reduce

// Twin of `Params` in src/ops/verdict.rs.
struct Params {
    rows: u32,          // rows: of this chunk; tally: of the step
    width4: u32,
    vocab: u32,
    stride: u32,        // floats from one row of logits to the next
    target_offset: u32, // place of the first row in targets
    offset: u32,        // and in verdicts
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> hidden: array<vec4<f32>>;       // [rows, D], before the output norm
@group(0) @binding(2) var<storage, read> logits: array<f32>;             // [rows, V], before the softcap
@group(0) @binding(3) var<storage, read> targets: array<u32>;            // [N]
@group(0) @binding(4) var<storage, read_write> verdicts: array<u32>;     // [N]
@group(0) @binding(5) var<storage, read_write> clip: array<f32>;         // see `Clip` in src/ops/adamw.rs

const WRONG: u32 = 0u;
const RIGHT: u32 = 1u;
const NOT_FINITE: u32 = 2u;

// Exponent bits all set. A comparison would be optimised away.
fn not_finite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7f800000u) == 0x7f800000u;
}

@compute @workgroup_size(64)
fn rows(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = group.x + group.y * groups.x;
    let row = min(index, params.rows - 1u);
    // The norm divides by this sum's root: where it overflows, the row is lost though its values are finite.
    var squares = 0.0;
    for (var c = lane; c < params.width4; c += 64u) {
        let v = hidden[row * params.width4 + c];
        squares += dot(v, v);
    }
    var found = select(0.0, 2.0, not_finite(squares));
    let at = row * params.stride;
    let target_id = targets[params.target_offset + row];
    let target_logit = logits[at + target_id];
    for (var i = lane; i < params.vocab; i += 64u) {
        let z = logits[at + i];
        // Of equal ones the first is the likeliest.
        if z > target_logit || (z == target_logit && i < target_id) {
            found = max(found, 1.0);
        }
        if not_finite(z) {
            found = 2.0;
        }
    }
    found = reduce_max(found, lane);
    if lane == 0u && index < params.rows {
        var verdict = RIGHT;
        if found == 1.0 {
            verdict = WRONG;
        } else if found == 2.0 {
            verdict = NOT_FINITE;
        }
        verdicts[params.offset + row] = verdict;
    }
}

// Counts the step's verdicts; where any row is not finite, the optimizer is told to leave everything as it is.
@compute @workgroup_size(64)
fn tally(@builtin(local_invocation_index) lane: u32) {
    var right = 0.0;
    var lost = 0.0;
    for (var i = lane; i < params.rows; i += 64u) {
        let verdict = verdicts[i];
        right += f32(verdict == RIGHT);
        lost += f32(verdict == NOT_FINITE);
    }
    // Whole numbers below 2²⁴: exact.
    right = reduce_sum(right, lane);
    lost = reduce_sum(lost, lane);
    if lane == 0u {
        clip[3] = right;
        clip[4] = lost;
        if lost > 0.0 {
            clip[2] = 0.0;
        }
    }
}
