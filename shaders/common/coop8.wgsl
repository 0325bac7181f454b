// A 64×64 tile of a product on cooperative matrices of 8×8, forward and backward: operands in f16, sums in f32. A workgroup has four
// subgroups of {LANES} lanes. Each computes 32×32 results as 16 matrices, which fill its registers. All four read the same 32 steps of
// the sum from workgroup memory, so that a weight is unpacked once for 64 rows. Staged values lie matrix by matrix, and as scalars,
// because Metal's simdgroup_load takes pointers to scalars only.
// The importer has the functions of common/product or common/expert_product, and `factors`, which undo the scaling of x.

const THREADS: u32 = 4u * {LANES}u;
const PITCH: u32 = 68u; // floats from one row of `finished` to the next: 4 more than 64 spread the banks

var<workgroup> sources: array<u32, 64>;     // rows of x
var<workgroup> scales: array<f32, 64>;      // scales of these rows
var<workgroup> staged_x: array<f16, 2048>;  // [4, 8, 8, 8]: matrices over the steps, over the rows, row, step
var<workgroup> staged_w: array<f16, 2048>;  // [4, 8, 8, 8]: over the steps and the columns; forward: column, step; backward: step, column
var<workgroup> finished: array<f32, 1088>;  // 16 rows of results

// The place of step `k` of row `row` in `staged_x` and `staged_w`.
fn staged_at(row: u32, k: u32) -> u32 {
    return (k / 8u * 8u + row / 8u) * 64u + row % 8u * 8u + k % 8u;
}

fn stage_w(at: u32, values: vec4<f32>) {
    let w = vec4<f16>(values);
#for (i, c) in (0, x) (1, y) (2, z) (3, w)
    staged_w[at + {i}u] = w.{c};
#end
}

fn stage_x(row: u32, k4: u32, values: vec4<f32>) {
    let x = vec4<f16>(scales[row] * values);
    let at = staged_at(row, k4 * 4u);
#for (i, c) in (0, x) (1, y) (2, z) (3, w)
    staged_x[at + {i}u] = x.{c};
#end
}

// Stages half of a slice of W; rows past the last are zero.
fn stage_half(tile: Tile, row: u32, slice: u32, half: u32, at: u32, next: u32) {
    let known = row < tile.rows;
    let there = tile.first_row + min(row, tile.rows - 1u);
    let values = load_slice(there, min(slice, (params.weight_cols - 1u) / 32u));
    let factors = slice_factors(values);
#for c in 0..4
    stage_w(at + {c}u / 2u * next + {c}u % 2u * 4u, select(vec4<f32>(), params.scale * slice4(values, factors, half * 4u + {c}u), known));
#end
}

// Stages 32 steps of 64 rows of W.
fn stage_forward(tile: Tile, column: u32, step: u32, lane: u32) {
    for (var i = lane; i < 128u; i += THREADS) {
        let n = i % 64u;
        stage_half(tile, column + n, step, i / 64u, staged_at(n, i / 64u * 16u), 512u);
    }
}

// Stages 64 columns of 32 rows of W.
fn stage_backward(tile: Tile, column: u32, step: u32, lane: u32) {
    for (var i = lane; i < 128u; i += THREADS) {
        let n = i % 32u;
        let half = i / 32u; // one of the four halves of the columns
        stage_half(tile, step * 32u + n, column / 32u + half / 2u, half % 2u, (n / 8u * 8u + half * 2u) * 64u + n % 8u * 8u, 64u);
    }
}

// Stages 32 columns of B [N, R].
fn stage_lora_forward(column: u32, r4: u32, lane: u32) {
    for (var i = lane; i < 512u; i += THREADS) {
        stage_w(staged_at(i / 8u, i % 8u * 4u), b4(column + i / 8u, r4 + i % 8u));
    }
}

// Stages 32 rows of A [R, K].
fn stage_lora_backward(column: u32, r4: u32, lane: u32) {
    for (var i = lane; i < 512u; i += THREADS) {
        let r = i / 16u;
        let col4 = i % 16u;
        stage_w((r / 8u * 8u + col4 / 2u) * 64u + r % 8u * 8u + col4 % 2u * 4u, a4(r4 * 4u + r, column / 4u + col4));
    }
}

// Stores four columns of a row of the tile, which is row `i` / 16 of `finished`.
fn store(tile: Tile, row0: u32, row: u32, col4: u32, i: u32) {
    let row_at = place(tile, row0 + row);
    if row_at == NONE || col4 >= params.cols4 {
        return;
    }
    let start = i / 16u * PITCH + i % 16u * 4u;
    // The scale is a power of two.
    let sum = vec4<f32>(finished[start], finished[start + 1u], finished[start + 2u], finished[start + 3u]) / scales[row];
    if params.accumulate == 1u {
        result[row_at + col4] += sum;
    } else {
        result[row_at + col4] = sum;
    }
}

// forward: y = x·Wᵀ + z·Bᵀ; backward: dx = dy·W + u·A
#for (pass, summed, load) in (forward, params.weight_cols, coopLoad) (backward, tile.rows, coopLoadT)
@compute @workgroup_size(THREADS)
fn {pass}(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32, @builtin(subgroup_id) subgroup: u32) {
    let group = vec3<u32>(id[{TURNED}], id[1 - {TURNED}], id.z);
    let tile = tile_of(group);
    let down = subgroup / 2u * 4u; // the first of the tile's 8×8 matrices that this subgroup computes
    let across = subgroup % 2u * 4u;
    let row0 = group.y * 64u;
    let column = tile.first_column + group.x * 64u;
    for (var i = lane; i < 64u; i += THREADS) {
        let own = source(row0 + i);
        sources[i] = own;
        scales[i] = 1.0;
        if own != NONE {
            scales[i] = 1.0 / factors[own];
        }
    }
#for i in 0..4
#for j in 0..4
    var c{i}{j}: coop_mat8x8<f32, C>;
#end
#end
    let x_cols4 = ({summed} + 3u) / 4u;
    let end = min((tile.part + 1u) * tile.part_steps, (x_cols4 + 7u) / 8u);
    let ranks = select(0u, (params.rank4 + 7u) / 8u, tile.part == 0u);
    for (var step = tile.part * tile.part_steps; step < end + ranks; step++) {
        workgroupBarrier();
        if step < end {
            for (var i = lane; i < 512u; i += THREADS) {
                stage_x(i / 8u, i % 8u, x4(sources[i / 8u], step * 8u + i % 8u, x_cols4));
            }
            stage_{pass}(tile, column, step, lane);
        } else {
            let r4 = (step - end) * 8u;
            for (var i = lane; i < 512u; i += THREADS) {
                stage_x(i / 8u, i % 8u, z4(row0 + i / 8u, r4 + i % 8u));
            }
            stage_lora_{pass}(column, r4, lane);
        }
        workgroupBarrier();
        for (var k = 0u; k < 4u; k++) {
#for i in 0..4
            let x{i} = coopLoadT<coop_mat8x8<f16, A>>(&staged_x[(k * 8u + down + {i}u) * 64u], 8u);
#end
#for j in 0..4
            let w{j} = {load}<coop_mat8x8<f16, B>>(&staged_w[(k * 8u + across + {j}u) * 64u], 8u);
#for i in 0..4
            c{i}{j} = coopMultiplyAdd(x{i}, w{j}, c{i}{j});
#end
#end
        }
    }
    let pitch = PITCH;
#for j in 0..4
    let at{j} = subgroup / 2u * 8u * PITCH + (across + {j}u) * 8u;
#end
#for i in 0..4
    workgroupBarrier();
#for j in 0..4
    let sum{i}{j} = c{i}{j};
    coopStoreT(sum{i}{j}, &finished[at{j}], pitch);
#end
    workgroupBarrier();
    for (var i = lane; i < 256u; i += THREADS) {
        store(tile, row0, (i / 128u * 4u + {i}u) * 8u + i / 16u % 8u, group.x * 16u + i % 16u, i);
    }
#end
}

#end
