// RMSNorm of rows of any width (whole tokens, or heads of a token): y = scale·(residual + x·rstd·w), rstd = 1/√(mean(x²) + eps). A row takes
// one workgroup, or one thread with ALONE.
#import common/rstd
#import common/row_sum

// Twin of `Params` in src/ops/rms_norm/mod.rs.
struct Params {
    rows: u32,
    width4: u32,
    weighted: u32,      // 0: w is 1
    residual: u32,      // forward: add the residual; backward: add to what dx holds
    eps: f32,
    scale: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;          // [rows, width]
@group(0) @binding(2) var<storage, read> w: array<vec4<f32>>;          // [width]
@group(0) @binding(3) var<storage, read> residual: array<vec4<f32>>;   // [rows, width]
@group(0) @binding(4) var<storage, read_write> y: array<vec4<f32>>;    // [rows, width]
@group(0) @binding(5) var<storage, read> dy: array<vec4<f32>>;         // [rows, width]
@group(0) @binding(6) var<storage, read_write> dx: array<vec4<f32>>;   // [rows, width]

fn w4(c: u32) -> vec4<f32> {
    if params.weighted == 0u {
        return vec4<f32>(1.0);
    }
    return w[c];
}

// The row of this thread.
fn row_of(index: u32, lane: u32) -> u32 {
    return index * ({THREADS}u / ROW_THREADS) + lane / ROW_THREADS;
}

#if {IDENTITY}
fn row_rstd(row: u32, lane: u32) -> f32 {
    return 1.0;
}
#else
fn row_rstd(row: u32, lane: u32) -> f32 {
    var squares = 0.0;
    for (var c = lane % ROW_THREADS; c < params.width4; c += ROW_THREADS) {
        let v = x[row * params.width4 + c];
        squares += dot(v, v);
    }
    return rstd_of(row_sum(squares, lane), params.width4, params.eps);
}
#end

@compute @workgroup_size({THREADS})
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = row_of(group.x + group.y * groups.x, lane);
    let row = min(index, params.rows - 1u);
    let rstd = row_rstd(row, lane);
    if index >= params.rows {
        return;
    }
    for (var c = lane % ROW_THREADS; c < params.width4; c += ROW_THREADS) {
        let at = row * params.width4 + c;
        var sum = x[at] * rstd * w4(c);
        if params.residual == 1u {
            sum += residual[at];
        }
        y[at] = params.scale * sum;
    }
}

// dx = rstd·(g − x·rstd²·mean(g·x)), g = w·dy; or scale·(dx + that)
@compute @workgroup_size({THREADS})
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = row_of(group.x + group.y * groups.x, lane);
    let row = min(index, params.rows - 1u);
#if !{IDENTITY}
    let rstd = row_rstd(row, lane);
    var products = 0.0;
    for (var c = lane % ROW_THREADS; c < params.width4; c += ROW_THREADS) {
        let at = row * params.width4 + c;
        products += dot(w4(c) * dy[at], x[at]);
    }
    let mean = row_sum(products, lane) / f32(params.width4 * 4u);
#end
    if index >= params.rows {
        return;
    }
    for (var c = lane % ROW_THREADS; c < params.width4; c += ROW_THREADS) {
        let at = row * params.width4 + c;
#if {IDENTITY}
        var d = dy[at];
#else
        var d = rstd * (w4(c) * dy[at] - x[at] * (rstd * rstd * mean));
#end
        if params.residual == 1u {
            d += dx[at];
        }
        dx[at] = params.scale * d;
    }
}
