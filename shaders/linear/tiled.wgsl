// y = scale·x·Wᵀ + lora_scale·z·Bᵀ, and its mirror dx = scale·dy·W + u·A, with W in whatever format `weight` reads.
// W may be a tile of rows of a larger matrix: then forward fills its columns of y, and backward adds to dx.
#if {HALF}
enable f16;
#end
#import weight
#import common/product
#import common/tile

// Operands in f16: each row of x is scaled by the power of two that brings its largest value into [½, 1), as in pack.wgsl, z
// and u as the row that they are added to; `factors` undoes it.
#if {HALF}
alias operand = f16;
@group(0) @binding(6) var<storage, read> factors: array<f32>;          // [T]

var<private> scales: vec4<f32>; // of the four rows that this thread stages

fn scale_of(row: u32) -> f32 {
    return 1.0 / factors[min(row, params.rows - 1u)];
}

fn choose_scales(row: u32) {
    scales = vec4<f32>(scale_of(row), scale_of(row + 1u), scale_of(row + 2u), scale_of(row + 3u));
}

fn scaled(i: u32, values: vec4<f32>) -> vec4<f32> {
    return scales[i] * values;
}

fn undone(row: u32, sum: vec4<f32>) -> vec4<f32> {
    return factors[row] * sum;
}
#else
alias operand = f32;

fn choose_scales(row: u32) {}

fn scaled(i: u32, values: vec4<f32>) -> vec4<f32> {
    return values;
}

fn undone(row: u32, sum: vec4<f32>) -> vec4<f32> {
    return sum;
}
#end

var<private> part: u32; // of this workgroup; no barrier may depend on what is private

fn store_row(row: u32, col4: u32, a: vec4<f32>, b: vec4<f32>) {
    if row >= params.rows {
        return;
    }
    let at = (part * params.rows + row) * params.y_stride4 + params.y_offset4 + col4;
    store_columns(at, col4, params.cols4, undone(row, a), undone(row, b));
}

fn stage_x(row: u32, col4: u32, cols4: u32, lane: u32) {
    stage_p_rows(lane % 4u, lane / 4u, mat4x4<f32>(
        scaled(0u, x4(row, col4, cols4)),
        scaled(1u, x4(row + 1u, col4, cols4)),
        scaled(2u, x4(row + 2u, col4, cols4)),
        scaled(3u, x4(row + 3u, col4, cols4)),
    ));
}

fn stage_z(row: u32, r4: u32, lane: u32) {
    stage_p_rows(lane % 4u, lane / 4u, mat4x4<f32>(
        scaled(0u, z4(row, r4)),
        scaled(1u, z4(row + 1u, r4)),
        scaled(2u, z4(row + 2u, r4)),
        scaled(3u, z4(row + 3u, r4)),
    ));
}

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.y * TILE + lane / 4u * 4u;
    let n = group.x * TILE + lane / 4u * 4u;
    let cols4 = params.weight_cols / 4u;
    let own = group.z;
    part = own;
    choose_scales(row);
    let end4 = min((own + 1u) * params.part_steps * (STEPS / 4u), cols4);
    for (var step4 = own * params.part_steps * (STEPS / 4u); step4 < end4; step4 += STEPS / 4u) {
        let k4 = step4 + lane % 4u;
        stage_x(row, k4, cols4, lane);
        stage_q_rows(lane % 4u, lane / 4u, mat4x4<f32>(w4(n, k4), w4(n + 1u, k4), w4(n + 2u, k4), w4(n + 3u, k4)));
        tile_multiply(lane);
    }
    let rank4 = select(0u, params.rank4, own == 0u);
    for (var step4 = 0u; step4 < rank4; step4 += STEPS / 4u) {
        let r4 = step4 + lane % 4u;
        stage_z(row, r4, lane);
        stage_q_rows(lane % 4u, lane / 4u, mat4x4<f32>(b4(n, r4), b4(n + 1u, r4), b4(n + 2u, r4), b4(n + 3u, r4)));
        tile_multiply(lane);
    }
    tile_store(group.y * TILE, group.x * (TILE / 4u), lane);
}

// dx = dy·W + u·A
@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.y * TILE + lane / 4u * 4u;
    let rows4 = (params.weight_rows + 3u) / 4u;
    let col4 = group.x * (TILE / 4u) + lane % 16u;
    let own = group.z;
    part = own;
    choose_scales(row);
    let end4 = min((own + 1u) * params.part_steps * (STEPS / 4u), rows4);
    for (var n4 = own * params.part_steps * (STEPS / 4u); n4 < end4; n4 += STEPS / 4u) {
        stage_x(row, n4 + lane % 4u, rows4, lane);
        for (var step = lane / 16u; step < STEPS; step += 4u) {
            tile_q[step * PITCH + lane % 16u] = vec4<operand>(w4(n4 * 4u + step, col4));
        }
        tile_multiply(lane);
    }
    let rank4 = select(0u, params.rank4, own == 0u);
    for (var r4 = 0u; r4 < rank4; r4 += STEPS / 4u) {
        stage_z(row, r4 + lane % 4u, lane);
        for (var step = lane / 16u; step < STEPS; step += 4u) {
            let r = r4 * 4u + step;
            tile_q[step * PITCH + lane % 16u] = vec4<operand>(a4(r, col4));
        }
        tile_multiply(lane);
    }
    tile_store(group.y * TILE, group.x * (TILE / 4u), lane);
}
