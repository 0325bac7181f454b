// shaders/lora/tiled.wgsl for a software renderer: dW += scale·Pᵀ·Q in tiles of 4·{LANES} × 4·{LANES}, four columns per lane.
#import common/simd

// Twin of `Params` in src/ops/lora/mod.rs.
struct Params {
    rows: u32,       // T
    p_cols4: u32,    // rows of dW, / 4
    p_stride4: u32,
    p_offset4: u32,
    q_cols4: u32,    // columns of dW, / 4
    q_stride4: u32,
    q_offset4: u32,
    scale: f32,
    part_steps: u32, // 0
    accumulate: u32, // 1: add to the result
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> p: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> result: array<vec4<f32>>; // dW

fn store(row: u32, col4: u32, sum: vec4<f32>) {
    if row >= params.p_cols4 * 4u || col4 >= params.q_cols4 {
        return;
    }
    let at = row * params.q_cols4 + col4;
    if params.accumulate == 1u {
        result[at] += params.scale * sum;
    } else {
        result[at] = params.scale * sum;
    }
}

@compute @workgroup_size({LANES})
fn gradient(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let p4 = group.y * {LANES}u + lane;
    let q4 = group.x * {LANES}u + lane;
    let p_at = params.p_offset4 + min(p4, params.p_cols4 - 1u);
    let q_at = params.q_offset4 + min(q4, params.q_cols4 - 1u);
#for l in 0..{LANES}
    var sum{l} = mat4x4<f32>();
#end
    for (var t = 0u; t < params.rows; t++) {
        let p_value = p[t * params.p_stride4 + p_at];
        let q_value = q[t * params.q_stride4 + q_at];
#for l in 0..{LANES}
        let p{l} = subgroupBroadcast(p_value, {l}u);
        sum{l} += mat4x4<f32>(p{l}.x * q_value, p{l}.y * q_value, p{l}.z * q_value, p{l}.w * q_value);
#end
    }
#for l in 0..{LANES}
#for i in 0..4
    store((group.y * {LANES}u + {l}u) * 4u + {i}u, q4, sum{l}[{i}]);
#end
#end
}
