// The products of coop_linear.wgsl over rows that are grouped by expert (expert_groups.wgsl): each tile of 128 rows multiplies
// with the matrix of its expert, y = x·W_eᵀ + lora_scale·z·B_eᵀ, and the mirror dx = scale·dy·W_e + u·A_e. x, dy, z and u come
// packed and grouped (expert_pack.wgsl). W may hold some of the experts only: tiles of others are left alone.
enable f16;
enable wgpu_cooperative_matrix;
#import weight
#import weight_half

// Twin of `Params` in src/ops/linear/grouped_coop16.rs.
struct Params {
    weight_rows: u32,   // N of all experts that W holds
    weight_cols: u32,   // K
    expert_rows: u32,   // N
    first_expert: u32,  // of W
    row_tiles: u32,     // matrices over the rows of x: 8 a tile
    x_column: u32,      // matrices of x before the first that counts
    y_stride4: u32,
    y_offset4: u32,
    cols4: u32,         // columns of y that this call makes, / 4
    first_column: u32,  // the first of them: row of W_e forward, column backward
    columns: u32,       // those of them that are not padding, which becomes zero
    ranks: u32,         // matrices over the padded rank of the adapter term; 0 for none
    scale: f32,
    lora_scale: f32,
    accumulate: u32,    // whether y keeps what it holds
    lora_rows: u32,     // rows of B_e
    lora_first: u32,    // row of B_e for the first of W_e
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<vec4<u32>>;     // W [E, N, K]
@group(0) @binding(2) var<storage, read> x: array<vec4<f16>>;          // forward: x [K/16, rows/16, 16, 16]; backward: dy
@group(0) @binding(3) var<storage, read> factors: array<f32>;          // what undoes the scaling of x's rows
@group(0) @binding(4) var<storage, read> z: array<vec4<f16>>;          // z or u, scaled as x [R/16, rows/16, 16, 16]
@group(0) @binding(5) var<storage, read> lora: array<vec4<f32>>;       // forward: B [E, N, R]; backward: A [E, R, K]
@group(0) @binding(6) var<storage, read_write> result: array<vec4<f32>>; // forward: y [rows, N]; backward: dx [rows, K]
@group(0) @binding(7) var<storage, read> tiles: array<u32>;            // expert of each tile

const FORWARD_PITCH: u32 = 10u;     // 32 steps and 8 halves, / 4
const BACKWARD_PITCH: u32 = 34u;    // 128 columns and 8 halves, / 4

var<workgroup> staged: array<vec4<f16>, 1280>;      // forward: 128 rows of W; backward: 32 rows of 128 columns
var<workgroup> finished: array<vec4<f32>, 576>;     // 16×32 results of each subgroup, 9 vec4s a row

// The 32 values of a slice.
fn stage(at: u32, slice: Slice) {
    let factors = half_factors(slice);
#for c in 0..8
    staged[at + {c}u] = half4(slice, factors, {c}u);
#end
}

// B [E, N, R], 16 of its columns from matrix `rank` on, for the row of this thread.
fn stage_b(row: u32, rank: u32, lane: u32) {
    let at = (row * params.ranks + rank) * 4u;
    for (var c = 0u; c < 4u; c++) {
        staged[lane * FORWARD_PITCH + c] = vec4<f16>(params.lora_scale / params.scale * lora[at + c]);
    }
}

// A [E, R, K], 16 of its rows from matrix `rank` on, 128 columns.
fn stage_a(col4: u32, rank: u32, expert: u32, lane: u32) {
    for (var r = lane / 32u; r < 16u; r += 4u) {
        let all4 = params.weight_cols / 4u;
        let col = min(col4 + lane % 32u, all4 - 1u);
        let a = lora[((expert * params.ranks + rank) * 16u + r) * all4 + col];
        staged[r * BACKWARD_PITCH + lane % 32u] = vec4<f16>(params.lora_scale / params.scale * a);
    }
}

// Where matrix `row`, `column` of x begins.
fn x_at(row: u32, column: u32) -> u32 {
    return ((params.x_column + column) * params.row_tiles + row) * 64u;
}

fn z_at(row: u32, column: u32) -> u32 {
    return (column * params.row_tiles + row) * 64u;
}

// Stores the 16×32 results that this subgroup has left in `finished`.
fn store(row0: u32, col4: u32, lane: u32) {
    let c = lane % 8u;
    for (var r = lane % 32u / 8u; r < 16u; r += 4u) {
        let row = row0 + r;
        if col4 + c < params.cols4 {
            let at = row * params.y_stride4 + params.y_offset4 + col4 + c;
            var sum = params.scale * factors[row] * finished[lane / 32u * 144u + r * 9u + c];
            let column = vec4<u32>((col4 + c) * 4u) + vec4<u32>(0u, 1u, 2u, 3u);
            sum = select(vec4<f32>(), sum, column < vec4<u32>(params.columns));
            if params.accumulate == 1u {
                sum += result[at];
            }
            result[at] = sum;
        }
    }
}

@compute @workgroup_size(128)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let expert = tiles[group.y];
    // Also where the difference wraps. Nothing but one comparison passes naga's analysis as uniform.
    if expert - params.first_expert >= params.weight_rows / params.expert_rows {
        return;
    }
    let first_row = (expert - params.first_expert) * params.expert_rows;
    let row = group.y * 8u + lane / 32u * 2u; // matrices over the rows
    let n = min(params.first_column + group.x * 128u + lane, params.expert_rows - 1u);
    let last = (params.weight_cols - 1u) / 32u;
#for i in 0..2
#for j in 0..8
    var c{i}{j} = coop_mat16x16<f32, C>();
#end
#end
    var slice = load_slice(first_row + n, 0u);
    for (var step = 0u; step <= last; step++) {
#for k in 0..2
#for i in 0..2
        let x{k}{i} = coopLoadT<coop_mat16x16<f16, A>>(&x[x_at(row + {i}u, step * 2u + {k}u)], 4u);
#end
#end
        workgroupBarrier();
        stage(lane * FORWARD_PITCH, slice);
        workgroupBarrier();
        slice = load_slice(first_row + n, min(step + 1u, last));
#for k in 0..2
#for j in 0..8
        let w{k}{j} = coopLoad<coop_mat16x16<f16, B>>(&staged[{j}u * 16u * FORWARD_PITCH + {k}u * 4u], FORWARD_PITCH);
#for i in 0..2
        c{i}{j} = coopMultiplyAdd(x{k}{i}, w{k}{j}, c{i}{j});
#end
#end
#end
    }
    for (var rank = 0u; rank < params.ranks; rank++) {
        workgroupBarrier();
        stage_b(expert * params.lora_rows + params.lora_first + n, rank, lane);
        workgroupBarrier();
#for i in 0..2
        let z{i} = coopLoadT<coop_mat16x16<f16, A>>(&z[z_at(row + {i}u, rank)], 4u);
#end
#for j in 0..8
        let b{j} = coopLoad<coop_mat16x16<f16, B>>(&staged[{j}u * 16u * FORWARD_PITCH], FORWARD_PITCH);
#for i in 0..2
        c{i}{j} = coopMultiplyAdd(z{i}, b{j}, c{i}{j});
#end
#end
    }
    let at = lane / 32u * 144u;
    let beside = at + 4u;
    let pitch = 9u;
#for i in 0..2
#for (left, right, col4) in (0, 1, 0) (2, 3, 8) (4, 5, 16) (6, 7, 24)
    let v{i}{left} = c{i}{left};
    coopStoreT(v{i}{left}, &finished[at], pitch);
    let v{i}{right} = c{i}{right};
    coopStoreT(v{i}{right}, &finished[beside], pitch);
    subgroupBarrier();
    store((row + {i}u) * 16u, group.x * 32u + {col4}u, lane);
    subgroupBarrier();
#end
#end
}

// dx = dy·W_e + u·A_e
@compute @workgroup_size(128)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let expert = tiles[group.y];
    // Also where the difference wraps. Nothing but one comparison passes naga's analysis as uniform.
    if expert - params.first_expert >= params.weight_rows / params.expert_rows {
        return;
    }
    let first_row = (expert - params.first_expert) * params.expert_rows;
    let row = group.y * 8u + lane / 32u * 2u;
    let last_row = params.expert_rows - 1u;
    let last = (params.weight_cols - 1u) / 32u;
    // A thread stages one of 32 rows' four slices.
    let column = min(params.first_column / 32u + group.x * 4u + lane / 32u, last);
    let at_slice = lane % 32u * BACKWARD_PITCH + lane / 32u * 8u;
#for i in 0..2
#for j in 0..8
    var c{i}{j} = coop_mat16x16<f32, C>();
#end
#end
    var slice = load_slice(first_row + min(lane % 32u, last_row), column);
    for (var step = 0u; step * 32u <= last_row; step++) {
#for k in 0..2
#for i in 0..2
        let x{k}{i} = coopLoadT<coop_mat16x16<f16, A>>(&x[x_at(row + {i}u, step * 2u + {k}u)], 4u);
#end
#end
        workgroupBarrier();
        stage(at_slice, slice);
        workgroupBarrier();
        slice = load_slice(first_row + min((step + 1u) * 32u + lane % 32u, last_row), column);
#for k in 0..2
#for j in 0..8
        let w{k}{j} = coopLoadT<coop_mat16x16<f16, B>>(&staged[{k}u * 16u * BACKWARD_PITCH + {j}u * 4u], BACKWARD_PITCH);
#for i in 0..2
        c{i}{j} = coopMultiplyAdd(x{k}{i}, w{k}{j}, c{i}{j});
#end
#end
#end
    }
    for (var rank = 0u; rank < params.ranks; rank++) {
        workgroupBarrier();
        stage_a(params.first_column / 4u + group.x * 32u, rank, expert, lane);
        workgroupBarrier();
#for i in 0..2
        let z{i} = coopLoadT<coop_mat16x16<f16, A>>(&z[z_at(row + {i}u, rank)], 4u);
#end
#for j in 0..8
        let b{j} = coopLoadT<coop_mat16x16<f16, B>>(&staged[{j}u * 4u], BACKWARD_PITCH);
#for i in 0..2
        c{i}{j} = coopMultiplyAdd(z{i}, b{j}, c{i}{j});
#end
#end
    }
    let at = lane / 32u * 144u;
    let beside = at + 4u;
    let pitch = 9u;
#for i in 0..2
#for (left, right, col4) in (0, 1, 0) (2, 3, 8) (4, 5, 16) (6, 7, 24)
    let v{i}{left} = c{i}{left};
    coopStoreT(v{i}{left}, &finished[at], pitch);
    let v{i}{right} = c{i}{right};
    coopStoreT(v{i}{right}, &finished[beside], pitch);
    subgroupBarrier();
    store((row + {i}u) * 16u, group.x * 32u + {col4}u, lane);
    subgroupBarrier();
#end
#end
}
