// The router of a mixture of experts, one workgroup per token: the USED experts with the largest scores, and their softmax. That equals the
// softmax over all experts divided by the sum over the chosen, because the sum over all cancels. Its backward touches only the chosen, too.
// The lower expert comes first where scores are equal. ALL: the weights are the softmax over all experts.
// SIGMOID: the experts are those with the largest sums of sigmoid and bias, and the weights their sigmoids divided by the sum.
#import common/reduce

// Twin of `Params` in src/ops/experts/router.rs.
struct Params {
    rows: u32,          // T
    experts: u32,       // E, at most 256
    used: u32,          // experts of a token, at most 16
    stride: u32,        // floats per row of scores
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> scores: array<f32>;               // [T, E]
@group(0) @binding(2) var<storage, read_write> chosen: array<u32>;         // [T, used], the largest score first
@group(0) @binding(3) var<storage, read_write> weights: array<f32>;        // [T, used]
@group(0) @binding(4) var<storage, read> dweights: array<f32>;             // [T, used]
@group(0) @binding(5) var<storage, read_write> dscores: array<f32>;        // [T, E]
#if {SIGMOID}
@group(0) @binding(6) var<storage, read> selection: array<f32>;            // [E]

// Added to the sum of sigmoids, as transformers adds it.
const LEAST: f32 = 1e-6;

fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp(-x));
}
#end

const NONE: u32 = 0xffffffffu;

var<workgroup> best_scores: array<f32, 64>;
var<workgroup> best_experts: array<u32, 64>;

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = group.x + group.y * groups.x;
    let row = min(index, params.rows - 1u);
    // This thread's experts are lane, lane + 64, lane + 128 and lane + 192; bit i of `taken` is set once the i-th is chosen.
    var taken = 0u;
    var first = 0.0;
    var sum = 0.0;
    for (var k = 0u; k < params.used; k++) {
        var score = 0.0;
        var expert = NONE;
        for (var i = 0u; i < 4u; i++) {
            let e = lane + i * 64u;
            if e < params.experts && ((taken >> i) & 1u) == 0u {
#if {SIGMOID}
                let s = sigmoid(scores[row * params.stride + e]) + selection[e];
#else
                let s = scores[row * params.stride + e];
#end
                if expert == NONE || s > score {
                    score = s;
                    expert = e;
                }
            }
        }
        best_scores[lane] = score;
        best_experts[lane] = expert;
        workgroupBarrier();
        for (var i = 0u; i < 64u; i++) {
            let s = best_scores[i];
            let e = best_experts[i];
            if e != NONE && (expert == NONE || s > score || (s == score && e < expert)) {
                score = s;
                expert = e;
            }
        }
        workgroupBarrier();
        if expert % 64u == lane {
            taken |= 1u << (expert / 64u);
        }
#if {SIGMOID}
        let weight = sigmoid(scores[row * params.stride + expert]);
#else
        if k == 0u {
            first = score;
        }
        let weight = exp(score - first);
#end
#if {ALL}
#else
        sum += weight;
#end
        if lane == 0u && index < params.rows {
            chosen[row * params.used + k] = expert;
            weights[row * params.used + k] = weight;
        }
    }
#if {ALL}
    for (var e = lane; e < params.experts; e += 64u) {
        sum += exp(scores[row * params.stride + e] - first);
    }
    sum = reduce_sum(sum, lane);
#end
#if {SIGMOID}
    sum += LEAST;
#end
    if lane == 0u && index < params.rows {
        for (var k = 0u; k < params.used; k++) {
            weights[row * params.used + k] /= sum;
        }
    }
}

// dscore = weight·(dweight − Σ weight·dweight) for the chosen, 0 for the others. ALL: the others have a weight and no dweight.
// SIGMOID: its slope divided by it is σ(−score).
@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x + group.y * groups.x;
    if row >= params.rows {
        return;
    }
    var mean = 0.0;
    for (var k = 0u; k < params.used; k++) {
        mean += weights[row * params.used + k] * dweights[row * params.used + k];
    }
#if {ALL}
    let first = scores[row * params.stride + chosen[row * params.used]];
#end
    for (var e = lane; e < params.stride; e += 64u) {
        var dscore = 0.0;
#if {ALL}
        if e < params.experts {
            dscore = -mean * weights[row * params.used] * exp(scores[row * params.stride + e] - first);
        }
#end
        for (var k = 0u; k < params.used; k++) {
            let at = row * params.used + k;
            if chosen[at] == e {
                dscore = weights[at] * (dweights[at] - mean);
#if {SIGMOID}
                dscore *= sigmoid(-scores[row * params.stride + e]);
#end
            }
        }
        dscores[row * params.stride + e] = dscore;
    }
}
