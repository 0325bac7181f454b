// shaders/linear/grouped.wgsl with operands in f16 on cooperative matrices of 8×8, as Apple's GPUs have them.
enable f16;
enable wgpu_cooperative_matrix;
#import weight
#import common/expert_product
#import common/coop8

@group(0) @binding(8) var<storage, read> factors: array<f32>; // what undoes the scaling of x's rows, z's and u's

fn tile_of(group: vec3<u32>) -> Tile {
    expert = tiles[group.y * 64u / params.tile];
    let nth = expert - params.first_expert; // of W; past its last also where the difference wraps
    if nth >= params.weight_rows / params.expert_rows {
        return Tile(0u, 0u, 0u, 1u, 0u);
    }
    return Tile(nth * params.expert_rows, params.expert_rows, params.first_column, 0u, NONE);
}

fn source(row: u32) -> u32 {
    let choice = choices[row];
    let of_token = choice / max(params.used, 1u);
    return select(select(row, of_token, params.used > 0u), NONE, choice == NONE);
}

fn place(tile: Tile, row: u32) -> u32 {
    return select(row * params.y_stride4 + params.y_offset4, NONE, tile.part_steps == 0u);
}

fn x4(source: u32, col4: u32, cols4: u32) -> vec4<f32> {
    if source == NONE || col4 >= cols4 {
        return vec4<f32>();
    }
    return x[source * params.x_stride4 + params.x_offset4 + col4];
}
