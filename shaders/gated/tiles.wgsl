// The gated unit of shaders/gated/plain.wgsl from tiles to tiles (shaders/pack/plain.wgsl). Gate, up and dy have a factor for every 256 columns
// of a row, or one for all. A row's results have one, from a bound of their largest value that these factors give: so no thread waits for
// others, and each takes 8 neighbouring values. Backward writes the gradients in the place of gate and up.
#import common/gated_bound
#import common/packed

// Twin of `Params` in src/ops/gated/tiles.rs.
struct Params {
    rows: u32,      // T
    cols4: u32,     // F / 4
    columns: u32,   // columns of matrices to write: F / 16, rounded up to a multiple of 4
    tiles: u32,     // stride between columns of matrices of gate and up: T/16 or more
    y_tiles: u32,   // likewise, of y or dy
    blocks: u32,    // factors of a row of gate, up or dy
    stride: u32,    // floats from the factors of 256 columns to those of the next; 0 where a row has one factor
    dy_stride: u32,
    own: u32,       // the first of the factors of both gradients, behind those of gate
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> gate: array<vec4<u32>>;         // and dgate [F/16, T/16, 16, 16], f16
@group(0) @binding(2) var<storage, read_write> up: array<vec4<u32>>;           // and dup [F/16, T/16, 16, 16], f16
@group(0) @binding(3) var<storage, read_write> gate_factors: array<f32>;       // [blocks, T], and of the gradients [T]
@group(0) @binding(4) var<storage, read_write> up_factors: array<f32>;         // [blocks, T]
@group(0) @binding(5) var<storage, read_write> y: array<vec4<u32>>;            // y, or dy [F/16, T/16, 16, 16], f16
@group(0) @binding(6) var<storage, read_write> y_factors: array<f32>;          // [T], or of dy [blocks, T]

var<workgroup> bounds: array<i32, 256>;

// 32 rows take a workgroup, and a row eight threads.
struct Row {
    index: u32,
    first: u32,     // block of this thread
}

fn row_of(group: vec3<u32>, groups: vec3<u32>, lane: u32) -> Row {
    return Row((group.x + group.y * groups.x) * 32u + lane % 32u, lane / 32u);
}

// The largest bound over the threads of a row.
fn largest(own: i32, lane: u32) -> i32 {
    bounds[lane] = own;
    for (var step = 128u; step >= 32u; step /= 2u) {
        workgroupBarrier();
        if lane < step {
            bounds[lane] = max(bounds[lane], bounds[lane + step]);
        }
    }
    return bounds[lane];
}

@compute @workgroup_size(256)
fn forward_factors(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = row_of(group, groups, lane);
    let token = min(row.index, params.rows - 1u);
    var most = -300;
    for (var b = row.first; b < params.blocks; b += 8u) {
        let at = b * params.stride + token;
        most = max(most, power_of_gate(gate_factors[at]) + power_of_up(up_factors[at]));
    }
    most = largest(most, lane);
    if lane < 32u && row.index < params.rows {
        y_factors[row.index] = factor_of(most, ROOM);
    }
}

// Activations' derivatives are below 2. One factor is for both gradients, so that a product may sum over both.
@compute @workgroup_size(256)
fn backward_factors(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = row_of(group, groups, lane);
    let token = min(row.index, params.rows - 1u);
    var most = -300;
    for (var b = row.first; b < params.blocks; b += 8u) {
        let at = b * params.stride + token;
        let dy = power(y_factors[b * params.dy_stride + token]);
        most = max(most, dy + max(power_of_up(up_factors[at]) + 1, power_of_gate(gate_factors[at])));
    }
    most = largest(most, lane);
    if lane < 32u && row.index < params.rows {
        gate_factors[params.own + row.index] = factor_of(most, GRADIENT_ROOM);
    }
}

// 8 values of a row: half a row of a matrix.
struct Part {
    row: u32,
    c: u32,         // their first vec4 in the row
    column: u32,    // of matrices
    at: u32,        // their place among gate and up
    y_at: u32,      // and in y or dy
}

fn part_of(group: vec3<u32>, groups: vec3<u32>, lane: u32) -> Part {
    let index = (group.x + group.y * groups.x) * 256u + lane;
    let count = padded(params.rows) / 16u;
    let matrix = index / 32u;
    let column = matrix / count;
    let row = matrix % count * 16u + index % 32u / 2u;
    let rest = (row / 16u) * 32u + index % 32u;
    return Part(row, column * 4u + index % 2u * 2u, column, column * params.tiles * 32u + rest, column * params.y_tiles * 32u + rest);
}

fn half4(x: vec4<u32>, second: bool) -> vec4<f32> {
    let pair = select(x.xy, x.zw, second);
    return vec4<f32>(unpack2x16float(pair.x), unpack2x16float(pair.y));
}

fn packed8(a: vec4<f32>, b: vec4<f32>) -> vec4<u32> {
    return vec4<u32>(pack2x16float(a.xy), pack2x16float(a.zw), pack2x16float(b.xy), pack2x16float(b.zw));
}

// Values behind the rows or the columns are zeros.
fn existing(x: vec4<f32>, part: Part, second: u32) -> vec4<f32> {
    return select(vec4<f32>(), x, part.row < params.rows && part.c + second < params.cols4);
}

// Gate and up of both vec4s.
struct Inputs {
    g0: vec4<f32>,
    g1: vec4<f32>,
    u0: vec4<f32>,
    u1: vec4<f32>,
}

fn inputs_of(part: Part, token: u32) -> Inputs {
    let block = part.column / 16u * params.stride + token;
    let factors = vec2<f32>(gate_factors[block], up_factors[block]);
    let g = gate[part.at];
    let u = up[part.at];
    return Inputs(
        factors.x * half4(g, false), factors.x * half4(g, true), factors.y * half4(u, false), factors.y * half4(u, true));
}

@compute @workgroup_size(256)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let part = part_of(group, groups, lane);
    if part.column >= params.columns {
        return;
    }
    let token = min(part.row, params.rows - 1u);
    let x = inputs_of(part, token);
    let scale = inverse(y_factors[token]);
#for i in 0..2
    let y{i} = existing(scale * (activation4(x.g{i}) * value4(x.u{i})), part, {i}u);
#end
    y[part.y_at] = packed8(y0, y1);
}

// dgate = dy·up·activation′(gate), dup = dy·activation(gate)
@compute @workgroup_size(256)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let part = part_of(group, groups, lane);
    if part.column >= params.columns {
        return;
    }
    let token = min(part.row, params.rows - 1u);
    let x = inputs_of(part, token);
    let dy_factor = y_factors[part.column / 16u * params.dy_stride + token];
    let scale = inverse(gate_factors[params.own + token]);
    let d = y[part.y_at];
#for (i, second) in (0, false) (1, true)
    let d{i} = dy_factor * half4(d, {second});
    let dgate{i} = existing(scale * (d{i} * value4(x.u{i}) * derivative4(x.g{i})), part, {i}u);
    let dup{i} = existing(scale * (d{i} * activation4(x.g{i}) * passes4(x.u{i})), part, {i}u);
#end
    gate[part.at] = packed8(dgate0, dgate1);
    up[part.at] = packed8(dup0, dup1);
}
