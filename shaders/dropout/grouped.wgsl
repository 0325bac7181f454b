// Backward through the adapters of experts with dropout: dx += mask·(u·A_e), over rows that are grouped by expert.
// The forward is shaders/linear/grouped.wgsl with MASKED.
#import common/expert_mask

// Twin of `Params` in src/ops/dropout/grouped.rs.
struct Params {
    rank4: u32,         // padded rank / 4
    u_stride4: u32,
    u_offset4: u32,
    a_cols4: u32,       // K / 4
    first4: u32,        // first column of A_e that this call computes, / 4
    cols4: u32,         // number of columns, / 4
    dx_stride4: u32,
    dx_offset4: u32,
    tile: u32,          // rows of a tile of the groups
    mask_key: u32,
    mask_first: u32,
    mask_stride: u32,
    mask_threshold: u32,
    mask_scale: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> u: array<vec4<f32>>;               // [rows, R]
@group(0) @binding(2) var<storage, read> a: array<vec4<f32>>;               // A [E, R, K]
@group(0) @binding(3) var<storage, read_write> dx: array<vec4<f32>>;        // [rows, K]
@group(0) @binding(4) var<storage, read> tiles: array<u32>;                 // expert of each tile
@group(0) @binding(5) var<storage, read> choices: array<u32>;               // choice of each row

const ROWS: u32 = 8u;       // per workgroup: A stays in the cache
const NONE: u32 = 0xffffffffu;

@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row0 = group.y * ROWS;
    let expert = tiles[row0 / params.tile];
    let col4 = group.x * 64u + lane;
    if expert == NONE || col4 >= params.cols4 {
        return;
    }
    let a0 = expert * params.rank4 * 4u * params.a_cols4 + params.first4 + col4;
    for (var row = row0; row < row0 + ROWS; row++) {
        let choice = choices[row];
        if choice == NONE {
            continue;
        }
        var sum = vec4<f32>();
        for (var r4 = 0u; r4 < params.rank4; r4++) {
            let u4 = u[row * params.u_stride4 + params.u_offset4 + r4];
            let at = a0 + r4 * 4u * params.a_cols4;
            sum += u4.x * a[at];
            sum += u4.y * a[at + params.a_cols4];
            sum += u4.z * a[at + 2u * params.a_cols4];
            sum += u4.w * a[at + 3u * params.a_cols4];
        }
        dx[row * params.dx_stride4 + params.dx_offset4 + col4] += mask4(choice, params.first4 + col4) * sum;
    }
}
