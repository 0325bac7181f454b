// Products on cooperative matrices of 16×16, forward and backward: f16 operands, f32 sums. A workgroup computes 128 columns of
// 64·{HIGH} rows, row of such tiles after row; with TURNED, column after column. Each of its four subgroups computes 16·{HIGH} rows of them:
// no two read the same x, because loads of x limit this kernel.
// x, dy, z and u come packed (shaders/pack/plain.wgsl) and are read as matrices straight from memory. W and the adapter's matrix
// become f16 on their way into workgroup memory, 32 steps of the sum at a time: more of that memory would leave fewer workgroups
// on a multiprocessor.
// The importer has the bindings, `params` and these functions: `tile_of` tells what a workgroup multiplies; `x_at` and `z_at` tell
// where a matrix of x and z begins; `b_at` and `a_at` tell where a row of the adapter's matrix begins; `place` tells where a row of
// the result begins, or NONE. With GROUPED, the rows of x are grouped by expert. With GRADIENTS, the workgroups of backward behind those of
// `params.parts` parts compute an adapter's gradients: they take the places of a device that the product leaves.

// The matrices that a workgroup multiplies.
struct Tile {
    expert: u32,
    first_row: u32,     // of W
    rows: u32,          // of W: N
    first_column: u32,  // of the result
    part: u32,          // of the sum
    part_steps: u32,
}

const NONE: u32 = 0xffffffffu;
const FORWARD_PITCH: u32 = 10u;     // 32 steps and 8 halves, / 4
const BACKWARD_PITCH: u32 = 34u;    // 128 columns and 8 halves, / 4

#if {GRADIENTS}
var<workgroup> staged: array<vec4<f16>, 1536>;      // as below, and what gradients stage
var<workgroup> finished: array<vec4<f32>, 640>;
#else
var<workgroup> staged: array<vec4<f16>, 1280>;      // forward: 128 rows of W; backward: 32 rows of 128 columns
var<workgroup> finished: array<vec4<f32>, 576>;     // 16×32 results per subgroup, 9 vec4s per row
#end

// Forward, each thread loads a slice of its own row of W; backward, one of the four slices of one of 32 rows.
fn load_forward(tile: Tile, column: u32, step: u32, lane: u32) -> Slice {
    let n = min(column + lane, tile.rows - 1u);
    return load_slice(tile.first_row + n, min(step, (params.weight_cols - 1u) / 32u));
}

fn load_backward(tile: Tile, column: u32, step: u32, lane: u32) -> Slice {
    let n = min(step * 32u + lane % 32u, tile.rows - 1u);
    return load_slice(tile.first_row + n, min(column / 32u + lane / 32u, (params.weight_cols - 1u) / 32u));
}

// Stores the 32 values of a slice from `at` on.
fn stage(at: u32, slice: Slice) {
    let factors = half_factors(slice);
#for c in 0..8
    staged[at + {c}u] = half4(slice, factors, {c}u);
#end
}

// Stages 16 columns of B from matrix `rank` on, of the row of this thread.
fn stage_lora_forward(tile: Tile, column: u32, rank: u32, lane: u32) {
    let at = b_at(tile, min(column + lane, tile.rows - 1u), rank);
    for (var c = 0u; c < 4u; c++) {
        staged[lane * FORWARD_PITCH + c] = vec4<f16>(params.lora_scale / params.scale * lora[at + c]);
    }
}

// Stages 16 rows of A from matrix `rank` on, 128 columns of them.
fn stage_lora_backward(tile: Tile, column: u32, rank: u32, lane: u32) {
    let col = min(column / 4u + lane % 32u, params.weight_cols / 4u - 1u);
    for (var r = lane / 32u; r < 16u; r += 4u) {
        let a = lora[a_at(tile, rank * 16u + r) + col];
        staged[r * BACKWARD_PITCH + lane % 32u] = vec4<f16>(params.lora_scale / params.scale * a);
    }
}

// Stores the 16×32 results that this subgroup has left in `finished`.
fn store(tile: Tile, row0: u32, col4: u32, lane: u32) {
    let c = lane % 8u;
    for (var r = lane % 32u / 8u; r < 16u; r += 4u) {
        let row = row0 + r;
        let row_at = place(tile, row);
        if row_at != NONE && col4 + c < params.cols4 {
            let at = row_at + col4 + c;
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

// forward: y = x·Wᵀ + z·Bᵀ; backward: dx = dy·W + u·A
#for (pass, beside, summed, own, load, across, down, pitch) in (forward, 0, params.weight_cols, lane * FORWARD_PITCH, coopLoad, 16u * FORWARD_PITCH, 4u, FORWARD_PITCH) (backward, {GRADIENTS}, tile.rows, lane % 32u * BACKWARD_PITCH + lane / 32u * 8u, coopLoadT, 4u, 16u * BACKWARD_PITCH, BACKWARD_PITCH)
@compute @workgroup_size(128)
fn {pass}(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) all: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
#if {beside}
    if id.z >= params.parts {
        gradient(((id.z - params.parts) * all.y + id.y) * all.x + id.x, lane);
        return;
    }
#end
    let group = vec3<u32>(id[{TURNED}], id[1 - {TURNED}], id.z);
#if {GROUPED}
    // Tiles of experts that W does not hold are skipped; the difference may wrap. naga takes only a single comparison as uniform.
    if tiles[group.y] - params.first_expert >= params.weight_rows / params.expert_rows {
        return;
    }
#end
    let tile = tile_of(group);
    let row = (group.y * 4u + lane / 32u) * {HIGH}u; // matrices over the rows
    let column = tile.first_column + group.x * 128u;
#for i in 0..{HIGH}
#for j in 0..8
    var c{i}{j} = coop_mat16x16<f32, C>();
#end
#end
    let first_step = tile.part * tile.part_steps;
    let end_step = min(first_step + tile.part_steps, ({summed} + 31u) / 32u);
    var slice = load_{pass}(tile, column, first_step, lane);
    for (var step = first_step; step < end_step; step++) {
#for k in 0..2
#for i in 0..{HIGH}
        let x{k}{i} = coopLoadT<coop_mat16x16<f16, A>>(&x[x_at(row + {i}u, step * 2u + {k}u)], 4u);
#end
#end
        workgroupBarrier();
        stage({own}, slice);
        workgroupBarrier();
        slice = load_{pass}(tile, column, step + 1u, lane);
#for k in 0..2
#for j in 0..8
        let w{k}{j} = {load}<coop_mat16x16<f16, B>>(&staged[{j}u * {across} + {k}u * {down}], {pitch});
#for i in 0..{HIGH}
        c{i}{j} = coopMultiplyAdd(x{k}{i}, w{k}{j}, c{i}{j});
#end
#end
#end
    }
    let ranks = select(0u, params.ranks, tile.part == 0u);
    for (var rank = 0u; rank < ranks; rank++) {
        workgroupBarrier();
        stage_lora_{pass}(tile, column, rank, lane);
        workgroupBarrier();
#for i in 0..{HIGH}
        let z{i} = coopLoadT<coop_mat16x16<f16, A>>(&z[z_at(row + {i}u, rank)], 4u);
#end
#for j in 0..8
        let b{j} = {load}<coop_mat16x16<f16, B>>(&staged[{j}u * {across}], {pitch});
#for i in 0..{HIGH}
        c{i}{j} = coopMultiplyAdd(z{i}, b{j}, c{i}{j});
#end
#end
    }
    let at = lane / 32u * 144u;
    let beside = at + 4u;
    let pitch = 9u;
#for i in 0..{HIGH}
#for (left, right, col4) in (0, 1, 0) (2, 3, 8) (4, 5, 16) (6, 7, 24)
    let v{i}{left} = c{i}{left};
    coopStoreT(v{i}{left}, &finished[at], pitch);
    let v{i}{right} = c{i}{right};
    coopStoreT(v{i}{right}, &finished[beside], pitch);
    subgroupBarrier();
    store(tile, (row + {i}u) * 16u, group.x * 32u + {col4}u, lane);
    subgroupBarrier();
#end
#end
}

#end
