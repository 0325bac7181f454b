// The norm of shaders/rms_norm/plain.wgsl and its gradient, packed as operands of products on cooperative matrices
// (shaders/pack/plain.wgsl). THREADS threads take a row and keep it in registers, EACH vec4s per thread, until its largest value is known. x may
// come packed itself. What backward packs is the gradient of dy (PACKS), or with IDENTITY dy itself. dy may be what this kernel adds to f32
// first: the sum of parts (SUMS), or the gradient of another norm, whose result has the parts' sum as its gradient (ADDS), in f16 with HALVES.
enable f16;
#import common/norm

// Twin of `Params` in src/ops/rms_norm/coop16.rs.
struct Params {
    rows: u32,          // T
    tiles: u32,         // stride between columns of matrices: T/16 or more
    x_tiles: u32,       // as tiles, of a packed x
    x_blocks: u32,      // floats from the factors of 256 columns of x to those of the next; 0 where a row has one factor
    added_tiles: u32,   // as x_tiles, of a packed added_x
    added_blocks: u32,  // as x_blocks, of added_x
    width4: u32,        // D / 4
    packed4: u32,       // columns to write, / 4: D rounded up to 64
    eps: f32,
    added_eps: f32,
    scale: f32,         // of dx, with ADDS
    parts: u32,         // of dy
    dy_tiles: u32,      // as x_tiles, of dy in f16
    dy_blocks: u32,     // as x_blocks, of dy
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> w: array<vec4<f32>>;              // [D]
@group(0) @binding(3) var<storage, read_write> packed: array<vec4<f16>>;   // [D/16, T/16, 16, 16]
@group(0) @binding(4) var<storage, read_write> factors: array<f32>;        // [T]
#if {HALVES}
@group(0) @binding(5) var<storage, read> dy: array<vec4<f16>>;             // [D/16, T/16, 16, 16]
@group(0) @binding(12) var<storage, read> dy_factors: array<f32>;          // [D/256, T]
#else
@group(0) @binding(5) var<storage, read> dy: array<vec4<f32>>;             // [parts, T, D]
#end
@group(0) @binding(6) var<storage, read_write> dx: array<vec4<f32>>;       // [T, D]
#if {ADDED_MATRICES}
@group(0) @binding(9) var<storage, read> added_x: array<vec4<f16>>;        // [D/16, T/16, 16, 16]
@group(0) @binding(10) var<storage, read> added_factors: array<f32>;       // [T], or [D/256, T]
#else
@group(0) @binding(9) var<storage, read> added_x: array<vec4<f32>>;        // [T, D]
#end
@group(0) @binding(11) var<storage, read> added_w: array<vec4<f32>>;       // [D]

var<workgroup> products: array<f32, ROWS * THREADS>;

fn added4(row: u32, c: u32) -> vec4<f32> {
#if {ADDED_MATRICES}
    return added_factors[c / 64u * params.added_blocks + row] * vec4<f32>(added_x[packed_at(params.added_tiles, row, c)]);
#else
    return added_x[row * params.width4 + c];
#end
}

#if {WARPS}
// Stores the sums of squares and of products over the lanes of a row in each subgroup.
fn reduce_products(square: f32, product: f32, lane: u32) {
    let own_square = sum_of_lanes(square);
    let own_product = sum_of_lanes(product);
    workgroupBarrier();
    if lane % LANES == 0u {
        squares[lane / LANES] = own_square;
        products[lane / LANES] = own_product;
    }
    workgroupBarrier();
}

// The sum of products over the threads of a row, whose first is `leader`.
fn row_product(leader: u32) -> f32 {
    var sum = products[leader / LANES];
    for (var i = 1u; i < {WARPS}u; i++) {
        sum += products[leader / LANES + i];
    }
    return sum;
}
#else
// Stores the sums of squares and of products over the threads of a row in the places of the row's first thread.
fn reduce_products(square: f32, product: f32, lane: u32) {
    workgroupBarrier();
    squares[lane] = square;
    products[lane] = product;
    for (var step = THREADS / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if lane % THREADS < step {
            squares[lane] += squares[lane + step];
            products[lane] += products[lane + step];
        }
    }
    workgroupBarrier();
}

fn row_product(leader: u32) -> f32 {
    return products[leader];
}
#end

// y = x·rstd·w
@compute @workgroup_size(ROWS * THREADS)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let start = (group.x + group.y * groups.x) * ROWS;
    if start >= padded(params.rows) {
        return;
    }
    let lane = place(thread);
    let row = start + lane / THREADS;
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
    let rstd = rstd_of(row_square(leader), params.width4, params.eps);
    let e = exponent(rstd * row_largest(leader));
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

// rstd·(g − x·rstd²·mean(g·x)), g = w·dy
@compute @workgroup_size(ROWS * THREADS)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
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
#for i in 0..{EACH}
    let c{i} = first + {i}u * THREADS;
    let read{i} = min(c{i}, params.width4 - 1u);
#if {HALVES}
    var dy{i} = dy_factors[read{i} / 64u * params.dy_blocks + token] * vec4<f32>(dy[packed_at(params.dy_tiles, token, read{i})]);
#else
    var dy{i} = vec4<f32>();
#end
#end
#if !{HALVES}
    for (var s = 0u; s < params.parts; s++) {
#for i in 0..{EACH}
        dy{i} += dy[s * params.rows * params.width4 + at + read{i}];
#end
    }
#end
#if {ADDS}
    var added_square = 0.0;
    var added_product = 0.0;
#for i in 0..{EACH}
    let added_x{i} = select(vec4<f32>(), added4(token, read{i}), c{i} < end);
    let added_g{i} = select(vec4<f32>(), added_w[read{i}] * dy{i}, c{i} < end);
    added_square += dot(added_x{i}, added_x{i});
    added_product += dot(added_g{i}, added_x{i});
#end
#if {WARPS}
    // Registers have room for what is needed behind the sums.
#for i in 0..{EACH}
    let old{i} = dx[at + read{i}];
#end
#end
    reduce_products(added_square, added_product, lane);
    let added_rstd = rstd_of(row_square(leader), params.width4, params.added_eps);
    let added_along = added_rstd * added_rstd * (row_product(leader) / f32(params.width4 * 4u));
#for i in 0..{EACH}
#if !{WARPS}
    let old{i} = dx[at + read{i}];
#end
    dy{i} = params.scale * (old{i} + added_rstd * (added_g{i} - added_x{i} * added_along));
#end
#end
#if {SUMS}
#for i in 0..{EACH}
    dy{i} += dx[at + read{i}];
#end
#end
#if {STORES}
#for i in 0..{EACH}
    if c{i} < end {
        dx[at + c{i}] = dy{i};
    }
#end
#end
#if {PACKS}
#if {IDENTITY}
    let rstd = 1.0;
    let along = 0.0;
#for i in 0..{EACH}
    let g{i} = select(vec4<f32>(), dy{i}, c{i} < end);
    let x{i} = vec4<f32>();
#end
#else
    var square = 0.0;
    var product = 0.0;
#for i in 0..{EACH}
    let x{i} = select(vec4<f32>(), source4(token, read{i}), c{i} < end);
    let g{i} = select(vec4<f32>(), w[read{i}] * dy{i}, c{i} < end);
    square += dot(x{i}, x{i});
    product += dot(g{i}, x{i});
#end
    reduce_products(square, product, lane);
    let rstd = rstd_of(row_square(leader), params.width4, params.eps);
    let along = rstd * rstd * (row_product(leader) / f32(params.width4 * 4u));
#end
    var most = 0.0;
#for i in 0..{EACH}
    let d{i} = rstd * (g{i} - x{i} * along);
    most = max(most, most4(d{i}));
#end
    reduce_row(0.0, most, lane);
    let e = exponent(row_largest(leader));
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
