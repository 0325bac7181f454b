// The status of each row with loss, before its logits become gradients: whether its target is the likeliest token, and whether all of its
// values are finite. Softcap and cross entropy clamp values that are not finite and hide them.
// Must run before cross_entropy; the softcap is monotonic, so that the likeliest token is the same.
#import common/reduce
#import common/reduce_wide
#import common/verdict

// Twin of `Params` in src/ops/row_status/mod.rs.
struct Params {
    rows: u32,          // rows of this chunk (rows), or of the step (tally)
    width4: u32,
    vocab: u32,
    stride4: u32,       // vec4s per row of logits; values past the vocabulary are not read
    target_offset: u32, // index of the first row in targets
    offset: u32,        // index of the first row in verdicts
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> hidden: array<vec4<f32>>;       // [rows, D], before the output norm
@group(0) @binding(2) var<storage, read> logits: array<vec4<f32>>;       // [rows, V], before the softcap
@group(0) @binding(3) var<storage, read> targets: array<u32>;            // [N]
@group(0) @binding(4) var<storage, read_write> verdicts: array<u32>;     // [N]
@group(0) @binding(5) var<storage, read_write> clip: array<f32>;         // see `Clip` in src/ops/adamw/mod.rs

@compute @workgroup_size(256)
fn rows(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = group.x + group.y * groups.x;
    let row = min(index, params.rows - 1u);
    // The norm divides by the root of this sum. Where it overflows, the row counts as not finite although its values are.
    var squares = 0.0;
    for (var c = lane; c < params.width4; c += 256u) {
        let v = hidden[row * params.width4 + c];
        squares += dot(v, v);
    }
    var wrong = false;
    var lost = not_finite(squares);
    let at = row * params.stride4;
    let target_id = targets[params.target_offset + row];
    let target_logit = logits[at + target_id / 4u][target_id % 4u];
    for (var c = lane; c < (params.vocab + 3u) / 4u; c += 256u) {
        let z = logits[at + c];
        let i = vec4<u32>(c * 4u) + vec4<u32>(0u, 1u, 2u, 3u);
        let there = i < vec4<u32>(params.vocab);
        wrong = wrong || any(there & likelier(z, c, target_logit, target_id));
        lost = lost || any(there & not_finite4(z));
    }
    // Sums of whole numbers are exact. At most 256 threads find a likelier token.
    let found = wide_sum(select(select(0.0, 1.0, wrong), 1024.0, lost), lane);
    if lane == 0u && index < params.rows {
        verdicts[params.offset + row] = verdict(found > 0.0, found >= 1024.0);
    }
}

// Counts the status of the step's rows. If any row is not finite, the optimizer leaves all parameters as they are.
@compute @workgroup_size(64)
fn tally(@builtin(local_invocation_index) lane: u32) {
    var right = 0.0;
    var lost = 0.0;
    for (var i = lane; i < params.rows; i += 64u) {
        let verdict = verdicts[i];
        right += f32(verdict == RIGHT);
        lost += f32(verdict == NOT_FINITE);
    }
    // Sums of whole numbers below 2²⁴ are exact.
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
