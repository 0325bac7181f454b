// Adds the norm of a block's result to the residual stream, y = scale·(residual + x·rstd·w) as in shaders/rms_norm/plain.wgsl, and packs the
// operand of the next products: y itself or its own norm (shaders/pack/plain.wgsl). THREADS threads take a row and keep it in registers, EACH vec4s
// per thread, until its largest value is known. x may come packed itself; or it is rounded as packing does (ROUNDED), and stored for backward.
// In f32, x may be the sum of parts. With KEPT, y is rounded as well, before its norm, and packed beside it.
enable f16;
#import common/norm

// Twin of `Params` in src/ops/norm_add/coop16.rs.
struct Params {
    rows: u32,      // T
    tiles: u32,     // stride between columns of matrices: T/16 or more
    x_tiles: u32,   // as tiles, of a packed x
    x_blocks: u32,  // floats from the factors of 256 columns of x to those of the next; 0 where a row has one factor
    x_count: u32,   // factors of a row of x
    y_tiles: u32,   // likewise, of a packed y
    width4: u32,    // D / 4
    packed4: u32,   // columns to write, / 4: D rounded up to 64
    stored: u32,    // 1: store y in f32
    x_stored: u32,  // 1: store rounded x
    eps: f32,
    next_eps: f32,  // of y's own norm
    parts: u32,     // of x in f32
    scale: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
#if !{IDENTITY}
@group(0) @binding(2) var<storage, read> w: array<vec4<f32>>;              // [D]
#end
@group(0) @binding(3) var<storage, read> residual: array<vec4<f32>>;       // [T, D]
@group(0) @binding(4) var<storage, read_write> y: array<vec4<f32>>;        // [T, D]
@group(0) @binding(5) var<storage, read_write> packed: array<vec4<f16>>;   // [D/16, T/16, 16, 16]
@group(0) @binding(6) var<storage, read_write> factors: array<f32>;        // [T]
#if {NORMED}
@group(0) @binding(7) var<storage, read> next_w: array<vec4<f32>>;         // [D]
#end

#if {ROUNDED}
@group(0) @binding(8) var<storage, read_write> x_factors: array<f32>;      // [T], or [D/256, T]
@group(0) @binding(9) var<storage, read_write> x_packed: array<vec4<f16>>; // [D/16, T/16, 16, 16]
#end

#if {KEPT}
@group(0) @binding(10) var<storage, read_write> y_factors: array<f32>;      // [T]
@group(0) @binding(11) var<storage, read_write> y_packed: array<vec4<f16>>; // [D/16, T/16, 16, 16]
#end

@compute @workgroup_size(ROWS * THREADS)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let start = (group.x + group.y * groups.x) * ROWS;
    if start >= padded(params.rows) {
        return;
    }
    let lane = place(thread);
    let row = start + lane / THREADS;
    let first = lane % THREADS;
    let leader = lane - first;
    let token = min(row, params.rows - 1u);
    let at = token * params.width4;
    let end = select(0u, params.width4, row < params.rows);
    var square = 0.0;
#for i in 0..{EACH}
    let c{i} = first + {i}u * THREADS;
    let read{i} = min(c{i}, params.width4 - 1u);
    var x{i} = source4(token, read{i});
#if !{IDENTITY}
    let w{i} = w[read{i}];
#end
    let r{i} = residual[at + read{i}];
#end
#if !{MATRICES}
    for (var s = 1u; s < params.parts; s++) {
#for i in 0..{EACH}
        x{i} += x[(s * params.rows + token) * params.width4 + read{i}];
#end
    }
#end
#if {ROUNDED}
    var most_read = 0.0;
#for i in 0..{EACH}
    most_read = max(most_read, select(0.0, most4(x{i}), c{i} < end));
#end
    reduce_row(0.0, most_read, lane);
    let x_e = exponent(row_largest(leader));
    let is_stored = params.x_stored == 1u && row < params.rows;
    let zero = params.rows >> 31u;
    for (var b = first; is_stored && b < params.x_count; b += THREADS) {
        x_factors[b * params.x_blocks + row] = undoing(x_e);
    }
#for i in 0..{EACH}
    let half{i} = rounded4(scaling(x_e) * x{i}, zero);
    if is_stored && c{i} < end {
        x_packed[packed_at(params.x_tiles, row, c{i})] = vec4<f16>(half{i});
    }
    x{i} = undoing(x_e) * half{i};
#end
#end
#if !{IDENTITY}
#for i in 0..{EACH}
    square += select(0.0, dot(x{i}, x{i}), c{i} < end);
#end
    reduce_row(square, 0.0, lane);
    let rstd = rstd_of(row_square(leader), params.width4, params.eps);
#end
    var most = 0.0;
    square = 0.0;
#for i in 0..{EACH}
#if {IDENTITY}
    var y{i} = select(vec4<f32>(), params.scale * (x{i} + r{i}), c{i} < end);
#else
    var y{i} = select(vec4<f32>(), params.scale * (x{i} * rstd * w{i} + r{i}), c{i} < end);
#end
#end
#if {KEPT}
#for i in 0..{EACH}
    most = max(most, most4(y{i}));
#end
    reduce_row(0.0, most, lane);
    let y_e = exponent(row_largest(leader));
    if first == 0u && row < params.rows {
        y_factors[row] = undoing(y_e);
    }
#for i in 0..{EACH}
    let y_half{i} = rounded4(scaling(y_e) * y{i}, params.rows >> 31u);
    if c{i} < params.packed4 {
        y_packed[packed_at(params.y_tiles, row, c{i})] = vec4<f16>(y_half{i});
    }
    y{i} = undoing(y_e) * y_half{i};
#end
    most = 0.0;
#end
#if {NORMED}
#for i in 0..{EACH}
    let n{i} = y{i} * next_w[read{i}];
    square += dot(y{i}, y{i});
    most = max(most, most4(n{i}));
#end
    reduce_row(square, most, lane);
    let next_rstd = rstd_of(row_square(leader), params.width4, params.next_eps);
    let e = exponent(next_rstd * row_largest(leader));
#else
#for i in 0..{EACH}
    let n{i} = y{i};
    most = max(most, most4(n{i}));
#end
    reduce_row(0.0, most, lane);
    let next_rstd = 1.0;
    let e = exponent(row_largest(leader));
#end
    if first == 0u && row < params.rows {
        factors[row] = undoing(e);
    }
    let scale = scaling(e);
    // Not both factors at once: their product may overflow f32, and rows of zeros must stay zero.
#for i in 0..{EACH}
    if c{i} < params.packed4 {
        packed[packed_at(params.tiles, row, c{i})] = vec4<f16>(scale * (next_rstd * n{i}));
    }
    if params.stored == 1u && c{i} < end {
        y[at + c{i}] = y{i};
    }
#end
}
