// From the gradient of normed and rotated heads (shaders/heads/coop16.wgsl) to that of the norm's input, packed as operands of products on
// cooperative matrices (shaders/pack/plain.wgsl). Threads share the work as common/head_rows says, and keep their values until the largest one
// of the token's row is known. With VALUES, the first heads are keys, and the workgroups with z = 1 do the same for as many heads of values.
enable f16;
#import common/head_rows

// Twin of `Params` in src/ops/heads/coop16_backward.rs.
struct Params {
    rows: u32,          // T
    tiles: u32,         // stride between columns of matrices: T/16 or more
    x_tiles: u32,       // of packed x
    x_blocks: u32,      // floats from the factors of 256 columns of x to those of the next; 0 where a row has one factor
    heads: u32,
    half4: u32,         // K/2 / 4
    weighted_0: u32,    // 0: the norm's weights are 1
    pairs4_0: u32,      // rotary pairs / 4: K/2 / 4 or fewer, 0 without a rotary embedding
    eps_0: f32,
    weighted_1: u32,
    pairs4_1: u32,
    eps_1: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read> positions: array<u32>;            // [T]
@group(0) @binding(4) var<storage, read> table: array<vec4<f32>>;          // cos, sin of two pairs [positions, pairs/2]

var<workgroup> sums: array<vec2<f32>, {THREADS}>;

#for (n, there, identity, at_w, at_packed, at_dy, at_factors) in (0, 1, {IDENTITY}, 2, 5, 6, 7) (1, {VALUES}, {VALUES_IDENTITY}, 12, 15, 16, 17)
#if {there}
@group(0) @binding({at_w}) var<storage, read> w_{n}: array<vec4<f32>>;                 // [K]
@group(0) @binding({at_packed}) var<storage, read_write> packed_{n}: array<vec4<f16>>; // [heads·K/16, T/16, 16, 16]
@group(0) @binding({at_dy}) var<storage, read> dy_{n}: array<vec4<f32>>;               // [T, heads, K]
@group(0) @binding({at_factors}) var<storage, read_write> factors_{n}: array<f32>;     // [T]

fn backward_{n}(first: u32, lane: u32) {
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
    let head{i} = own / EACH_HEAD + {i}u * {HEADS}u;
    let at{i} = min(head{i}, params.heads - 1u) * half4 * 2u;
    let dy_at{i} = token * params.heads * half4 * 2u + at{i};
#if !{identity}
    var both{i} = vec2<f32>();     // x·x and g·x
#end
#for j in 0..{PAIRS}
    let c{i}{j} = own % EACH_HEAD + {j}u * EACH_HEAD;
    let read{i}{j} = min(c{i}{j}, half4 - 1u);
    let places{i}{j} = couple(read{i}{j}, params.pairs4_{n});
    let there{i}{j} = row < params.rows && head{i} < params.heads && c{i}{j} < half4;
#if !{identity}
    let xa{i}{j} = select(vec4<f32>(), source4_{n}(token, at{i} + places{i}{j}.x), there{i}{j});
    let xb{i}{j} = select(vec4<f32>(), source4_{n}(token, at{i} + places{i}{j}.y), there{i}{j});
#end
    let ya{i}{j} = dy_{n}[dy_at{i} + places{i}{j}.x];
    let yb{i}{j} = dy_{n}[dy_at{i} + places{i}{j}.y];
    let turn{i}{j} = rotation(token, read{i}{j}, params.pairs4_{n});
    let ga{i}{j} = select(vec4<f32>(), w4_{n}(places{i}{j}.x) * (ya{i}{j} * turn{i}{j}.cosines + yb{i}{j} * turn{i}{j}.sines), there{i}{j});
    let gb{i}{j} = select(vec4<f32>(), w4_{n}(places{i}{j}.y) * (yb{i}{j} * turn{i}{j}.cosines - ya{i}{j} * turn{i}{j}.sines), there{i}{j});
#if !{identity}
    both{i} += vec2<f32>(dot(xa{i}{j}, xa{i}{j}) + dot(xb{i}{j}, xb{i}{j}), dot(ga{i}{j}, xa{i}{j}) + dot(gb{i}{j}, xb{i}{j}));
#end
#end
#if !{identity}
#if {LANES}
    let sum{i} = sums_of_head(both{i});
#else
    workgroupBarrier();
    sums[lane] = both{i};
    workgroupBarrier();
    var sum{i} = vec2<f32>();
    for (var s = 0u; s < EACH_HEAD; s++) {
        sum{i} += sums[leader + s];
    }
#end
    let mean{i} = sum{i} / f32(half4 * 8u) + vec2<f32>(params.eps_{n}, 0.0);
    // As in common/rstd: a sum that overflows becomes infinite, not zero.
    let overflows{i} = (bitcast<u32>(mean{i}.x) & 0x7f800000u) == 0x7f800000u;
    let rstd{i} = select(1.0 / sqrt(mean{i}.x), mean{i}.x, overflows{i});
    let along{i} = rstd{i} * rstd{i} * mean{i}.y;
#end
#for j in 0..{PAIRS}
#if {identity}
    let a{i}{j} = ga{i}{j};
    let b{i}{j} = gb{i}{j};
#else
    let a{i}{j} = rstd{i} * (ga{i}{j} - xa{i}{j} * along{i});
    let b{i}{j} = rstd{i} * (gb{i}{j} - xb{i}{j} * along{i});
#end
    most = max(most, max(most4(a{i}{j}), most4(b{i}{j})));
#end
#end
    let e = exponent(row_largest(most, lane));
    if own == 0u && row < params.rows {
        factors_{n}[row] = undoing(e);
    }
    // The last matrices are full.
    if row >= (params.rows + 15u) / 16u * 16u {
        return;
    }
    let scale = scaling(e);
#for i in 0..{TURNS}
#for j in 0..{PAIRS}
    if head{i} < params.heads && c{i}{j} < half4 {
        packed_{n}[packed_at(params.tiles, row, head{i} * half4 * 2u + places{i}{j}.x)] = vec4<f16>(scale * a{i}{j});
        packed_{n}[packed_at(params.tiles, row, head{i} * half4 * 2u + places{i}{j}.y)] = vec4<f16>(scale * b{i}{j});
    }
#end
#end
    // Zeros fill the columns up to the next multiple of 64.
    let cols4 = params.heads * half4 * 2u;
    let packed4 = (cols4 + 15u) / 16u * 16u;
    for (var c = cols4 + own; c < packed4; c += ROW) {
        packed_{n}[packed_at(params.tiles, row, c)] = vec4<f16>();
    }
}

#end
#end
@compute @workgroup_size({THREADS})
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let lane = place(thread);
    let first = (group.x + group.y * groups.x) * ({THREADS}u / ROW);
#if {VALUES}
    if group.z == 1u {
        backward_1(first, lane);
        return;
    }
#end
    backward_0(first, lane);
}
