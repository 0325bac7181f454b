// What shaders/linear/grouped.wgsl and shaders/linear/grouped_coop8.wgsl read; nothing past the ends of a matrix.

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
    accumulate: u32,    // whether y keeps what it holds
    cols4: u32,         // columns of y that this call makes, / 4
    first_column: u32,  // the first of them: row of W_e forward, column backward
    tile: u32,          // rows of a tile of the groups, one or two of this kernel's
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
