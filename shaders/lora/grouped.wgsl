// Gradients of the adapters of experts, summed over the rows that are grouped under each expert: dW_e += scale·Pᵀ·Q.
// dB: P = dy [rows, N], Q = z [rows, R]. dA: P = u [rows, R], Q = x [rows, K]. dy and x may be ordered by token; then a row reads that of its
// choice. Where dy is the gradient of the combined outputs, each row counts by the weight of the choice times the scale of its expert.
#import common/tile

alias operand = f32;
#import common/packed
#import common/expert_mask

// Twin of `Params` in src/ops/lora/grouped.rs.
struct Params {
    p_cols: u32,        // rows of dW_e
    p_stride4: u32,
    p_offset4: u32,
    p_used: u32,        // p's row of a choice is choice / used; 0: p is grouped
    q_cols4: u32,       // columns of dW_e, / 4
    q_stride4: u32,
    q_offset4: u32,
    q_used: u32,
    tile: u32,          // rows of a tile
    row_tiles: u32,     // matrices over all rows, where p is packed
    scale: f32,
    weighted: u32,      // 1: a row counts by its choice's weight and its expert's scale
    accumulate: u32,    // 1
    mask_key: u32,      // of q, where dropout masks it
    mask_first: u32,
    mask_stride: u32,
    mask_threshold: u32,
    mask_scale: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> p: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> result: array<vec4<f32>>;   // dW [E, N, R] or [E, R, K]
@group(0) @binding(4) var<storage, read> firsts: array<u32>;               // first tile of each expert
@group(0) @binding(5) var<storage, read> counts: array<u32>;               // rows of each expert
@group(0) @binding(6) var<storage, read> choices: array<u32>;              // choice of each row
@group(0) @binding(7) var<storage, read> weights: array<f32>;              // of each choice
@group(0) @binding(8) var<storage, read> scales: array<f32>;               // of each expert
@group(0) @binding(9) var<storage, read> packed: array<vec2<u32>>;         // p in f16 [N/16, rows/16, 16, 16]
@group(0) @binding(10) var<storage, read> factors: array<f32>;             // undoes the scaling of its rows

var<private> expert: u32;

fn store_row(row: u32, col4: u32, a: vec4<f32>, b: vec4<f32>) {
    if row >= params.p_cols {
        return;
    }
    let at = (expert * params.p_cols + row) * params.q_cols4 + col4;
    store_columns(at, col4, params.q_cols4, params.scale * a, params.scale * b);
}

fn source(row: u32, used: u32) -> u32 {
    return select(row, choices[row] / max(used, 1u), used > 0u);
}

fn read_p(row: u32, col4: u32) -> vec4<f32> {
    if col4 * 4u >= params.p_cols {
        return vec4<f32>();
    }
    let value = p[source(row, params.p_used) * params.p_stride4 + params.p_offset4 + col4];
    if params.weighted == 1u {
        return weights[choices[row]] * scales[expert] * value;
    }
    return value;
}

fn read_packed(row: u32, col4: u32) -> vec4<f32> {
    if col4 * 4u >= params.p_cols {
        return vec4<f32>();
    }
    let halves = packed[packed_at(params.row_tiles, row, col4)];
    return factors[row] * vec4<f32>(unpack2x16float(halves.x), unpack2x16float(halves.y));
}

fn read_q(row: u32, col4: u32) -> vec4<f32> {
    if col4 >= params.q_cols4 {
        return vec4<f32>();
    }
    return q[source(row, params.q_used) * params.q_stride4 + params.q_offset4 + col4];
}

fn read_masked_q(row: u32, col4: u32) -> vec4<f32> {
    if col4 >= params.q_cols4 {
        return vec4<f32>();
    }
    return mask4(choices[row], col4) * read_q(row, col4);
}

#for (name, read, read_q) in (gradient, read_p, read_q) (gradient_packed, read_packed, read_q) (gradient_masked, read_p, read_masked_q)
@compute @workgroup_size(64)
fn {name}(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    expert = group.z;
    let c = lane % 16u;
    let p4 = group.y * (TILE / 4u) + c;
    let q4 = group.x * (TILE / 4u) + c;
    let first = firsts[group.z] * params.tile;
    let end = first + counts[group.z];
    if first == end {
        return;
    }
    for (var t0 = first; t0 < end; t0 += STEPS) {
        for (var step = lane / 16u; step < STEPS; step += 4u) {
            let row = t0 + step;
            var p_value = vec4<f32>();
            var q_value = vec4<f32>();
            if row < end {
                p_value = {read}(row, p4);
                q_value = {read_q}(row, q4);
            }
            tile_p[step * PITCH + c] = p_value;
            tile_q[step * PITCH + c] = q_value;
        }
        tile_multiply(lane);
    }
    tile_store(group.y * TILE, group.x * (TILE / 4u), lane);
}

#end
