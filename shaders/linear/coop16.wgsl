// y = scale·x·Wᵀ + lora_scale·z·Bᵀ, and its mirror dx = scale·dy·W + u·A, on cooperative matrices of 16×16. With GRADIENTS, the mirror's
// dispatch also computes gradients of an adapter (shaders/common/adapter_gradients.wgsl).
enable f16;
enable wgpu_cooperative_matrix;
#import weight
#import weight_half
#import common/coop16
#if {GRADIENTS}
#import common/adapter_gradients
#end

// Twin of `Params` in src/ops/linear/coop16.rs.
struct Params {
    rows: u32,          // T
    weight_rows: u32,   // N
    weight_cols: u32,   // K
    tiles: u32,         // stride between columns of matrices in x: T/16 or more
    x_column: u32,      // first matrix of x along the columns
    y_stride4: u32,
    y_offset4: u32,
    cols4: u32,         // columns of y that this call computes, / 4
    columns: u32,       // of them without padding, which becomes zero
    ranks: u32,         // matrices over the padded rank of the adapter term; 0 for none
    z_column: u32,      // first matrix of z along the columns
    z_tiles: u32,       // as tiles, in z
    lora_offset4: u32,
    scale: f32,
    lora_scale: f32,
    accumulate: u32,    // 1: add to y
    part_steps: u32,    // steps of the sum per part; part i, group.z, writes result[i]
    parts: u32,         // of the sum; workgroups behind them compute gradients
#import common/gradient_params
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<vec4<u32>>;     // W [N, K]
@group(0) @binding(2) var<storage, read> x: array<vec4<f16>>;          // forward: x [K/16, T/16, 16, 16]; backward: dy
@group(0) @binding(3) var<storage, read> factors: array<f32>;          // undoes the scaling of x's rows [T]
@group(0) @binding(4) var<storage, read> z: array<vec4<f16>>;          // z or u, scaled as x [R/16, T/16, 16, 16]
@group(0) @binding(5) var<storage, read> lora: array<vec4<f32>>;       // forward: B [N, R]; backward: A [R, K]
@group(0) @binding(6) var<storage, read_write> result: array<vec4<f32>>; // forward: y [T, N]; backward: dx [T, K]

fn tile_of(group: vec3<u32>) -> Tile {
    return Tile(0u, 0u, params.weight_rows, 0u, group.z, params.part_steps);
}

// Past the last row there are other values, whose products are not stored.
fn x_at(row: u32, column: u32) -> u32 {
    return ((params.x_column + column) * params.tiles + row) * 64u;
}

fn z_at(row: u32, column: u32) -> u32 {
    return ((params.z_column + column) * params.z_tiles + row) * 64u;
}

fn b_at(tile: Tile, n: u32, rank: u32) -> u32 {
    return params.lora_offset4 + (n * params.ranks + rank) * 4u;
}

fn a_at(tile: Tile, r: u32) -> u32 {
    return params.lora_offset4 + r * (params.weight_cols / 4u);
}

fn place(tile: Tile, row: u32) -> u32 {
    let at = (tile.part * params.rows + row) * params.y_stride4 + params.y_offset4;
    return select(NONE, at, row < params.rows);
}
