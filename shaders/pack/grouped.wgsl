// shaders/pack/plain.wgsl for rows that are grouped by expert: with `used` it gathers them from the rows of the tokens.
// Padding rows are zero; tiles without expert are not written.
enable f16;
#import common/packed

// Twin of `Params` in src/ops/pack/grouped.rs.
struct Params {
    row_tiles: u32, // matrices over all rows
    tile: u32,      // rows of a tile
    used: u32,      // x's row of a choice is choice / used; 0: x is grouped
    cols4: u32,     // K / 4
    x_stride4: u32,
    x_offset4: u32,
    packed4: u32,   // columns to write, / 4: K rounded up to 64
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;              // [T, K] or [rows, K]
@group(0) @binding(2) var<storage, read_write> packed: array<vec4<f16>>;   // [K/16, rows/16, 16, 16]
@group(0) @binding(3) var<storage, read_write> factors: array<f32>;        // [rows]
@group(0) @binding(4) var<storage, read> tiles: array<u32>;                // expert of each tile
@group(0) @binding(5) var<storage, read> choices: array<u32>;              // choice of each row

const ROWS: u32 = 4u;       // per workgroup
const THREADS: u32 = 64u;   // per row
const NONE: u32 = 0xffffffffu;

var<workgroup> largest: array<f32, 256>;

fn x4(choice: u32, row: u32, col4: u32) -> vec4<f32> {
    if choice == NONE || col4 >= params.cols4 {
        return vec4<f32>();
    }
    let source = select(row, choice / max(params.used, 1u), params.used > 0u);
    return x[source * params.x_stride4 + params.x_offset4 + col4];
}

fn write(choice: u32, row: u32, lane: u32, scale: f32) {
    for (var c = lane; c < params.packed4; c += THREADS) {
        packed[packed_at(params.row_tiles, row, c)] = vec4<f16>(scale * x4(choice, row, c));
    }
}

@compute @workgroup_size(256)
fn pack(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = (group.x + group.y * groups.x) * ROWS;
    if first >= params.row_tiles * 16u {
        return;
    }
    let row = first + lane / THREADS;
    if tiles[first / params.tile] == NONE {
        return;
    }
    let choice = choices[row];
    var most = vec4<f32>();
    for (var c = lane % THREADS; c < params.cols4; c += THREADS) {
        most = max(most, abs(x4(choice, row, c)));
    }
    largest[lane] = most4(most);
    for (var step = THREADS / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if lane % THREADS < step {
            largest[lane] = max(largest[lane], largest[lane + step]);
        }
    }
    workgroupBarrier();
    let e = exponent(largest[lane / THREADS * THREADS]);
    if lane % THREADS == 0u {
        factors[row] = undoing(e);
    }
    write(choice, row, lane % THREADS, scaling(e));
}

// Packs with existing factors: the term that is added to a product must be scaled as the product's operand.
@compute @workgroup_size(256)
fn pack_alike(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = (group.x + group.y * groups.x) * ROWS;
    if first >= params.row_tiles * 16u {
        return;
    }
    let row = first + lane / THREADS;
    if tiles[first / params.tile] != NONE {
        write(choices[row], row, lane % THREADS, 1.0 / factors[row]);
    }
}
