// y = scale·x·Wᵀ + lora_scale·z·Bᵀ, and its mirror dx = scale·dy·W + u·A, on cooperative matrices: f16 operands, f32 sums.
// A workgroup makes 128×128 results, each of its four subgroups 32×128 of them as 16 matrices: no two read the same x, whose
// loads are what this kernel waits for. x, dy, z and u come packed (shaders/pack/plain.wgsl) and are read as matrices straight from
// memory; W and the adapter's matrix become f16 on their way into workgroup memory, 32 steps of the sum at a time: more of that
// memory would leave fewer workgroups on a multiprocessor.
enable f16;
enable wgpu_cooperative_matrix;
#import weight
#import weight_half

// Twin of `Params` in src/ops/linear/coop16.rs.
struct Params {
    rows: u32,          // T
    weight_rows: u32,   // N
    weight_cols: u32,   // K
    tiles: u32,         // matrices from one column of them to the next in x: T/16 or more
    x_column: u32,      // matrices of x before the first that counts
    y_stride4: u32,
    y_offset4: u32,
    cols4: u32,         // columns of y that this call owns, / 4
    columns: u32,       // those of them that are not padding, which becomes zero
    ranks: u32,         // matrices over the padded rank of the adapter term; 0 for none
    z_column: u32,      // matrices of z before the first that counts
    z_tiles: u32,       // as tiles, in z
    lora_offset4: u32,
    scale: f32,
    lora_scale: f32,
    accumulate: u32,    // whether y keeps what it holds
    part_steps: u32,    // steps of the sum in one part; part i, the z of the workgroup, leaves its share at result[i]
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<vec4<u32>>;     // W [N, K]
@group(0) @binding(2) var<storage, read> x: array<vec4<f16>>;          // forward: x [K/16, T/16, 16, 16]; backward: dy
@group(0) @binding(3) var<storage, read> factors: array<f32>;          // what undoes the scaling of x's rows [T]
@group(0) @binding(4) var<storage, read> z: array<vec4<f16>>;          // z or u, scaled as x [R/16, T/16, 16, 16]
@group(0) @binding(5) var<storage, read> lora: array<vec4<f32>>;       // forward: B [N, R]; backward: A [R, K]
@group(0) @binding(6) var<storage, read_write> result: array<vec4<f32>>; // forward: y [T, N]; backward: dx [T, K]

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

// B [N, R], 16 of its columns from matrix `rank` on, for the row of this thread.
fn stage_b(row: u32, rank: u32, lane: u32) {
    let at = params.lora_offset4 + min(row, params.weight_rows - 1u) * params.ranks * 4u + rank * 4u;
    for (var c = 0u; c < 4u; c++) {
        staged[lane * FORWARD_PITCH + c] = vec4<f16>(params.lora_scale / params.scale * lora[at + c]);
    }
}

// A [R, K], 16 of its rows from matrix `rank` on, 128 columns.
fn stage_a(col4: u32, rank: u32, lane: u32) {
    for (var r = lane / 32u; r < 16u; r += 4u) {
        let col = min(col4 + lane % 32u, params.cols4 - 1u);
        let a = lora[params.lora_offset4 + (rank * 16u + r) * params.cols4 + col];
        staged[r * BACKWARD_PITCH + lane % 32u] = vec4<f16>(params.lora_scale / params.scale * a);
    }
}

// Where matrix `row`, `column` of x begins; past the last row there is something else, whose products are not stored.
fn x_at(row: u32, column: u32) -> u32 {
    return ((params.x_column + column) * params.tiles + row) * 64u;
}

fn z_at(row: u32, column: u32) -> u32 {
    return ((params.z_column + column) * params.z_tiles + row) * 64u;
}

// Stores the 16×32 results that this subgroup has left in `finished`.
fn store(part: u32, row0: u32, col4: u32, lane: u32) {
    let c = lane % 8u;
    for (var r = lane % 32u / 8u; r < 16u; r += 4u) {
        let row = row0 + r;
        if row < params.rows && col4 + c < params.cols4 {
            let at = (part * params.rows + row) * params.y_stride4 + params.y_offset4 + col4 + c;
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
    let row = group.y * 8u + lane / 32u * 2u; // matrices over the rows
    let n = min(group.x * 128u + lane, params.weight_rows - 1u);
    let last = (params.weight_cols - 1u) / 32u;
#for i in 0..2
#for j in 0..8
    var c{i}{j} = coop_mat16x16<f32, C>();
#end
#end
    let first_step = group.z * params.part_steps;
    let end_step = min(first_step + params.part_steps, (params.weight_cols + 31u) / 32u);
    var slice = load_slice(n, min(first_step, last));
    for (var step = first_step; step < end_step; step++) {
#for k in 0..2
#for i in 0..2
        let x{k}{i} = coopLoadT<coop_mat16x16<f16, A>>(&x[x_at(row + {i}u, step * 2u + {k}u)], 4u);
#end
#end
        workgroupBarrier();
        stage(lane * FORWARD_PITCH, slice);
        workgroupBarrier();
        slice = load_slice(n, min(step + 1u, last));
#for k in 0..2
#for j in 0..8
        let w{k}{j} = coopLoad<coop_mat16x16<f16, B>>(&staged[{j}u * 16u * FORWARD_PITCH + {k}u * 4u], FORWARD_PITCH);
#for i in 0..2
        c{i}{j} = coopMultiplyAdd(x{k}{i}, w{k}{j}, c{i}{j});
#end
#end
#end
    }
    let ranks = select(0u, params.ranks, group.z == 0u);
    for (var rank = 0u; rank < ranks; rank++) {
        workgroupBarrier();
        stage_b(n, rank, lane);
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
    store(group.z, (row + {i}u) * 16u, group.x * 32u + {col4}u, lane);
    subgroupBarrier();
#end
#end
}

// dx = dy·W + u·A
@compute @workgroup_size(128)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.y * 8u + lane / 32u * 2u;
    let last_row = params.weight_rows - 1u;
    let last = (params.weight_cols - 1u) / 32u;
    // A thread stages one of 32 rows' four slices.
    let column = min(group.x * 4u + lane / 32u, last);
    let at_slice = lane % 32u * BACKWARD_PITCH + lane / 32u * 8u;
#for i in 0..2
#for j in 0..8
    var c{i}{j} = coop_mat16x16<f32, C>();
#end
#end
    let first_step = group.z * params.part_steps;
    let end_step = min(first_step + params.part_steps, (params.weight_rows + 31u) / 32u);
    var slice = load_slice(min(first_step * 32u + lane % 32u, last_row), column);
    for (var step = first_step; step < end_step; step++) {
#for k in 0..2
#for i in 0..2
        let x{k}{i} = coopLoadT<coop_mat16x16<f16, A>>(&x[x_at(row + {i}u, step * 2u + {k}u)], 4u);
#end
#end
        workgroupBarrier();
        stage(at_slice, slice);
        workgroupBarrier();
        slice = load_slice(min((step + 1u) * 32u + lane % 32u, last_row), column);
#for k in 0..2
#for j in 0..8
        let w{k}{j} = coopLoadT<coop_mat16x16<f16, B>>(&staged[{k}u * 16u * BACKWARD_PITCH + {j}u * 4u], BACKWARD_PITCH);
#for i in 0..2
        c{i}{j} = coopMultiplyAdd(x{k}{i}, w{k}{j}, c{i}{j});
#end
#end
#end
    }
    let ranks = select(0u, params.ranks, group.z == 0u);
    for (var rank = 0u; rank < ranks; rank++) {
        workgroupBarrier();
        stage_a(group.x * 32u, rank, lane);
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
    store(group.z, (row + {i}u) * 16u, group.x * 32u + {col4}u, lane);
    subgroupBarrier();
#end
#end
}
