// y = activation(gate)·up, elementwise.
#import common/activation

// Twin of `Params` in src/ops/gated/plain.rs.
struct Params {
    count: u32,
    write_dup: u32,     // 0 where up needs no gradient
    parts: u32,         // of dy
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> gate: array<f32>;
@group(0) @binding(2) var<storage, read> up: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@group(0) @binding(4) var<storage, read> dy: array<f32>;             // [parts, count]
@group(0) @binding(5) var<storage, read_write> dgate: array<f32>;
@group(0) @binding(6) var<storage, read_write> dup: array<f32>;

fn index(group: vec3<u32>, groups: vec3<u32>, lane: u32) -> u32 {
    return (group.x + group.y * groups.x) * 64u + lane;
}

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index(group, groups, lane);
    if i < params.count {
        y[i] = activation(gate[i]) * value(up[i]);
    }
}

// dgate = dy·up·activation′(gate), dup = dy·activation(gate)
@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = index(group, groups, lane);
    if i < params.count {
        var sum = dy[i];
        for (var s = 1u; s < params.parts; s++) {
            sum += dy[s * params.count + i];
        }
        dgate[i] = sum * value(up[i]) * derivative(gate[i]);
        if params.write_dup == 1u {
            dup[i] = sum * activation(gate[i]) * passes(up[i]);
        }
    }
}
