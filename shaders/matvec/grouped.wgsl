// Products of the few rows of a short pass with the experts that each token has chosen, without sorting them. Every row of y is the sum over
// `summed` choices, y = Σ factor·(W_e·x + lora_scale·B_e·z). The factor is the weight of the choice times the scale of its expert, or 1. PARTS
// threads share a row of y. Where W is kept in slices, neighbouring threads take neighbouring rows. With WHOLE slices, K is a
// multiple of 32.
#import weight

// Twin of `Params` in src/ops/matvec/grouped.rs.
struct Params {
    weight_rows: u32,   // N of all experts that W holds
    weight_cols: u32,   // K
    expert_rows: u32,   // N
    first_expert: u32,  // of W
    sliced: u32,        // 1: W is kept in slices
    used: u32,          // x's row of a choice is choice / used; 0: the choice
    summed: u32,        // choices of a row of y: one, or all of a token's
    weighted: u32,      // 0: every factor is 1
    x_stride4: u32,
    x_offset4: u32,
    y_stride: u32,
    y_offset: u32,
    rank: u32,          // of the adapter term; 0 for none
    z_stride: u32,
    lora_rows: u32,     // rows of B_e
    lora_first: u32,    // row of B_e for the first of W_e
    lora_scale: f32,
    accumulate: u32,    // 1: add to y
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<vec4<u32>>;     // W [E, N, K]
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;          // [T, K] or [T·used, K]
@group(0) @binding(3) var<storage, read> chosen: array<u32>;           // expert of each choice [T·used]
@group(0) @binding(4) var<storage, read> weights: array<f32>;          // [T·used]
@group(0) @binding(5) var<storage, read> scales: array<f32>;           // [E]
@group(0) @binding(6) var<storage, read> z: array<f32>;                // [T·used, R]
@group(0) @binding(7) var<storage, read> lora: array<f32>;             // B [E, N, R]
@group(0) @binding(8) var<storage, read_write> result: array<f32>;     // y [T·used, N] or [T, N]

const PARTS: u32 = 32u;
const HEIGHT: u32 = 8u; // rows of a workgroup

var<workgroup> sums: array<f32, 256>; // [PARTS, HEIGHT]

// A slice of the product of W_e and x for one row; an expert that W does not hold adds nothing.
fn product(choice: u32, row: u32, slice: u32) -> f32 {
    let expert = chosen[choice];
    if expert - params.first_expert >= params.weight_rows / params.expert_rows { // also where the difference wraps
        return 0.0;
    }
    let s = load_slice((expert - params.first_expert) * params.expert_rows + row, slice);
    let factors = slice_factors(s);
    let source = select(choice, choice / max(params.used, 1u), params.used > 0u);
    let at = source * params.x_stride4 + params.x_offset4;
    var sum = 0.0;
#for c in 0..8
#if {WHOLE}
    sum += dot(slice4(s, factors, {c}u), x[at + slice * 8u + {c}u]);
#else
    if slice * 8u + {c}u < params.weight_cols / 4u {
        sum += dot(slice4(s, factors, {c}u), x[at + slice * 8u + {c}u]);
    }
#end
#end
    // The adapter's term is added with the first slice.
    if slice == 0u {
        var term = 0.0;
        for (var r = 0u; r < params.rank; r++) {
            let b = ((expert * params.lora_rows + params.lora_first + row) * params.rank) + r;
            term += lora[b] * z[choice * params.z_stride + r];
        }
        sum += params.lora_scale * term;
    }
    if params.weighted == 1u {
        return weights[choice] * scales[expert] * sum;
    }
    return sum;
}

@compute @workgroup_size(256)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    var at = vec2<u32>(lane / PARTS, lane % PARTS); // row of the workgroup, part of the sum
    if params.sliced == 1u {
        at = vec2<u32>(lane % HEIGHT, lane / HEIGHT);
    }
    let row = group.x * HEIGHT + at.x;
    let slices = (params.weight_cols + 31u) / 32u;
    var sum = 0.0;
    if row < params.expert_rows {
        for (var i = at.y; i < params.summed * slices; i += PARTS) {
            sum += product(group.y * params.summed + i / slices, row, i % slices);
        }
    }
    sums[at.y * HEIGHT + at.x] = sum;
    for (var step = PARTS / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if lane < step * HEIGHT {
            sums[lane] += sums[lane + step * HEIGHT];
        }
    }
    let out = group.x * HEIGHT + lane;
    if lane >= HEIGHT || out >= params.expert_rows {
        return;
    }
    let to = group.y * params.y_stride + params.y_offset + out;
    if params.accumulate == 1u {
        result[to] += sums[lane];
    } else {
        result[to] = sums[lane];
    }
}
