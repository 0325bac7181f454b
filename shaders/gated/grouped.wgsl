// The gated unit of rows that are grouped by expert, with gate and up side by side; one workgroup per row. Backward takes the gradient of the
// expert's unweighted output. The weight of the choice and the scale of its expert enter here, and the gradient of the weight is stored,
// scale·⟨dy, y⟩. Padding rows have neither.
#import common/activation
#import common/reduce

// Twin of `Params` in src/ops/gated/grouped.rs.
struct Params {
    width: u32,         // F
    y_stride: u32,      // floats per row of y or dy
    gate_stride: u32,   // of gate and up, and of their gradients
    tile: u32,          // rows of a tile
    rows: u32,          // of all tiles
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> gate_up: array<f32>;              // [rows, 2·F]
@group(0) @binding(2) var<storage, read_write> y: array<f32>;              // [rows, F]
@group(0) @binding(3) var<storage, read> dy: array<f32>;                   // [rows, F]
@group(0) @binding(4) var<storage, read_write> dgate_up: array<f32>;       // [rows, 2·F]
@group(0) @binding(5) var<storage, read> tiles: array<u32>;                // expert of each tile
@group(0) @binding(6) var<storage, read> choices: array<u32>;              // choice of each row
@group(0) @binding(7) var<storage, read> weights: array<f32>;              // of each choice [T·used]
@group(0) @binding(8) var<storage, read> scales: array<f32>;               // of each expert [E]
@group(0) @binding(9) var<storage, read_write> dweights: array<f32>;       // [T·used]

const NONE: u32 = 0xffffffffu;

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x + group.y * groups.x;
    if row >= params.rows || tiles[row / params.tile] == NONE {
        return;
    }
    for (var c = lane; c < params.width; c += 64u) {
        let at = row * params.gate_stride + c;
        y[row * params.y_stride + c] = activation(gate_up[at]) * value(gate_up[at + params.width]);
    }
}

@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x + group.y * groups.x;
    if row >= params.rows {
        return;
    }
    let expert = tiles[row / params.tile];
    if expert == NONE {
        return;
    }
    let choice = choices[row];
    var factor = 0.0;
    if choice != NONE {
        factor = weights[choice] * scales[expert];
    }
    var products = 0.0;
    for (var c = lane; c < params.width; c += 64u) {
        let at = row * params.gate_stride + c;
        let d = dy[row * params.y_stride + c];
        let gate = gate_up[at];
        let up = value(gate_up[at + params.width]);
        products += d * activation(gate) * up;
        dgate_up[at] = factor * d * up * derivative(gate);
        dgate_up[at + params.width] = factor * d * activation(gate) * passes(gate_up[at + params.width]);
    }
    let sum = reduce_sum(products, lane);
    if lane == 0u && choice != NONE {
        dweights[choice] = scales[expert] * sum;
    }
}
