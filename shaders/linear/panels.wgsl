// W or Wᵀ as panels for shaders/linear/cuda, in f16: [N/64, K/64, 64, 64], of which wgmma reads 16 columns at a time from shared memory. The
// sixteenths of each row of 128 bytes are swizzled as it expects. Zeros stand for rows and columns behind the last. The panels of the
// adapter's matrix that takes the same results on, B or Aᵀ, are made beside them. Where there are matrices of several experts, one dispatch
// makes those of all.
#import weight

// Twin of `Params` in src/ops/linear/cuda/panels.rs.
struct Params {
    weight_rows: u32,   // of the tile that holds the matrices
    weight_cols: u32,   // K
    first: u32,         // first row of the first matrix
    rows: u32,          // N
    stride: u32,        // rows from one matrix to the next
    first_column: u32,  // a multiple of 32
    steps: u32,         // panels along the sum
    size: u32,          // vec4s of the panels of a matrix
    scale: f32,
    low_first: u32,     // first row of the first B or A
    low_rows: u32,      // of B, or of A
    low_stride: u32,    // rows from one B or A to the next
    low_cols4: u32,
    low_steps: u32,     // panels along the rank; 0: no adapter
    low_at: u32,        // the first panels of adapters, in vec4s
    low_size: u32,      // vec4s of the panels of an adapter's matrix
    low_scale: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<vec4<u32>>;              // W [N, K] of every expert
@group(0) @binding(2) var<storage, read_write> panels: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> low: array<vec4<f32>>;                 // B [N, R] or A [R, K] of every expert

var<workgroup> part: array<vec4<u32>, 512>;     // 64 rows and 64 columns of W in f16

// The eight halves from column 8·c of a row on: neither neighbours of a row nor those of a column lie in one bank.
fn place(row: u32, c: u32) -> u32 {
    return row * 8u + (c ^ (((row / 8u) ^ row) & 7u));
}

fn half4(values: vec4<f32>) -> vec2<u32> {
    return vec2<u32>(pack2x16float(values.xy), pack2x16float(values.zw));
}

// Reads 64 rows and 64 columns of a matrix: a thread takes one slice of a row.
fn load_part(matrix: u32, row0: u32, col0: u32, lane: u32) {
    let row = row0 + lane % 64u;
    let slice = col0 / 32u + lane / 64u;
    let eight = lane / 64u * 4u;
    if row >= params.rows || slice * 32u >= params.weight_cols {
#for c in 0..4
        part[place(lane % 64u, eight + {c}u)] = vec4<u32>();
#end
    } else {
        let values = load_slice(params.first + matrix * params.stride + row, slice);
        let factors = slice_factors(values);
#for (c, first, second) in (0, 0, 1) (1, 2, 3) (2, 4, 5) (3, 6, 7)
        let a{c} = half4(params.scale * slice4(values, factors, {first}u));
        let b{c} = half4(params.scale * slice4(values, factors, {second}u));
        part[place(lane % 64u, eight + {c}u)] = vec4<u32>(a{c}, b{c});
#end
    }
}

fn low4(matrix: u32, row: u32, col4: u32) -> vec2<u32> {
    if row >= params.low_rows || col4 >= params.low_cols4 {
        return vec2<u32>();
    }
    let at = params.low_first + matrix * params.low_stride + row;
    return half4(params.low_scale * low[at * params.low_cols4 + col4]);
}

// Reads 64 rows and 64 columns of an adapter's matrix.
fn load_low(matrix: u32, row0: u32, col0: u32, lane: u32) {
    let row = row0 + lane % 64u;
    let col4 = col0 / 4u + lane / 64u * 8u;
    let eight = lane / 64u * 4u;
#for (c, first, second) in (0, 0, 1) (1, 2, 3) (2, 4, 5) (3, 6, 7)
    part[place(lane % 64u, eight + {c}u)] = vec4<u32>(low4(matrix, row, col4 + {first}u), low4(matrix, row, col4 + {second}u));
#end
}

// The lower halves of two rows, and the upper ones.
fn lower(a: u32, b: u32) -> u32 {
    return (a & 0xffffu) | (b << 16u);
}

fn upper(a: u32, b: u32) -> u32 {
    return (a >> 16u) | (b & 0xffff0000u);
}

// The matrix of a workgroup: W, or that of the adapter, whose panels come last.
struct Matrix {
    is_low: bool,
    y: u32,         // the workgroup's panel along the sum
    steps: u32,
    start: u32,     // its first panel, in vec4s
}

fn matrix_of(group: vec3<u32>) -> Matrix {
    if group.y < params.steps {
        return Matrix(false, group.y, params.steps, group.z * params.size);
    }
    return Matrix(true, group.y - params.steps, params.low_steps, params.low_at + group.z * params.low_size);
}

// Rows of W become rows of panels. A workgroup makes one panel.
@compute @workgroup_size(128)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let own = matrix_of(group);
    if own.is_low {
        load_low(group.z, group.x * 64u, own.y * 64u, lane);
    } else {
        load_part(group.z, group.x * 64u, params.first_column + own.y * 64u, lane);
    }
    workgroupBarrier();
    let start = own.start + (group.x * own.steps + own.y) * 512u;
    for (var i = lane; i < 512u; i += 128u) {
        panels[start + i] = part[place(i / 8u, (i ^ (i / 8u)) & 7u)];
    }
}

// Columns of W become rows of panels.
@compute @workgroup_size(128)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let own = matrix_of(group);
    if own.is_low {
        load_low(group.z, own.y * 64u, params.first_column + group.x * 64u, lane);
    } else {
        load_part(group.z, own.y * 64u, params.first_column + group.x * 64u, lane);
    }
    workgroupBarrier();
    let start = own.start + (group.x * own.steps + own.y) * 512u;
    // A thread takes two columns of eight rows: a warp writes whole rows of eight columns.
    let eight = lane % 32u / 4u;
    for (var c = lane / 32u; c < 8u; c += 4u) {
#for r in 0..8
        let row{r} = part[place(eight * 8u + {r}u, c)][lane % 4u];
#end
        let col = c * 8u + lane % 4u * 2u;
        panels[start + col * 8u + (eight ^ (col & 7u))] =
            vec4<u32>(lower(row0, row1), lower(row2, row3), lower(row4, row5), lower(row6, row7));
        panels[start + col * 8u + 8u + (eight ^ (col & 7u) ^ 1u)] =
            vec4<u32>(upper(row0, row1), upper(row2, row3), upper(row4, row5), upper(row6, row7));
    }
}
