// The norm of shaders/rms_norm/plain.wgsl and its gradient, packed as operands of products on cooperative matrices
// (shaders/pack/plain.wgsl), or with ADDS the gradient added to f32: dx = scale·(dx + gradient). 64 threads take a row and keep it in
// registers, EACH vec4s per thread, until its largest value is known. x may come packed itself.
enable f16;
#import common/norm

// Twin of `Params` in src/ops/rms_norm/coop16.rs.
struct Params {
    rows: u32,      // T
    tiles: u32,     // stride between columns of matrices: T/16 or more
    x_tiles: u32,   // as tiles, of a packed x
    width4: u32,    // D / 4
    packed4: u32,   // columns to write, / 4: D rounded up to 64
    eps: f32,
    scale: f32,
    parts: u32,     // of dy
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> w: array<vec4<f32>>;              // [D]
@group(0) @binding(3) var<storage, read_write> packed: array<vec4<f16>>;   // [D/16, T/16, 16, 16]
@group(0) @binding(4) var<storage, read_write> factors: array<f32>;        // [T]
@group(0) @binding(5) var<storage, read> dy: array<vec4<f32>>;             // [parts, T, D]
@group(0) @binding(6) var<storage, read_write> dx: array<vec4<f32>>;       // [T, D]

var<workgroup> products: array<f32, 256>;

// y = x·rstd·w
@compute @workgroup_size(256)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x * ROWS + lane / THREADS;
    let first = lane % THREADS;
    let token = min(row, params.rows - 1u);
    let end = select(0u, params.width4, row < params.rows);
    var sum = 0.0;
    var most = 0.0;
#for i in 0..{EACH}
    let c{i} = first + {i}u * THREADS;
    let read{i} = min(c{i}, params.width4 - 1u);
    let x{i} = source4(token, read{i});
    let w{i} = w[read{i}];
#end
#for i in 0..{EACH}
    let y{i} = select(vec4<f32>(), x{i} * w{i}, c{i} < end);
    sum += select(0.0, dot(x{i}, x{i}), c{i} < end);
    most = max(most, most4(y{i}));
#end
    reduce_row(sum, most, lane);
    let leader = lane / THREADS * THREADS;
    let rstd = rstd_of(squares[leader], params.width4, params.eps);
    let e = exponent(rstd * largest[leader]);
    if first == 0u && row < params.rows {
        factors[row] = undoing(e);
    }
    let scale = scaling(e);
#for i in 0..{EACH}
    if c{i} < params.packed4 {
        packed[packed_at(params.tiles, row, c{i})] = vec4<f16>(scale * (rstd * y{i}));
    }
#end
}

// dx = rstd·(g − x·rstd²·mean(g·x)), g = w·dy
@compute @workgroup_size(256)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x * ROWS + lane / THREADS;
    let first = lane % THREADS;
    let token = min(row, params.rows - 1u);
    let end = select(0u, params.width4, row < params.rows);
    var square = 0.0;
    var product = 0.0;
#for i in 0..{EACH}
    let c{i} = first + {i}u * THREADS;
    let read{i} = min(c{i}, params.width4 - 1u);
    let x{i} = select(vec4<f32>(), source4(token, read{i}), c{i} < end);
    var dy{i} = vec4<f32>();
#end
    for (var s = 0u; s < params.parts; s++) {
#for i in 0..{EACH}
        dy{i} += dy[(s * params.rows + token) * params.width4 + read{i}];
#end
    }
#for i in 0..{EACH}
    let g{i} = select(vec4<f32>(), w[read{i}] * dy{i}, c{i} < end);
#end
#for i in 0..{EACH}
    square += dot(x{i}, x{i});
    product += dot(g{i}, x{i});
#end
    squares[lane] = square;
    products[lane] = product;
    for (var step = THREADS / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if first < step {
            squares[lane] += squares[lane + step];
            products[lane] += products[lane + step];
        }
    }
    workgroupBarrier();
    let leader = lane / THREADS * THREADS;
    let rstd = rstd_of(squares[leader], params.width4, params.eps);
    let along = rstd * rstd * (products[leader] / f32(params.width4 * 4u));
#if {ADDS}
#for i in 0..{EACH}
    if c{i} < end {
        let at{i} = token * params.width4 + c{i};
        dx[at{i}] = params.scale * (dx[at{i}] + rstd * (g{i} - x{i} * along));
    }
#end
#else
    var most = 0.0;
#for i in 0..{EACH}
    let d{i} = rstd * (g{i} - x{i} * along);
    most = max(most, most4(d{i}));
#end
    largest[lane] = most;
    for (var step = THREADS / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if first < step {
            largest[lane] = max(largest[lane], largest[lane + step]);
        }
    }
    workgroupBarrier();
    let e = exponent(largest[leader]);
    if first == 0u && row < params.rows {
        factors[row] = undoing(e);
    }
    let scale = scaling(e);
#for i in 0..{EACH}
    if c{i} < params.packed4 {
        packed[packed_at(params.tiles, row, c{i})] = vec4<f16>(scale * d{i});
    }
#end
#end
}
