// f16 matrices of 16×16 as panels for shaders/linear/cuda.cu: [columns/64, rows, 64], where 16-byte chunk c of row r lies at c ^ (r & 7).
// Zeros fill the last panel. Behind the panels lie the factors that undo the scaling of the rows.

// Twin of `FromTiles` in src/ops/linear/cuda.rs.
struct Params {
    rows: u32,      // of a panel: T rounded up to 16
    tiles: u32,     // matrices from one column of them to the next
    first: u32,     // first matrix along the columns
    columns: u32,   // matrices along the columns
    factors: u32,   // where the factors begin, / 4
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<u32>>;               // [K/16, T/16, 16, 16], 8 values each
@group(0) @binding(2) var<storage, read_write> panels: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> factors: array<f32>;               // [T]

@compute @workgroup_size(256)
fn from_tiles(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x * 32u + lane / 8u;
    let c = lane % 8u;
    if row >= params.rows {
        return;
    }
    if group.y == 0u && c == 0u {
        panels[params.factors + row / 4u][row % 4u] = bitcast<u32>(factors[row]);
    }
    let column = group.y * 4u + c / 2u;
    var chunk = vec4<u32>();
    if column < params.columns {
        chunk = x[(((params.first + column) * params.tiles + row / 16u) * 16u + row % 16u) * 2u + c % 2u];
    }
    panels[(group.y * params.rows + row) * 8u + (c ^ (row & 7u))] = chunk;
}
