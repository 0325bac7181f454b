// y = scale·y, elementwise.

// Twin of `Params` in src/ops/scale/mod.rs.
struct Params {
    count4: u32,
    scale: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;

@compute @workgroup_size(64)
fn in_place(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + group.y * groups.x) * 64u + lane;
    if i < params.count4 {
        y[i] = params.scale * y[i];
    }
}
