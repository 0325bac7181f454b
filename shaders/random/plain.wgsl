// One plane of a matrix of random quantized blocks (src/base/planes.rs). A word is a function of the key and its number; every `period`
// words, where the format keeps a block's factors, it is `factors`.
#import common/pcg

// Twin of `Params` in src/ops/random/mod.rs.
struct Params {
    first: u32,         // word of the buffer where the plane begins
    count: u32,         // words
    key: u32,
    period: u32,        // 0: no factors in this plane
    factors: u32,       // two f16
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> weight: array<u32>;

@compute @workgroup_size(256)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let threads = groups.x * 256u;
    for (var i = group.x * 256u + lane; i < params.count; i += threads) {
        var word = pcg(pcg(params.key) + i);
        if params.period != 0u && i % max(params.period, 1u) == 0u {
            word = params.factors;
        }
        weight[params.first + i] = word;
    }
}
