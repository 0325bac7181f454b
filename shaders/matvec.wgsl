// y = scale·x·Wᵀ of one to eight rows x, and z = x·Aᵀ of an adapter that reads the same x, in the same row of the result:
// what reads y next (heads, residual, gated) adds B·z. LANES threads share a row of W, in whatever format `weight` reads.
#import weight

// Twin of `Params` in src/ops/matvec.rs.
struct Params {
    rows: u32,          // T, at most ROWS
    weight_rows: u32,   // N
    weight_cols: u32,   // K
    weight_blocks: u32,
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
override LANES: u32;    // threads that share a row of W: 8, 16, 32 or 64

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<u32>;           // W [N, K]
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;          // [T, K]
@group(0) @binding(3) var<storage, read> a: array<vec4<f32>>;          // A [R, K]
@group(0) @binding(4) var<storage, read_write> result: array<f32>;     // y [T, N] and z [T, R], side by side

var<workgroup> sums: array<f32, 512>; // [ROWS, 64]

fn x4(row: u32, col4: u32) -> vec4<f32> {
    return x[min(row, params.rows - 1u) * params.x_stride4 + params.x_offset4 + col4];
}

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let n = (group.x + group.y * groups.x) * (64u / LANES) + lane / LANES;
    let cols4 = params.weight_cols / 4u;
    let from_w = n < params.weight_rows;
    let from_a = !from_w && n - params.weight_rows < params.a_rows;
    var acc: array<f32, 8>;
    if from_w {
        for (var c = lane % LANES; c < cols4; c += LANES) {
            let w = weight4(n, c);
            for (var t = 0u; t < ROWS; t++) {
                acc[t] += dot(w, x4(t, c));
            }
        }
    } else if from_a {
        for (var c = lane % LANES; c < cols4; c += LANES) {
            let w = a[(n - params.weight_rows) * cols4 + c];
            for (var t = 0u; t < ROWS; t++) {
                acc[t] += dot(w, x4(t, c));
            }
        }
    }
    for (var t = 0u; t < ROWS; t++) {
        sums[t * 64u + lane] = acc[t];
    }
    workgroupBarrier();
    if lane % 8u == 0u {
        for (var t = 0u; t < ROWS; t++) {
            var eight = 0.0;
            for (var i = 0u; i < 8u; i++) {
                eight += sums[t * 64u + lane + i];
            }
            sums[t * 64u + lane] = eight;
        }
    }
    workgroupBarrier();
    if lane % LANES != 0u || !(from_w || from_a) {
        return;
    }
    for (var t = 0u; t < min(ROWS, params.rows); t++) {
        var sum = 0.0;
        for (var i = 0u; i < LANES; i += 8u) {
            sum += sums[t * 64u + lane + i];
        }
        if from_a {
            result[t * params.y_stride + params.z_offset + n - params.weight_rows] = sum;
            continue;
        }
        sum *= params.scale;
        if params.softcap != 0.0 {
            sum = params.softcap * tanh(clamp(sum / params.softcap, -10.0, 10.0));
        }
        result[t * params.y_stride + params.y_offset + n] = sum;
    }
}
