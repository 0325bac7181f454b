// Gradients of the adapter's matrices: dW += scale·Pᵀ·Q, summed over the tokens.
// dB: P = dy [T, N], Q = z [T, R]. dA: P = u [T, R], Q = x [T, K].
#import common/tile

alias operand = f32;

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
    part_steps: u32,    // steps of the sum per part; part i, group.z, writes result[i]
    accumulate: u32,    // 1: add to the result; 0 for parts
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> p: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> result: array<vec4<f32>>; // dW

var<private> part: u32; // of this workgroup; no barrier may depend on a private variable

fn store_row(row: u32, col4: u32, a: vec4<f32>, b: vec4<f32>) {
    if row >= params.p_cols4 * 4u {
        return;
    }
    let at = (part * params.p_cols4 * 4u + row) * params.q_cols4 + col4;
    store_columns(at, col4, params.q_cols4, params.scale * a, params.scale * b);
}

fn read_p(t: u32, col4: u32) -> vec4<f32> {
    if t >= params.rows || col4 >= params.p_cols4 {
        return vec4<f32>();
    }
    return p[t * params.p_stride4 + params.p_offset4 + col4];
}

fn read_q(t: u32, col4: u32) -> vec4<f32> {
    if t >= params.rows || col4 >= params.q_cols4 {
        return vec4<f32>();
    }
    return q[t * params.q_stride4 + params.q_offset4 + col4];
}

@compute @workgroup_size(64)
fn gradient(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let c = lane % 16u;
    let p4 = group.y * (TILE / 4u) + c;
    let q4 = group.x * (TILE / 4u) + c;
    let own = group.z;
    part = own;
    let end = min((own + 1u) * params.part_steps * STEPS, params.rows);
    for (var t0 = own * params.part_steps * STEPS; t0 < end; t0 += STEPS) {
        for (var step = lane / 16u; step < STEPS; step += 4u) {
            let t = t0 + step;
            tile_p[step * PITCH + c] = read_p(t, p4);
            tile_q[step * PITCH + c] = read_q(t, q4);
        }
        tile_multiply(lane);
    }
    tile_store(group.y * TILE, group.x * (TILE / 4u), lane);
}
