// shaders/linear/tiled.wgsl with operands in f16 on cooperative matrices of 8×8, as Apple's GPUs have them.
enable f16;
enable wgpu_cooperative_matrix;
#import weight
#import common/product
#import common/coop8

@group(0) @binding(6) var<storage, read> factors: array<f32>; // what undoes the scaling of x's rows, z's and u's [T]

fn tile_of(group: vec3<u32>) -> Tile {
    return Tile(0u, params.weight_rows, 0u, group.z, params.part_steps);
}

fn source(row: u32) -> u32 {
    return select(NONE, row, row < params.rows);
}

fn place(tile: Tile, row: u32) -> u32 {
    let at = (tile.part * params.rows + row) * params.y_stride4 + params.y_offset4;
    return select(NONE, at, row < params.rows);
}
