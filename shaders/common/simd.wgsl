// Kernels for a software renderer, where a subgroup is one SIMD register of {LANES} lanes. A lane's loads, barriers and indexing are
// expensive there, while a broadcast from a lane is a single instruction. So each subgroup is a workgroup of its own and keeps a tile of the
// result in registers: its rows lie on the lanes, and the other operand's rows are loaded one per lane and broadcast.

// The values that lanes 4·q to 4·q + 3 have loaded: four values of a row each (rows), or one (values).
#for q in 0..{QUADS}
fn rows_{q}(w: vec4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(
        subgroupBroadcast(w, {q}u * 4u),
        subgroupBroadcast(w, {q}u * 4u + 1u),
        subgroupBroadcast(w, {q}u * 4u + 2u),
        subgroupBroadcast(w, {q}u * 4u + 3u),
    );
}

fn values_{q}(w: f32) -> vec4<f32> {
    return vec4<f32>(
        subgroupBroadcast(w, {q}u * 4u),
        subgroupBroadcast(w, {q}u * 4u + 1u),
        subgroupBroadcast(w, {q}u * 4u + 2u),
        subgroupBroadcast(w, {q}u * 4u + 3u),
    );
}

#end
