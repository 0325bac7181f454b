// Packs rows of f32 as f16 operands of cooperative matrices. Each row is scaled by the power of two that brings its largest value into
// [½, 1), because large activations overflow f16 and small gradients underflow it; factors[t] undoes it.
// Packed rows are [K/16, T/16, 16, 16]: matrices of 16 rows and 16 columns, each contiguous. Zeros fill the last ones.
enable f16;
#import common/packed

// Twin of `Params` in src/ops/pack/mod.rs.
struct Params {
    rows: u32,      // T
    tiles: u32,     // stride between columns of matrices: T/16 or more
    cols4: u32,     // K / 4
    x_stride4: u32,
    x_offset4: u32,
    packed4: u32,   // columns to write, / 4: K rounded up to 64
    factor_count: u32,  // factors of a row
    factor_stride: u32, // floats from the factors of 256 columns to those of the next; 0 where a row has one factor
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> x: array<vec4<f32>>;        // [T, K]
@group(0) @binding(2) var<storage, read_write> packed: array<vec4<f16>>;   // [K/16, T/16, 16, 16]
@group(0) @binding(3) var<storage, read_write> factors: array<f32>;        // [T], or [K/256, T]

const ROWS: u32 = 4u;       // per workgroup
const THREADS: u32 = 64u;   // per row

var<workgroup> largest: array<f32, 256>;

fn x4(row: u32, col4: u32) -> vec4<f32> {
    if row >= params.rows || col4 >= params.cols4 {
        return vec4<f32>();
    }
    return x[row * params.x_stride4 + params.x_offset4 + col4];
}

fn write(row: u32, c: u32, value: vec4<f32>) {
    if c < params.packed4 {
        packed[packed_at(params.tiles, row, c)] = vec4<f16>(value);
    }
}

// Up to 2048 values of a row are read once. The rest of a wider row is read again once the largest value is known.
@compute @workgroup_size(256)
fn pack(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let start = (group.x + group.y * groups.x) * ROWS;
    if start >= padded(params.rows) {
        return;
    }
    let row = start + lane / THREADS;
    let first = lane % THREADS;
    var most = vec4<f32>();
#for i in 0..8
    let v{i} = x4(row, first + {i}u * THREADS);
    most = max(most, abs(v{i}));
#end
    for (var c = first + 8u * THREADS; c < params.cols4; c += THREADS) {
        most = max(most, abs(x4(row, c)));
    }
    largest[lane] = most4(most);
    for (var step = THREADS / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if first < step {
            largest[lane] = max(largest[lane], largest[lane + step]);
        }
    }
    workgroupBarrier();
    let e = exponent(largest[lane / THREADS * THREADS]);
    for (var b = first; row < params.rows && b < params.factor_count; b += THREADS) {
        factors[b * params.factor_stride + row] = undoing(e);
    }
    let scale = scaling(e);
#for i in 0..8
    write(row, first + {i}u * THREADS, scale * v{i});
#end
    for (var c = first + 8u * THREADS; c < params.packed4; c += THREADS) {
        write(row, c, scale * x4(row, c));
    }
}

// Unpacks to f32: x up to the rounding to f16.
@compute @workgroup_size(256)
fn unpack(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let start = (group.x + group.y * groups.x) * ROWS;
    if start >= padded(params.rows) {
        return;
    }
    let row = start + lane / THREADS;
    if row >= params.rows {
        return;
    }
    for (var c = lane % THREADS; c < params.cols4; c += THREADS) {
        x[row * params.x_stride4 + params.x_offset4 + c] = factors[c / 64u * params.factor_stride + row] * vec4<f32>(packed[packed_at(params.tiles, row, c)]);
    }
}

// Packs with existing factors: the term that is added to a product must be scaled as the product's operand.
@compute @workgroup_size(256)
fn pack_alike(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let start = (group.x + group.y * groups.x) * ROWS;
    if start >= padded(params.rows) {
        return;
    }
    let row = start + lane / THREADS;
    var scale = 0.0;
    if row < params.rows {
        scale = 1.0 / factors[row];
    }
    for (var c = lane % THREADS; c < params.packed4; c += THREADS) {
        write(row, c, scale * x4(row, c));
    }
}
