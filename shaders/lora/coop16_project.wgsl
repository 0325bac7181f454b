// Products of wide operands with an adapter's thin matrices, z = x·Aᵀ and u = scale·dy·B, on cooperative matrices of 16×16. A workgroup takes
// 16·DOWN rows and 16·COLUMNS thin columns, and its subgroups take turns at the steps of the sum. Where that leaves a device idle, several
// workgroups share a sum, and the last to finish adds up their parts, in order. The wide operand comes packed and is read as matrices straight
// from memory. Results are stored in f32, and packed as operands of products, scaled as the rows of the wide operand (shaders/pack/plain.wgsl).
enable f16;
enable wgpu_cooperative_matrix;
#import common/packed
#import common/arrivals

// Twin of `Params` in src/ops/lora/coop16_project.rs.
struct Params {
    rows: u32,          // T
    thin_cols: u32,     // R
    y_stride: u32,
    packed_tiles: u32,  // stride between columns of matrices in `packed`: T/16 or more
    scale: f32,
    down: u32,          // workgroups along the rows; those of a second product follow
    parts: u32,         // of a sum
    part_rounds: u32,   // rounds of the subgroups per part
    tiles_0: u32,       // stride between columns of matrices in the wide operand: T/16 or more
    cols_0: u32,        // its columns
    stride4_0: u32,     // of the thin matrix
    y_0: u32,           // first column of the result
    packed_0: u32,      // likewise, packed: a multiple of 16
    tiles_1: u32,
    cols_1: u32,
    stride4_1: u32,
    y_1: u32,
    packed_1: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;              // [T, Σ R]
@group(0) @binding(2) var<storage, read_write> packed: array<f16>;         // [Σ R/16, T/16, 16, 16]
@group(0) @binding(3) var<storage, read_write> parts: array<atomic<u32>>;  // f32 values [workgroups, parts, 256·DOWN·COLUMNS]
@group(0) @binding(4) var<storage, read_write> arrivals: array<atomic<u32>>; // finished parts of each sum; 0 before and after
@group(0) @binding(5) var<storage, read> wide_0: array<vec4<f16>>;         // [K/16, T/16, 16, 16]
@group(0) @binding(6) var<storage, read> factors_0: array<f32>;            // undoes the scaling of its rows [T]
@group(0) @binding(7) var<storage, read> thin_0: array<vec4<f32>>;         // A [R, K] or B [N, R]
@group(0) @binding(8) var<storage, read> wide_1: array<vec4<f16>>;
@group(0) @binding(9) var<storage, read> factors_1: array<f32>;
@group(0) @binding(10) var<storage, read> thin_1: array<vec4<f32>>;

const A_PITCH: u32 = 18u;                           // 64 steps and 8 halves, / 4
const THIN4: u32 = {COLUMNS}u * 4u;                 // columns of a workgroup, / 4
const STAGE: u32 = 16u * {COLUMNS}u * A_PITCH;      // of a subgroup: rows of A, or 64 rows of B
const VALUES: u32 = 256u * {DOWN}u * {COLUMNS}u;    // results of a workgroup

var<workgroup> staged: array<vec4<f16>, STAGE * {SUBGROUPS}u>;
var<workgroup> finished: array<vec4<f32>, 64u * {SUBGROUPS}u>;  // 16×16 results per subgroup

// Result `q` of 16×16, the sum over the subgroups, in order.
fn sum_at(q: u32) -> f32 {
    var sum = 0.0;
    for (var s = 0u; s < {SUBGROUPS}u; s++) {
        sum += finished[s * 64u + q / 4u][q % 4u];
    }
    return sum;
}

// The first value of a part.
fn part_at(tile: u32, part: u32) -> u32 {
    return (tile * params.parts + part) * VALUES;
}

#for n in 0..2
fn wide_at_{n}(row: u32, column: u32) -> u32 {
    let last = (params.cols_{n} + 63u) / 64u * 4u - 1u;
    return (min(column, last) * params.tiles_{n} + min(row, (params.rows + 15u) / 16u - 1u)) * 64u;
}

// Vec4 `p` of those of A, or of B, that a subgroup stages for a step; zeros past the last step.
fn a4_{n}(column: u32, step: u32, p: u32) -> vec4<f32> {
    let r = min(column * 16u + p / 16u, params.thin_cols - 1u);
    let col4 = step * 16u + p % 16u;
    if col4 * 4u >= params.cols_{n} {
        return vec4<f32>();
    }
    return thin_{n}[r * params.stride4_{n} + col4];
}

fn b4_{n}(column: u32, step: u32, p: u32) -> vec4<f32> {
    let row = step * 64u + p / THIN4;
    let col4 = min(column * 4u + p % THIN4, params.thin_cols / 4u - 1u);
    if row >= params.cols_{n} {
        return vec4<f32>();
    }
    return thin_{n}[row * params.stride4_{n} + col4];
}

// Stores a result in both forms; the last matrices are full.
fn store_{n}(row: u32, col: u32, sum: f32) {
    let t = min(row, params.rows - 1u);
    if row >= (params.rows + 15u) / 16u * 16u || col >= params.thin_cols {
        return;
    }
    if row < params.rows {
        y[row * params.y_stride + params.y_{n} + col] = params.scale * factors_{n}[t] * sum;
    }
    let across = params.packed_{n} + col;
    let at = ((across / 16u) * params.packed_tiles + row / 16u) * 256u + row % 16u * 16u + across % 16u;
    packed[at] = f16(select(0.0, params.scale * sum, row < params.rows));
}

// Result `q` of matrix `m` of a workgroup, DOWN·COLUMNS matrices.
fn store_matrix_{n}(row: u32, column: u32, m: u32, q: u32, sum: f32) {
    store_{n}((row + m / {COLUMNS}u) * 16u + q / 16u, (column + m % {COLUMNS}u) * 16u + q % 16u, sum);
}

#end
#for (pass, n, part4, vec4s, pitch, load, across, down) in (project, 0, a4, 16u, A_PITCH, coopLoad, 16u * A_PITCH, 4u) (project_back, 0, b4, THIN4, THIN4, coopLoadT, 4u, 16u * THIN4) (project_back, 1, b4, THIN4, THIN4, coopLoadT, 4u, 16u * THIN4)
fn {pass}_{n}(tile: u32, row: u32, column: u32, part: u32, lane: u32) {
    let subgroup = lane / 32u;
    let own = subgroup * STAGE;
#for i in 0..{DOWN}
#for j in 0..{COLUMNS}
    var c{i}{j} = coop_mat16x16<f32, C>();
#end
#end
    // Every subgroup takes as many rounds, since barriers need that. Past the last step the thin operand is zero.
    for (var round = part * params.part_rounds; round < (part + 1u) * params.part_rounds; round++) {
        let step = round * {SUBGROUPS}u + subgroup;
#for k in 0..4
#for i in 0..{DOWN}
        let x{k}{i} = coopLoadT<coop_mat16x16<f16, A>>(&wide_{n}[wide_at_{n}(row + {i}u, step * 4u + {k}u)], 4u);
#end
#end
#for q in 0..{LOADS}
        let p{q} = lane % 32u + {q}u * 32u;
        let t{q} = {part4}_{n}(column, step, p{q});
#end
        workgroupBarrier();
#for q in 0..{LOADS}
        staged[own + p{q} / {vec4s} * {pitch} + p{q} % {vec4s}] = vec4<f16>(t{q});
#end
        workgroupBarrier();
#for k in 0..4
#for j in 0..{COLUMNS}
        let a{k}{j} = {load}<coop_mat16x16<f16, B>>(&staged[own + {j}u * {across} + {k}u * {down}], {pitch});
#end
#for i in 0..{DOWN}
#for j in 0..{COLUMNS}
        c{i}{j} = coopMultiplyAdd(x{k}{i}, a{k}{j}, c{i}{j});
#end
#end
#end
    }
    let at = subgroup * 64u;
    let width = 4u;
#for i in 0..{DOWN}
#for j in 0..{COLUMNS}
    workgroupBarrier();
    let v{i}{j} = c{i}{j};
    coopStoreT(v{i}{j}, &finished[at], width);
    workgroupBarrier();
    for (var q = lane; q < 256u; q += {SUBGROUPS}u * 32u) {
        if params.parts == 1u {
            store_matrix_{n}(row, column, {i}u * {COLUMNS}u + {j}u, q, sum_at(q));
        } else {
            atomicStore(&parts[part_at(tile, part) + ({i}u * {COLUMNS}u + {j}u) * 256u + q], bitcast<u32>(sum_at(q)));
        }
    }
#end
#end
    if params.parts > 1u {
        if is_last(tile, params.parts, lane) {
            for (var q = lane; q < VALUES; q += {SUBGROUPS}u * 32u) {
                var sum = 0.0;
                for (var s = 0u; s < params.parts; s++) {
                    sum += bitcast<f32>(atomicLoad(&parts[part_at(tile, s) + q]));
                }
                store_matrix_{n}(row, column, q / 256u, q % 256u, sum);
            }
        }
    }
}

#end
@compute @workgroup_size({THREADS})
fn project(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    project_0(group.y * groups.x + group.x, group.y * {DOWN}u, group.x * {COLUMNS}u, group.z, lane);
}

@compute @workgroup_size({THREADS})
fn project_back(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    project_back_0(group.y * groups.x + group.x, group.y * {DOWN}u, group.x * {COLUMNS}u, group.z, lane);
}

@compute @workgroup_size({THREADS})
fn project_back_both(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let tile = group.y * groups.x + group.x;
    if group.y < params.down {
        project_back_0(tile, group.y * {DOWN}u, group.x * {COLUMNS}u, group.z, lane);
    } else {
        project_back_1(tile, (group.y - params.down) * {DOWN}u, group.x * {COLUMNS}u, group.z, lane);
    }
}
