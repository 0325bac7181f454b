// The device's peak rates: a plain copy, and multiply-adds without memory traffic.

// Twin of `Params` in src/ops/peak/mod.rs.
struct Params {
    count: u32,         // vec4s
    rounds: u32,        // rounds of 8 multiply-adds of vec4s per thread
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> y: array<vec4<f32>>;

@compute @workgroup_size(256)
fn copy(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + group.y * groups.x) * 256u + lane;
    if i < params.count {
        y[i] = x[i];
    }
}

@compute @workgroup_size(256)
fn multiply_add(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let factor = x[lane];
#for i in 0..8
    var sum{i} = factor + {i}.0;
#end
    for (var round = 0u; round < params.rounds; round++) {
#for i in 0..8
        sum{i} = fma(sum{i}, factor, factor);
#end
    }
    y[group.x * 256u + lane] = sum0 + sum1 + sum2 + sum3 + sum4 + sum5 + sum6 + sum7;
}
