// shaders/gated/grouped.wgsl, packed as operands of products on cooperative matrices (shaders/pack/plain.wgsl). Each row is computed twice,
// for its largest value and for its packed values, which costs less than storing it in between.
enable f16;
#import common/activation
#import common/packed

// Twin of `Params` in src/ops/gated/grouped_coop16.rs.
struct Params {
    row_tiles: u32,     // matrices over all rows
    tile: u32,          // rows of a tile
    width4: u32,        // F / 4
    y_stride4: u32,     // vec4s per row of dy
    gate_stride4: u32,  // of gate and up
    packed4: u32,       // columns to write, / 4: F, or 2·F backward, rounded up to 64
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> gate_up: array<vec4<f32>>;        // [rows, 2·F]
@group(0) @binding(2) var<storage, read> dy: array<vec4<f32>>;             // [rows, F]
@group(0) @binding(3) var<storage, read_write> packed: array<vec4<f16>>;   // y [F/16, rows/16, 16, 16] or dgate and dup [2·F/16, …]
@group(0) @binding(4) var<storage, read_write> factors: array<f32>;        // [rows]
@group(0) @binding(5) var<storage, read> tiles: array<u32>;                // expert of each tile
@group(0) @binding(6) var<storage, read> choices: array<u32>;              // choice of each row
@group(0) @binding(7) var<storage, read> weights: array<f32>;              // of each choice [T·used]
@group(0) @binding(8) var<storage, read> scales: array<f32>;               // of each expert [E]
@group(0) @binding(9) var<storage, read_write> dweights: array<f32>;       // [T·used]

const ROWS: u32 = 4u;       // per workgroup
const THREADS: u32 = 64u;   // per row
const NONE: u32 = 0xffffffffu;

var<workgroup> largest: array<f32, 256>;
var<workgroup> sums: array<f32, 256>;

// Returns the largest value over the threads of a row, and leaves the sum of `product` in `sums`.
fn reduce_row(most: f32, product: f32, lane: u32) -> f32 {
    largest[lane] = most;
    sums[lane] = product;
    for (var step = THREADS / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if lane % THREADS < step {
            largest[lane] = max(largest[lane], largest[lane + step]);
            sums[lane] += sums[lane + step];
        }
    }
    workgroupBarrier();
    return largest[lane / THREADS * THREADS];
}

@compute @workgroup_size(256)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = (group.x + group.y * groups.x) * ROWS;
    if first >= params.row_tiles * 16u {
        return;
    }
    let row = first + lane / THREADS;
    if tiles[first / params.tile] == NONE {
        return;
    }
    let at = row * params.gate_stride4;
    var most = 0.0;
    for (var c = lane % THREADS; c < params.width4; c += THREADS) {
        most = max(most, most4(activation4(gate_up[at + c]) * value4(gate_up[at + params.width4 + c])));
    }
    let e = exponent(reduce_row(most, 0.0, lane));
    if lane % THREADS == 0u {
        factors[row] = undoing(e);
    }
    let scale = scaling(e);
    for (var c = lane % THREADS; c < params.packed4; c += THREADS) {
        var y = vec4<f32>();
        if c < params.width4 {
            y = scale * (activation4(gate_up[at + c]) * value4(gate_up[at + params.width4 + c]));
        }
        packed[packed_at(params.row_tiles, row, c)] = vec4<f16>(y);
    }
}

@compute @workgroup_size(256)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = (group.x + group.y * groups.x) * ROWS;
    if first >= params.row_tiles * 16u {
        return;
    }
    let row = first + lane / THREADS;
    let expert = tiles[first / params.tile];
    if expert == NONE {
        return;
    }
    let choice = choices[row];
    var factor = 0.0;
    if choice != NONE {
        factor = weights[choice] * scales[expert];
    }
    let at = row * params.gate_stride4;
    var most = 0.0;
    var product = 0.0;
    for (var c = lane % THREADS; c < params.width4; c += THREADS) {
        let d = dy[row * params.y_stride4 + c];
        let up = value4(gate_up[at + params.width4 + c]);
        let passed = d * activation4(gate_up[at + c]);
        product += dot(passed, up);
        most = max(most, max(most4(factor * d * up * derivative4(gate_up[at + c])), most4(factor * passed)));
    }
    let e = exponent(reduce_row(most, product, lane));
    if lane % THREADS == 0u {
        factors[row] = undoing(e);
        if choice != NONE {
            dweights[choice] = scales[expert] * sums[lane];
        }
    }
    let scale = factor * scaling(e);
    for (var c = lane % THREADS; c < params.packed4; c += THREADS) {
        var gradient = vec4<f32>();
        if c < params.width4 {
            let d = dy[row * params.y_stride4 + c];
            gradient = scale * d * value4(gate_up[at + params.width4 + c]) * derivative4(gate_up[at + c]);
        } else if c < 2u * params.width4 {
            gradient = scale * dy[row * params.y_stride4 + c - params.width4] * activation4(gate_up[at + c - params.width4]) * passes4(gate_up[at + c]);
        }
        packed[packed_at(params.row_tiles, row, c)] = vec4<f16>(gradient);
    }
}
