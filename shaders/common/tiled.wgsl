// Products on tiles (common/tile), forward and backward, row of tiles after row; with TURNED, column after column. Operands are f32, or
// f16 with HALF. In f16 each row of x is scaled by the power of two that brings its largest value into [½, 1), z and u as the row that
// they are added to; `factors` undo it.
// The importer has the functions of common/product or common/expert_product, `operand4`, which reads four values of x, and with HALF
// `factors`.
#import common/tile

var<private> own: Tile; // of this workgroup; no barrier may depend on a private variable
// The four rows that this thread stages: the first of them, the rows of x that they read, and their scales.
var<private> staged: u32;
var<private> sources: vec4<u32>;
var<private> scales: vec4<f32>;

#if {HALF}
alias operand = f16;

fn factor_of(source: u32) -> f32 {
    if source == NONE {
        return 1.0;
    }
    return factors[source];
}

fn choose_scales() {
#for i in 0..4
    scales[{i}] = 1.0 / factor_of(sources[{i}]);
#end
}

fn scaled(i: u32, values: vec4<f32>) -> vec4<f32> {
    return scales[i] * values;
}

fn undone(row: u32, sum: vec4<f32>) -> vec4<f32> {
    return factor_of(source(row)) * sum;
}
#else
alias operand = f32;

fn choose_scales() {}

fn scaled(i: u32, values: vec4<f32>) -> vec4<f32> {
    return values;
}

fn undone(row: u32, sum: vec4<f32>) -> vec4<f32> {
    return sum;
}
#end

fn begin(tile: Tile, row: u32) {
    own = tile;
    staged = row;
#for i in 0..4
    sources[{i}] = source(row + {i}u);
#end
    choose_scales();
}

fn store_row(row: u32, col4: u32, a: vec4<f32>, b: vec4<f32>) {
    let at = place(own, row);
    if at == NONE {
        return;
    }
    store_columns(at + col4, col4, params.cols4, undone(row, a), undone(row, b));
}

fn w4(row: u32, col4: u32) -> vec4<f32> {
    if row >= own.rows || col4 * 4u >= params.weight_cols {
        return vec4<f32>();
    }
    return params.scale * weight4(own.first_row + row, col4);
}

fn stage_x(col4: u32, cols4: u32, lane: u32) {
    if lane >= ROWS {
        return;
    }
    stage_p_rows(lane % 4u, lane / 4u, mat4x4<f32>(
        scaled(0u, operand4(staged, sources[0], col4, cols4)),
        scaled(1u, operand4(staged + 1u, sources[1], col4, cols4)),
        scaled(2u, operand4(staged + 2u, sources[2], col4, cols4)),
        scaled(3u, operand4(staged + 3u, sources[3], col4, cols4)),
    ));
}

fn stage_z(r4: u32, lane: u32) {
    if lane >= ROWS {
        return;
    }
    stage_p_rows(lane % 4u, lane / 4u, mat4x4<f32>(
        scaled(0u, z4(staged, r4)),
        scaled(1u, z4(staged + 1u, r4)),
        scaled(2u, z4(staged + 2u, r4)),
        scaled(3u, z4(staged + 3u, r4)),
    ));
}

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let group = vec3<u32>(id[{TURNED}], id[1 - {TURNED}], id.z);
    let tile = tile_of(group);
    begin(tile, group.y * ROWS + lane / 4u * 4u);
    let n = tile.first_column + group.x * TILE + lane / 4u * 4u;
    let cols4 = params.weight_cols / 4u;
    let part4 = tile.part_steps * (STEPS / 4u);
    let end4 = min((tile.part + 1u) * part4, cols4);
    for (var step4 = tile.part * part4; step4 < end4; step4 += STEPS / 4u) {
        let k4 = step4 + lane % 4u;
        stage_x(k4, cols4, lane);
        stage_q_rows(lane % 4u, lane / 4u, mat4x4<f32>(w4(n, k4), w4(n + 1u, k4), w4(n + 2u, k4), w4(n + 3u, k4)));
        tile_multiply(lane);
    }
    let rank4 = select(0u, params.rank4, tile.part == 0u);
    for (var step4 = 0u; step4 < rank4; step4 += STEPS / 4u) {
        let r4 = step4 + lane % 4u;
        stage_z(r4, lane);
        stage_q_rows(lane % 4u, lane / 4u, mat4x4<f32>(b4(n, r4), b4(n + 1u, r4), b4(n + 2u, r4), b4(n + 3u, r4)));
        tile_multiply(lane);
    }
    tile_store(group.y * ROWS, group.x * (TILE / 4u), lane);
}

// dx = dy·W + u·A
@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let group = vec3<u32>(id[{TURNED}], id[1 - {TURNED}], id.z);
    let tile = tile_of(group);
    begin(tile, group.y * ROWS + lane / 4u * 4u);
    let rows4 = (tile.rows + 3u) / 4u;
    let col4 = tile.first_column / 4u + group.x * (TILE / 4u) + lane % 16u;
    let part4 = tile.part_steps * (STEPS / 4u);
    let end4 = min((tile.part + 1u) * part4, rows4);
    for (var n4 = tile.part * part4; n4 < end4; n4 += STEPS / 4u) {
        stage_x(n4 + lane % 4u, rows4, lane);
        for (var step = lane / 16u; step < STEPS; step += 4u) {
            tile_q[step * PITCH + lane % 16u] = vec4<operand>(w4(n4 * 4u + step, col4));
        }
        tile_multiply(lane);
    }
    let rank4 = select(0u, params.rank4, tile.part == 0u);
    for (var r4 = 0u; r4 < rank4; r4 += STEPS / 4u) {
        stage_z(r4 + lane % 4u, lane);
        for (var step = lane / 16u; step < STEPS; step += 4u) {
            tile_q[step * PITCH + lane % 16u] = vec4<operand>(a4(r4 * 4u + step, col4));
        }
        tile_multiply(lane);
    }
    tile_store(group.y * ROWS, group.x * (TILE / 4u), lane);
}
