// RMSNorm and rotary embedding of the heads of queries, keys or values, packed as operands of shaders/attention/coop16.wgsl: f16 matrices as
// in shaders/pack/plain.wgsl. All rows are scaled by one power of two, because a norm bounds its results.
// A workgroup takes 16 tokens of one head, 16 threads per token.
enable f16;
#import common/heads
#import common/packed
#import common/rstd

// Twin of `Params` in src/ops/heads/coop16.rs.
struct Params {
    rows: u32,          // T
    tiles: u32,         // stride between columns of matrices: T/16 or more
    heads: u32,
    half4: u32,         // K/2 / 4
    weighted: u32,      // 0: the norm's weights are 1
    pairs4: u32,        // rotary pairs / 4: K/2 / 4 or fewer, 0 without a rotary embedding
    eps: f32,
    scale: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;              // [T, heads, K]
@group(0) @binding(2) var<storage, read> w: array<vec4<f32>>;              // [K]
@group(0) @binding(3) var<storage, read> positions: array<u32>;            // [T]
@group(0) @binding(4) var<storage, read> table: array<vec4<f32>>;          // cos, sin of two pairs [positions, pairs/2]
@group(0) @binding(5) var<storage, read_write> packed: array<vec4<f16>>;   // [heads·K/16, T/16, 16, 16]

const THREADS: u32 = 16u;   // per token

var<workgroup> sums: array<f32, 256>;

// The place of vec4 `c` of a head; K is a multiple of 16.
fn place(row: u32, head: u32, c: u32) -> u32 {
    return packed_at(params.tiles, row, head * params.half4 * 2u + c);
}

@compute @workgroup_size(256)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.y * 16u + lane / THREADS;
    let token = min(row, params.rows - 1u);
    let at = (token * params.heads + group.x) * params.half4 * 2u;
#if {IDENTITY}
    let rstd = params.scale;
#else
    var squares = 0.0;
    for (var c = lane % THREADS; c < 2u * params.half4; c += THREADS) {
        squares += dot(x[at + c], x[at + c]);
    }
    sums[lane] = squares;
    workgroupBarrier();
    var sum = 0.0;
    for (var i = 0u; i < THREADS; i++) {
        sum += sums[lane / THREADS * THREADS + i];
    }
    let rstd = params.scale * rstd_of(sum, 2u * params.half4, params.eps);
#end
    for (var c = lane % THREADS; c < params.half4; c += THREADS) {
        let places = couple(c);
        let a = x[at + places.x] * rstd * w4(places.x);
        let b = x[at + places.y] * rstd * w4(places.y);
        let turn = rotation(token, c);
        var one = a * turn.cosines - b * turn.sines;
        var two = b * turn.cosines + a * turn.sines;
        // Zeros fill the last matrices.
        if row >= params.rows {
            one = vec4<f32>();
            two = vec4<f32>();
        }
        packed[place(row, group.x, places.x)] = vec4<f16>(one);
        packed[place(row, group.x, places.y)] = vec4<f16>(two);
    }
}
