// Copies values within a buffer, such as the keys and values of one sequence to another.

// Twin of `Params` in src/ops/cached_heads/copy.rs.
struct Params {
    first: u32,     // first vec4
    onto: u32,      // first vec4 of the copy
    count: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> values: array<vec4<f32>>;

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + group.y * groups.x) * 64u + lane;
    if i < params.count {
        values[params.onto + i] = values[params.first + i];
    }
}
