// Parameters, bindings and reads of products over rows that are grouped by expert: shaders/linear/{grouped,grouped_coop8}.wgsl. Reads
// past the ends of a matrix give zero.
#import common/product_tile

// Twin of `Params` in src/ops/linear/grouped.rs.
struct Params {
    weight_rows: u32,   // N of all experts that W holds
    weight_cols: u32,   // K
    expert_rows: u32,   // N
    first_expert: u32,  // of W
    used: u32,          // x's row of a choice is choice / used; 0: x is grouped
    x_stride4: u32,
    x_offset4: u32,
    y_stride4: u32,
    y_offset4: u32,
    rank4: u32,         // padded rank / 4 of the adapter term; 0 for none
    z_stride4: u32,
    z_offset4: u32,
    scale: f32,
    lora_scale: f32,
    accumulate: u32,    // 1: add to y
    cols4: u32,         // columns of y that this call computes, / 4
    first_column: u32,  // the first of them: row of W_e forward, column backward
    tile: u32,          // rows of a tile of the groups: one or two tiles of ROWS rows
    lora_rows: u32,     // rows of B_e
    lora_first: u32,    // row of B_e for the first of W_e
    mask_key: u32,
    mask_first: u32,
    mask_stride: u32,
    mask_threshold: u32,
    mask_scale: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<vec4<u32>>;     // W [E, N, K]
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;          // forward: x; backward: dy
@group(0) @binding(3) var<storage, read> z: array<vec4<f32>>;          // forward: z [rows, R]; backward: u [rows, R]
@group(0) @binding(4) var<storage, read> lora: array<vec4<f32>>;       // forward: B [E, N, R]; backward: A [E, R, K]
@group(0) @binding(5) var<storage, read_write> result: array<vec4<f32>>; // forward: y [rows, N]; backward: dx [rows, K]
@group(0) @binding(6) var<storage, read> tiles: array<u32>;            // expert of each tile
@group(0) @binding(7) var<storage, read> choices: array<u32>;          // choice of each row

var<private> expert: u32; // of this tile

fn z4(row: u32, r4: u32) -> vec4<f32> {
    if r4 >= params.rank4 {
        return vec4<f32>();
    }
    return z[row * params.z_stride4 + params.z_offset4 + r4];
}

fn b4(row: u32, r4: u32) -> vec4<f32> {
    if row >= params.expert_rows || r4 >= params.rank4 {
        return vec4<f32>();
    }
    return params.lora_scale * lora[(expert * params.lora_rows + params.lora_first + row) * params.rank4 + r4];
}

fn a4(r: u32, col4: u32) -> vec4<f32> {
    let all4 = params.weight_cols / 4u;
    if r >= params.rank4 * 4u || col4 >= all4 {
        return vec4<f32>();
    }
    return lora[(expert * params.rank4 * 4u + r) * all4 + col4];
}

// Four values of row `source` of x, as `source()` gives it.
fn x4(source: u32, col4: u32, cols4: u32) -> vec4<f32> {
    if source == NONE || col4 >= cols4 {
        return vec4<f32>();
    }
    return x[source * params.x_stride4 + params.x_offset4 + col4];
}

fn tile_of(group: vec3<u32>) -> Tile {
    let own = tiles[group.y * ROWS / params.tile]; // no barrier may depend on a private variable
    expert = own;
    let nth = own - params.first_expert; // of W; past its last also where the difference wraps
    if nth >= params.weight_rows / params.expert_rows {
        return Tile(0u, 0u, 0u, 1u, 0u);
    }
    return Tile(nth * params.expert_rows, params.expert_rows, params.first_column, 0u, NONE);
}

// The row of x that a row of the tile reads, or NONE.
fn source(row: u32) -> u32 {
    let choice = choices[row];
    let of_token = choice / max(params.used, 1u);
    return select(select(row, of_token, params.used > 0u), NONE, choice == NONE);
}

// The place at which a row of the result begins, or NONE.
fn place(tile: Tile, row: u32) -> u32 {
    return select(row * params.y_stride4 + params.y_offset4, NONE, tile.part_steps == 0u);
}
