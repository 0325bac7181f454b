// y = scale·x·Wᵀ of one to eight rows x, and z = x·Aᵀ of an adapter that reads the same x, in the same row of the result:
// what reads y next (heads, residual, gated) adds B·z. PARTS threads share a row of W, in whatever format `weight` reads:
// where that is kept in slices, neighbouring threads take neighbouring rows, else neighbouring columns.
#import weight

// Twin of `Params` in src/ops/matvec.rs.
struct Params {
    rows: u32,          // T, at most ROWS
    weight_rows: u32,   // N
    weight_cols: u32,   // K
    x_stride4: u32,
    x_offset4: u32,
    y_stride: u32,      // floats from one row of the result to the next
    y_offset: u32,
    z_offset: u32,
    a_rows: u32,        // rows of A; 0 for none
    scale: f32,
    softcap: f32,       // y = softcap·tanh(y / softcap); 0: none
}

override ROWS: u32;     // rows of x that a thread works on: 1, 2, 4 or 8
override PARTS: u32;    // threads that share a row of W: 8, 16 or 32
override SLICED: u32;   // whether `weight` is kept in slices

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<vec4<u32>>;     // W [N, K]
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;          // [T, K]
@group(0) @binding(3) var<storage, read> a: array<vec4<f32>>;          // A [R, K]
@group(0) @binding(4) var<storage, read_write> result: array<f32>;     // y [T, N] and z [T, R], side by side

const THREADS: u32 = 256u;

var<workgroup> sums: array<f32, 2048>; // [ROWS, PARTS, rows of the workgroup]
var<private> acc: array<f32, 8>;

fn x4(row: u32, col4: u32) -> vec4<f32> {
    return x[min(row, params.rows - 1u) * params.x_stride4 + params.x_offset4 + col4];
}

fn add_columns(w: vec4<f32>, col4: u32) {
    for (var t = 0u; t < ROWS; t++) {
        acc[t] += dot(w, x4(t, col4));
    }
}

@compute @workgroup_size(256)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let height = THREADS / PARTS;
    let of_w = (params.weight_rows + height - 1u) / height; // workgroups for W; those for A follow
    let index = group.x + group.y * groups.x;
    let from_a = index >= of_w;
    let cols4 = params.weight_cols / 4u;
    var row = lane / PARTS;
    var part = lane % PARTS;
    if SLICED == 1u && !from_a {
        row = lane % height;
        part = lane / height;
    }
    let n = (index - select(0u, of_w, from_a)) * height + row;
    if from_a {
        if n < params.a_rows {
            for (var c = part; c < cols4; c += PARTS) {
                add_columns(a[n * cols4 + c], c);
            }
        }
    } else if n < params.weight_rows {
        if SLICED == 1u {
            for (var i = part; i < cols4 / 8u; i += PARTS) {
                let s = load_slice(n, i);
#for c in 0..8
                add_columns(slice4(s, {c}u), i * 8u + {c}u);
#end
            }
        } else {
            for (var c = part; c < cols4; c += PARTS) {
                add_columns(weight4(n, c), c);
            }
        }
    }
    let at = part * height + row;
    for (var t = 0u; t < ROWS; t++) {
        sums[t * THREADS + at] = acc[t];
    }
    workgroupBarrier();
    // Eight parts at a time, then what these left.
    if lane < THREADS / 8u {
        let first = lane / height * 8u * height + lane % height;
        for (var t = 0u; t < ROWS; t++) {
            var eight = 0.0;
            for (var i = 0u; i < 8u; i++) {
                eight += sums[t * THREADS + first + i * height];
            }
            sums[t * THREADS + first] = eight;
        }
    }
    workgroupBarrier();
    let out = (index - select(0u, of_w, from_a)) * height + lane;
    if lane >= height || out >= select(params.weight_rows, params.a_rows, from_a) {
        return;
    }
    for (var t = 0u; t < min(ROWS, params.rows); t++) {
        var sum = 0.0;
        for (var i = 0u; i < PARTS; i += 8u) {
            sum += sums[t * THREADS + lane + i * height];
        }
        if from_a {
            result[t * params.y_stride + params.z_offset + out] = sum;
            continue;
        }
        sum *= params.scale;
        if params.softcap != 0.0 {
            sum = params.softcap * tanh(clamp(sum / params.softcap, -10.0, 10.0));
        }
        result[t * params.y_stride + params.y_offset + out] = sum;
    }
}
