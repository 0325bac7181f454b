// The products of linear.wgsl over rows that are grouped by expert (expert_groups.wgsl): each 64 rows multiply with
// the matrix of their expert, y = x·W_eᵀ + lora_scale·z·B_eᵀ, and the mirror dx = scale·dy·W_e + u·A_e. x is grouped already, or
// gathered from the rows of the tokens. W may hold some of the experts only: tiles of others are left alone. With dropout
// `forward_masked` is the product with A_e: z = (mask·x)·A_eᵀ.
#if {HALF}
enable f16;
#end
#import weight
#import common/expert_product
#import common/expert_mask
#import common/tile

// Operands in f16 as in linear.wgsl: `factors` undo the scaling of x's rows, z and u are scaled as the row that they are added to.
#if {HALF}
alias operand = f16;
@group(0) @binding(8) var<storage, read> factors: array<f32>;

fn factor_of(source: u32) -> f32 {
    if source == NONE {
        return 1.0;
    }
    return factors[source];
}
#else
alias operand = f32;

fn factor_of(source: u32) -> f32 {
    return 1.0;
}
#end

const NONE: u32 = 0xffffffffu;

var<private> first_row: u32; // of the expert's matrix in W
// Where the four rows that this thread stages lie in x; NONE: nowhere. And by what they are scaled.
var<private> sources: vec4<u32>;
var<private> scales: vec4<f32>;
var<private> staged: u32;    // the first of these rows

// The row of x that a row reads.
fn source(row: u32) -> u32 {
    let choice = choices[row];
    return select(select(row, choice / max(params.used, 1u), params.used > 0u), NONE, choice == NONE);
}

fn place(source: u32) -> u32 {
    return select(source * params.x_stride4 + params.x_offset4, NONE, source == NONE);
}

// Whether W holds the tile's expert.
fn begin(tile: u32, lane: u32) -> bool {
    let own = tiles[tile * TILE / params.tile]; // no barrier may depend on what is private
    expert = own;
    if own - params.first_expert >= params.weight_rows / params.expert_rows { // also where the difference wraps
        return false;
    }
    first_row = (expert - params.first_expert) * params.expert_rows;
    let row = tile * TILE + lane / 4u * 4u;
    staged = row;
#for i in 0..4
    let source{i} = source(row + {i}u);
    sources[{i}] = place(source{i});
    scales[{i}] = 1.0 / factor_of(source{i});
#end
    return true;
}

fn store_row(row: u32, col4: u32, a: vec4<f32>, b: vec4<f32>) {
    let factor = factor_of(source(row));
    store_columns(row * params.y_stride4 + params.y_offset4 + col4, col4, params.cols4, factor * a, factor * b);
}

fn x4(source: u32, col4: u32, cols4: u32) -> vec4<f32> {
    if source == NONE || col4 >= cols4 {
        return vec4<f32>();
    }
    return x[source + col4];
}

fn w4(row: u32, col4: u32) -> vec4<f32> {
    if row >= params.expert_rows || col4 * 4u >= params.weight_cols {
        return vec4<f32>();
    }
    return params.scale * weight4(first_row + row, col4);
}

fn stage_x(col4: u32, cols4: u32, lane: u32) {
    stage_p_rows(lane % 4u, lane / 4u, mat4x4<f32>(
        scales[0] * x4(sources[0], col4, cols4),
        scales[1] * x4(sources[1], col4, cols4),
        scales[2] * x4(sources[2], col4, cols4),
        scales[3] * x4(sources[3], col4, cols4),
    ));
}

fn masked4(i: u32, source: u32, col4: u32, cols4: u32) -> vec4<f32> {
    if source == NONE || col4 >= cols4 {
        return vec4<f32>();
    }
    return mask4(choices[staged + i], col4) * x[source + col4];
}

fn stage_masked(col4: u32, cols4: u32, lane: u32) {
    let rows = mat4x4<f32>(
        masked4(0u, sources.x, col4, cols4), masked4(1u, sources.y, col4, cols4),
        masked4(2u, sources.z, col4, cols4), masked4(3u, sources.w, col4, cols4),
    );
    stage_p_rows(lane % 4u, lane / 4u, rows);
}

fn stage_z(row: u32, r4: u32, lane: u32) {
    stage_p_rows(lane % 4u, lane / 4u, mat4x4<f32>(
        scales[0] * z4(row, r4),
        scales[1] * z4(row + 1u, r4),
        scales[2] * z4(row + 2u, r4),
        scales[3] * z4(row + 3u, r4),
    ));
}

#for (name, stage) in (forward, stage_x) (forward_masked, stage_masked)
@compute @workgroup_size(64)
fn {name}(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    if !begin(group.y, lane) {
        return;
    }
    let row = group.y * TILE + lane / 4u * 4u;
    let n = params.first_column + group.x * TILE + lane / 4u * 4u;
    let cols4 = params.weight_cols / 4u;
    for (var step4 = 0u; step4 < cols4; step4 += STEPS / 4u) {
        let k4 = step4 + lane % 4u;
        {stage}(k4, cols4, lane);
        stage_q_rows(lane % 4u, lane / 4u, mat4x4<f32>(w4(n, k4), w4(n + 1u, k4), w4(n + 2u, k4), w4(n + 3u, k4)));
        tile_multiply(lane);
    }
    for (var step4 = 0u; step4 < params.rank4; step4 += STEPS / 4u) {
        let r4 = step4 + lane % 4u;
        stage_z(row, r4, lane);
        stage_q_rows(lane % 4u, lane / 4u, mat4x4<f32>(b4(n, r4), b4(n + 1u, r4), b4(n + 2u, r4), b4(n + 3u, r4)));
        tile_multiply(lane);
    }
    tile_store(group.y * TILE, group.x * (TILE / 4u), lane);
}

#end
// dx = scale·dy·W_e + u·A_e
@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    if !begin(group.y, lane) {
        return;
    }
    let row = group.y * TILE + lane / 4u * 4u;
    let rows4 = (params.expert_rows + 3u) / 4u;
    let col4 = params.first_column / 4u + group.x * (TILE / 4u) + lane % 16u;
    for (var n4 = 0u; n4 < rows4; n4 += STEPS / 4u) {
        stage_x(n4 + lane % 4u, rows4, lane);
        for (var step = lane / 16u; step < STEPS; step += 4u) {
            tile_q[step * PITCH + lane % 16u] = vec4<operand>(w4(n4 * 4u + step, col4));
        }
        tile_multiply(lane);
    }
    for (var r4 = 0u; r4 < params.rank4; r4 += STEPS / 4u) {
        stage_z(row, r4 + lane % 4u, lane);
        for (var step = lane / 16u; step < STEPS; step += 4u) {
            tile_q[step * PITCH + lane % 16u] = vec4<operand>(a4(r4 * 4u + step, col4));
        }
        tile_multiply(lane);
    }
    tile_store(group.y * TILE, group.x * (TILE / 4u), lane);
}
