// W or Wᵀ as fragments for shaders/linear/cuda, in f16: [N/64, K/16, 128, 8], what each of 128 threads holds of 64 rows and 16 steps
// (the first operand of wgmma.m64n256k16). Zeros stand for rows and columns behind the last. The fragments of the adapter's matrix that takes
// the same results on, B or Aᵀ, are made beside them. Where there are matrices of several experts, one dispatch makes those of all.
#import weight

// Twin of `Params` in src/ops/linear/cuda/fragments.rs.
struct Params {
    weight_rows: u32,   // of the tile that holds the matrices
    weight_cols: u32,   // K
    first: u32,         // first row of the first matrix
    rows: u32,          // N
    stride: u32,        // rows from one matrix to the next
    first_column: u32,  // a multiple of 32
    steps: u32,         // sixteenths of the sum
    size: u32,          // vec4s of the fragments of a matrix
    scale: f32,
    low_first: u32,     // first row of the first B or A
    low_rows: u32,      // of B, or of A
    low_stride: u32,    // rows from one B or A to the next
    low_cols4: u32,
    low_steps: u32,     // 0: no adapter
    low_at: u32,        // the first fragments of adapters, in vec4s
    low_size: u32,      // vec4s of the fragments of an adapter's matrix
    low_scale: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<vec4<u32>>;              // W [N, K] of every expert
@group(0) @binding(2) var<storage, read_write> fragments: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> low: array<vec4<f32>>;                 // B [N, R] or A [R, K] of every expert

const PITCH: u32 = 9u;  // vec4s of a row in workgroup memory: one more than its 64 halves spreads the banks

var<workgroup> part: array<vec4<u32>, 576>;     // 64 rows and 64 columns of W in f16

fn half4(values: vec4<f32>) -> vec2<u32> {
    return vec2<u32>(pack2x16float(values.xy), pack2x16float(values.zw));
}

// Reads 64 rows and 64 columns of a matrix: a thread takes one slice of a row.
fn load_part(matrix: u32, row0: u32, col0: u32, lane: u32) {
    let row = row0 + lane % 64u;
    let slice = col0 / 32u + lane / 64u;
    let at = lane % 64u * PITCH + lane / 64u * 4u;
    if row >= params.rows || slice * 32u >= params.weight_cols {
#for c in 0..4
        part[at + {c}u] = vec4<u32>();
#end
    } else {
        let values = load_slice(params.first + matrix * params.stride + row, slice);
        let factors = slice_factors(values);
#for (c, first, second) in (0, 0, 1) (1, 2, 3) (2, 4, 5) (3, 6, 7)
        let a{c} = half4(params.scale * slice4(values, factors, {first}u));
        let b{c} = half4(params.scale * slice4(values, factors, {second}u));
        part[at + {c}u] = vec4<u32>(a{c}, b{c});
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
    let at = lane % 64u * PITCH + lane / 64u * 4u;
#for (c, first, second) in (0, 0, 1) (1, 2, 3) (2, 4, 5) (3, 6, 7)
    part[at + {c}u] = vec4<u32>(low4(matrix, row, col4 + {first}u), low4(matrix, row, col4 + {second}u));
#end
}

// Two neighbouring halves of a row.
fn across(row: u32, col: u32) -> u32 {
    return part[row * PITCH + col / 8u][col / 2u % 4u];
}

// The halves of one column in two neighbouring rows.
fn down(row: u32, col: u32) -> u32 {
    let bits = col % 2u * 16u;
    return ((across(row, col) >> bits) & 0xffffu) | ((across(row + 1u, col) >> bits) << 16u);
}

// The matrix of a workgroup: W, or that of the adapter, whose steps come last.
struct Matrix {
    is_low: bool,
    y: u32,         // the workgroup's four steps
    steps: u32,
    start: u32,     // its first fragments, in vec4s
}

fn matrix_of(group: vec3<u32>) -> Matrix {
    let ahead = (params.steps + 3u) / 4u;
    if group.y < ahead {
        return Matrix(false, group.y, params.steps, group.z * params.size);
    }
    return Matrix(true, group.y - ahead, params.low_steps, params.low_at + group.z * params.low_size);
}

// Rows of W become rows of fragments. A workgroup takes 64 of them, and four times 16 steps.
@compute @workgroup_size(128)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let own = matrix_of(group);
    if own.is_low {
        load_low(group.z, group.x * 64u, own.y * 64u, lane);
    } else {
        load_part(group.z, group.x * 64u, params.first_column + own.y * 64u, lane);
    }
    workgroupBarrier();
    let row = lane / 32u * 16u + lane % 32u / 4u;
    for (var s = 0u; s < min(4u, own.steps - own.y * 4u); s++) {
        let col = s * 16u + lane % 4u * 2u;
        fragments[own.start + (group.x * own.steps + own.y * 4u + s) * 128u + lane] =
            vec4<u32>(across(row, col), across(row + 8u, col), across(row, col + 8u), across(row + 8u, col + 8u));
    }
}

// Columns of W become rows of fragments.
@compute @workgroup_size(128)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let own = matrix_of(group);
    if own.is_low {
        load_low(group.z, own.y * 64u, params.first_column + group.x * 64u, lane);
    } else {
        load_part(group.z, own.y * 64u, params.first_column + group.x * 64u, lane);
    }
    workgroupBarrier();
    let col = lane / 32u * 16u + lane % 32u / 4u;
    for (var s = 0u; s < min(4u, own.steps - own.y * 4u); s++) {
        let row = s * 16u + lane % 4u * 2u;
        fragments[own.start + (group.x * own.steps + own.y * 4u + s) * 128u + lane] =
            vec4<u32>(down(row, col), down(row, col + 8u), down(row + 8u, col), down(row + 8u, col + 8u));
    }
}
