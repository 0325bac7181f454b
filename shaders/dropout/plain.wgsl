// Inverted dropout of the adapter's input: y = mask·x/(1 − p); backward adds mask·dy/(1 − p) to dx.
// The mask depends only on key and element, so that backward and recomputation use the same mask.
#import common/pcg

// Twin of `Params` in src/ops/dropout/mod.rs.
struct Params {
    count: u32,
    first: u32,         // element of the mask for x[0]
    key: u32,
    threshold: u32,     // p·2³²
    scale: f32,         // 1/(1 − p)
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

fn mask(i: u32) -> f32 {
    return select(params.scale, 0.0, pcg(pcg(params.key) + params.first + i) < params.threshold);
}

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + group.y * groups.x) * 64u + lane;
    if i < params.count {
        y[i] = mask(i) * x[i];
    }
}

@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + group.y * groups.x) * 64u + lane;
    if i < params.count {
        y[i] += mask(i) * x[i];
    }
}
