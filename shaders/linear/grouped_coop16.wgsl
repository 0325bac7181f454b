// shaders/linear/coop16.wgsl over rows that are grouped by expert (shaders/experts/groups.wgsl): each tile of 128 rows multiplies
// with the matrix of its expert, y = x·W_eᵀ + lora_scale·z·B_eᵀ, and the mirror dx = scale·dy·W_e + u·A_e. x, dy, z and u come
// packed and grouped (shaders/pack/grouped.wgsl). W may hold some of the experts only: tiles of others are not written.
enable f16;
enable wgpu_cooperative_matrix;
#import weight
#import weight_half
#import common/coop16

// Twin of `Params` in src/ops/linear/grouped_coop16.rs.
struct Params {
    weight_rows: u32,   // N of all experts that W holds
    weight_cols: u32,   // K
    expert_rows: u32,   // N
    first_expert: u32,  // of W
    row_tiles: u32,     // matrices over the rows of x: 8 a tile
    x_column: u32,      // first matrix of x along the columns
    y_stride4: u32,
    y_offset4: u32,
    cols4: u32,         // columns of y that this call computes, / 4
    first_column: u32,  // the first of them: row of W_e forward, column backward
    columns: u32,       // of them without padding, which becomes zero
    ranks: u32,         // matrices over the padded rank of the adapter term; 0 for none
    scale: f32,
    lora_scale: f32,
    accumulate: u32,    // 1: add to y
    lora_rows: u32,     // rows of B_e
    lora_first: u32,    // row of B_e for the first of W_e
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<vec4<u32>>;     // W [E, N, K]
@group(0) @binding(2) var<storage, read> x: array<vec4<f16>>;          // forward: x [K/16, rows/16, 16, 16]; backward: dy
@group(0) @binding(3) var<storage, read> factors: array<f32>;          // undoes the scaling of x's rows
@group(0) @binding(4) var<storage, read> z: array<vec4<f16>>;          // z or u, scaled as x [R/16, rows/16, 16, 16]
@group(0) @binding(5) var<storage, read> lora: array<vec4<f32>>;       // forward: B [E, N, R]; backward: A [E, R, K]
@group(0) @binding(6) var<storage, read_write> result: array<vec4<f32>>; // forward: y [rows, N]; backward: dx [rows, K]
@group(0) @binding(7) var<storage, read> tiles: array<u32>;            // expert of each tile

fn tile_of(group: vec3<u32>) -> Tile {
    let expert = tiles[group.y];
    let first_row = (expert - params.first_expert) * params.expert_rows;
    return Tile(expert, first_row, params.expert_rows, params.first_column, 0u, NONE);
}

fn x_at(row: u32, column: u32) -> u32 {
    return ((params.x_column + column) * params.row_tiles + row) * 64u;
}

fn z_at(row: u32, column: u32) -> u32 {
    return (column * params.row_tiles + row) * 64u;
}

fn b_at(tile: Tile, n: u32, rank: u32) -> u32 {
    return ((tile.expert * params.lora_rows + params.lora_first + n) * params.ranks + rank) * 4u;
}

fn a_at(tile: Tile, r: u32) -> u32 {
    return (tile.expert * params.ranks * 16u + r) * (params.weight_cols / 4u);
}

fn place(tile: Tile, row: u32) -> u32 {
    return row * params.y_stride4 + params.y_offset4;
}
