// RMSNorm and rotary embedding of the heads of queries, keys or values, packed as operands of shaders/attention/coop16.wgsl: f16 matrices as
// in shaders/pack/plain.wgsl. All rows are scaled by one power of two, because a norm bounds its results. Threads share the work as
// common/head_rows says. The norm may take all heads of a token together (OF_ROWS), or its weights may stand behind the rotary embedding
// (BEHIND): those of queries and keys, not of values. What comes in f32 may be rounded as packing does (ROUNDED), and is stored for backward then. With VALUES, the first
// heads are keys, and workgroups do the same for as many heads of values. PARTS workgroups share the heads of a token, if none needs all.
enable f16;
#import common/head_rows
#import common/rstd

// Twin of `Params` in src/ops/heads/coop16.rs.
struct Params {
    rows: u32,          // T
    tiles: u32,         // stride between columns of matrices: T/16 or more
    x_tiles: u32,       // of packed x
    x_blocks: u32,      // floats from the factors of 256 columns of x to those of the next; 0 where a row has one factor
    x_count: u32,       // factors of a row of x
    stored: u32,        // 1: store rounded x
    heads: u32,
    half4: u32,         // K/2 / 4
    weighted_0: u32,    // 0: the norm's weights are 1
    pairs4_0: u32,      // rotary pairs / 4: K/2 / 4 or fewer, 0 without a rotary embedding
    eps_0: f32,
    scale_0: f32,
    weighted_1: u32,
    pairs4_1: u32,
    eps_1: f32,
    scale_1: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read> positions: array<u32>;            // [T]
@group(0) @binding(4) var<storage, read> table: array<vec4<f32>>;          // cos, sin of two pairs [positions, pairs/2]

var<workgroup> sums: array<f32, {THREADS}>;

#if {OF_ROWS}
// The sum over the threads of a token: over the heads, then over the threads of one.
fn row_sum(value: f32, lane: u32) -> f32 {
    let own = lane % ROW;
    sums[lane] = value;
    workgroupBarrier();
    var of_heads = 0.0;
    for (var h = own % EACH_HEAD; h < ROW; h += EACH_HEAD) {
        of_heads += sums[lane - own + h];
    }
    workgroupBarrier();
    sums[lane] = of_heads;
    workgroupBarrier();
    var sum = 0.0;
    for (var s = 0u; s < EACH_HEAD; s++) {
        sum += sums[lane / EACH_HEAD * EACH_HEAD + s];
    }
    return sum;
}

#end
#for (n, there, identity, of_rows, behind, at_w, at_packed, at_factors, at_x) in (0, 1, {IDENTITY}, {OF_ROWS}, {BEHIND}, 2, 5, 8, 9) (1, {VALUES}, {VALUES_IDENTITY}, 0, 0, 12, 15, 18, 19)
#if {there}
@group(0) @binding({at_w}) var<storage, read> w_{n}: array<vec4<f32>>;                 // [K]
@group(0) @binding({at_packed}) var<storage, read_write> packed_{n}: array<vec4<f16>>; // [heads·K/16, T/16, 16, 16]
#if {ROUNDED}
@group(0) @binding({at_factors}) var<storage, read_write> x_factors_{n}: array<f32>;   // [T], or [heads·K/256, T]
@group(0) @binding({at_x}) var<storage, read_write> x_packed_{n}: array<vec4<f16>>;    // [heads·K/16, T/16, 16, 16]
#end

fn forward_{n}(first: u32, part: u32, lane: u32) {
    if first >= (params.rows + 15u) / 16u * 16u {
        return;
    }
    let row = first + lane / ROW;
    let token = min(row, params.rows - 1u);
    let own = lane % ROW;
    let leader = lane / EACH_HEAD * EACH_HEAD;
    let half4 = params.half4;
    var most = 0.0;
#for i in 0..{TURNS}
    let head{i} = own / EACH_HEAD + (part * {TURNS}u + {i}u) * {HEADS}u;
    let at{i} = min(head{i}, params.heads - 1u) * half4 * 2u;
#for j in 0..{PAIRS}
    let c{i}{j} = own % EACH_HEAD + {j}u * EACH_HEAD;
    let read{i}{j} = min(c{i}{j}, half4 - 1u);
    let places{i}{j} = couple(read{i}{j}, params.pairs4_{n}) + at{i};
    let there{i}{j} = row < params.rows && head{i} < params.heads && c{i}{j} < half4;
    var a{i}{j} = select(vec4<f32>(), source4_{n}(token, places{i}{j}.x), there{i}{j});
    var b{i}{j} = select(vec4<f32>(), source4_{n}(token, places{i}{j}.y), there{i}{j});
    most = max(most, max(most4(a{i}{j}), most4(b{i}{j})));
#end
#end
#if {ROUNDED}
    let e = exponent(row_largest(most, lane));
    let is_stored = params.stored == 1u;
    let zero = params.rows >> 31u;
    for (var b = own; is_stored && row < params.rows && b < params.x_count; b += ROW) {
        x_factors_{n}[b * params.x_blocks + row] = undoing(e);
    }
#for i in 0..{TURNS}
#for j in 0..{PAIRS}
    let half_a{i}{j} = rounded4(scaling(e) * a{i}{j}, zero);
    let half_b{i}{j} = rounded4(scaling(e) * b{i}{j}, zero);
    if is_stored && there{i}{j} {
        x_packed_{n}[packed_at(params.x_tiles, row, places{i}{j}.x)] = vec4<f16>(half_a{i}{j});
        x_packed_{n}[packed_at(params.x_tiles, row, places{i}{j}.y)] = vec4<f16>(half_b{i}{j});
    }
    a{i}{j} = undoing(e) * half_a{i}{j};
    b{i}{j} = undoing(e) * half_b{i}{j};
#end
#end
#end
    // Zeros fill the last matrices.
    let is_row = row < (params.rows + 15u) / 16u * 16u;
#if {of_rows}
    var squares = 0.0;
#for i in 0..{TURNS}
#for j in 0..{PAIRS}
    squares += dot(a{i}{j}, a{i}{j}) + dot(b{i}{j}, b{i}{j});
#end
#end
    let rstd = params.scale_{n} * rstd_of(row_sum(squares, lane), params.heads * half4 * 2u, params.eps_{n});
#end
#for i in 0..{TURNS}
#if {identity}
    let rstd{i} = params.scale_{n};
#else
#if {of_rows}
    let rstd{i} = rstd;
#else
    var squares{i} = 0.0;
#for j in 0..{PAIRS}
    squares{i} += dot(a{i}{j}, a{i}{j}) + dot(b{i}{j}, b{i}{j});
#end
#if {LANES}
    let sum{i} = sum_of_head(squares{i});
#else
    workgroupBarrier();
    sums[lane] = squares{i};
    workgroupBarrier();
    var sum{i} = 0.0;
    for (var s = 0u; s < EACH_HEAD; s++) {
        sum{i} += sums[leader + s];
    }
#end
    let rstd{i} = params.scale_{n} * rstd_of(sum{i}, 2u * half4, params.eps_{n});
#end
#end
#for j in 0..{PAIRS}
#if {of_rows}
    let one{i}{j} = a{i}{j} * rstd{i} * w4_{n}(places{i}{j}.x);
    let two{i}{j} = b{i}{j} * rstd{i} * w4_{n}(places{i}{j}.y);
#else
#if {behind}
    let one{i}{j} = a{i}{j} * rstd{i};
    let two{i}{j} = b{i}{j} * rstd{i};
#else
    let one{i}{j} = a{i}{j} * rstd{i} * w4_{n}(places{i}{j}.x - at{i});
    let two{i}{j} = b{i}{j} * rstd{i} * w4_{n}(places{i}{j}.y - at{i});
#end
#end
    let turn{i}{j} = rotation(token, read{i}{j}, params.pairs4_{n});
    if is_row && head{i} < params.heads && c{i}{j} < half4 {
#if {behind}
        let w_one = w4_{n}(places{i}{j}.x - at{i});
        let w_two = w4_{n}(places{i}{j}.y - at{i});
        packed_{n}[packed_at(params.tiles, row, places{i}{j}.x)] = vec4<f16>(w_one * (one{i}{j} * turn{i}{j}.cosines - two{i}{j} * turn{i}{j}.sines));
        packed_{n}[packed_at(params.tiles, row, places{i}{j}.y)] = vec4<f16>(w_two * (two{i}{j} * turn{i}{j}.cosines + one{i}{j} * turn{i}{j}.sines));
#else
        packed_{n}[packed_at(params.tiles, row, places{i}{j}.x)] = vec4<f16>(one{i}{j} * turn{i}{j}.cosines - two{i}{j} * turn{i}{j}.sines);
        packed_{n}[packed_at(params.tiles, row, places{i}{j}.y)] = vec4<f16>(two{i}{j} * turn{i}{j}.cosines + one{i}{j} * turn{i}{j}.sines);
#end
    }
#end
#end
}

#end
#end
@compute @workgroup_size({THREADS})
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let lane = place(thread);
    let first = (group.x + group.y * groups.x) * ({THREADS}u / ROW);
#if {VALUES}
    if group.z / {PARTS}u == 1u {
        forward_1(first, group.z % {PARTS}u, lane);
        return;
    }
#end
    forward_0(first, group.z % {PARTS}u, lane);
}
