// Parameters, bindings and reads of products: shaders/linear/{tiled,software,coop8}.wgsl. Reads past the ends of a matrix give zero.
#import common/product_tile

// Twin of `Params` in src/ops/linear/mod.rs.
struct Params {
    rows: u32,          // T
    weight_rows: u32,   // N
    weight_cols: u32,   // K
    x_stride4: u32,
    x_offset4: u32,
    y_stride4: u32,
    y_offset4: u32,
    rank4: u32,         // padded rank / 4 of the adapter term; 0 for none
    z_stride4: u32,
    z_offset4: u32,
    lora_offset4: u32,
    scale: f32,
    lora_scale: f32,
    accumulate: u32,    // 1: add to y
    cols4: u32,         // columns of y that this call computes, / 4
    part_steps: u32,    // steps of the sum per part; part i, group.z, writes result[i]
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<vec4<u32>>;     // W [N, K]
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;          // forward: x [T, K]; backward: dy [T, N]
@group(0) @binding(3) var<storage, read> z: array<vec4<f32>>;          // forward: z [T, R]; backward: u [T, R]
@group(0) @binding(4) var<storage, read> lora: array<vec4<f32>>;       // forward: B [N, R]; backward: A [R, K]
@group(0) @binding(5) var<storage, read_write> result: array<vec4<f32>>; // forward: y [T, N]; backward: dx [T, K]

// Four values of row `row` of x, zero past its end.
fn x4(row: u32, col4: u32, cols4: u32) -> vec4<f32> {
    if row >= params.rows || col4 >= cols4 {
        return vec4<f32>();
    }
    return x[row * params.x_stride4 + params.x_offset4 + col4];
}

fn z4(row: u32, r4: u32) -> vec4<f32> {
    if row >= params.rows || r4 >= params.rank4 {
        return vec4<f32>();
    }
    return z[row * params.z_stride4 + params.z_offset4 + r4];
}

fn b4(row: u32, r4: u32) -> vec4<f32> {
    if row >= params.weight_rows || r4 >= params.rank4 {
        return vec4<f32>();
    }
    return params.lora_scale * lora[params.lora_offset4 + row * params.rank4 + r4];
}

fn a4(r: u32, col4: u32) -> vec4<f32> {
    if r >= params.rank4 * 4u || col4 >= params.cols4 {
        return vec4<f32>();
    }
    return lora[params.lora_offset4 + r * params.cols4 + col4];
}

fn tile_of(group: vec3<u32>) -> Tile {
    return Tile(0u, params.weight_rows, 0u, group.z, params.part_steps);
}

// The row of x that a row of the tile reads, or NONE.
fn source(row: u32) -> u32 {
    return select(NONE, row, row < params.rows);
}

// The place at which a row of the result begins, or NONE.
fn place(tile: Tile, row: u32) -> u32 {
    let at = (tile.part * params.rows + row) * params.y_stride4 + params.y_offset4;
    return select(NONE, at, row < params.rows);
}
