// Multiplications of cooperative matrices that read nothing: eight 16×16 results a subgroup, f16 operands, f32 sums.
enable f16;
enable wgpu_cooperative_matrix;

// Twin of `Params` in src/ops/coop_ceiling.rs.
struct Params {
    rounds: u32,        // of eight products of matrices
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f16>>;              // six matrices [6, 16, 16]
@group(0) @binding(2) var<storage, read_write> y: array<vec4<f32>>;        // [workgroups, 16, 16]

var<workgroup> finished: array<vec4<f32>, 256>; // a matrix of each subgroup

@compute @workgroup_size(128)
fn multiply_add(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
#for i in 0..2
    let a{i} = coopLoadT<coop_mat16x16<f16, A>>(&x[{i}u * 64u], 4u);
#end
#for j in 0..4
    let b{j} = coopLoad<coop_mat16x16<f16, B>>(&x[128u + {j}u * 64u], 4u);
#end
#for i in 0..2
#for j in 0..4
    var c{i}{j} = coop_mat16x16<f32, C>();
#end
#end
    for (var round = 0u; round < params.rounds; round++) {
#for i in 0..2
#for j in 0..4
        c{i}{j} = coopMultiplyAdd(a{i}, b{j}, c{i}{j});
#end
#end
    }
    let at = lane / 32u * 64u;
#for i in 0..2
#for j in 0..4
    let v{i}{j} = c{i}{j};
    coopStoreT(v{i}{j}, &finished[at], 4u);
    workgroupBarrier();
    y[(group.x * 8u + {i}u * 4u + {j}u) * 128u + lane] = finished[lane] + finished[128u + lane];
    workgroupBarrier();
#end
#end
}
