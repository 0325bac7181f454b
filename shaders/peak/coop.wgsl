// Products of cooperative matrices without memory traffic: eight {EDGE}×{EDGE} results per subgroup, f16 operands, f32 sums.
enable f16;
enable wgpu_cooperative_matrix;

// Twin of `Params` in src/ops/peak/coop.rs.
struct Params {
    rounds: u32,        // rounds of eight products of matrices
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f16>;                // six matrices [6, {EDGE}, {EDGE}]
@group(0) @binding(2) var<storage, read_write> y: array<f32>;          // [workgroups, 8, 2, {EDGE}, {EDGE}]

const MATRIX: u32 = {EDGE}u * {EDGE}u;
const THREADS: u32 = 4u * {LANES}u;

var<workgroup> finished: array<f32, 4u * MATRIX>; // one matrix per subgroup

@compute @workgroup_size(THREADS)
fn multiply_add(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
#for i in 0..2
    let a{i} = coopLoadT<coop_mat{EDGE}x{EDGE}<f16, A>>(&x[{i}u * MATRIX], {EDGE}u);
#end
#for j in 0..4
    let b{j} = coopLoad<coop_mat{EDGE}x{EDGE}<f16, B>>(&x[(2u + {j}u) * MATRIX], {EDGE}u);
#end
#for i in 0..2
#for j in 0..4
    var c{i}{j}: coop_mat{EDGE}x{EDGE}<f32, C>;
#end
#end
    for (var round = 0u; round < params.rounds; round++) {
#for i in 0..2
#for j in 0..4
        c{i}{j} = coopMultiplyAdd(a{i}, b{j}, c{i}{j});
#end
#end
    }
    let at = lane / {LANES}u * MATRIX;
    let pitch = {EDGE}u;
#for i in 0..2
#for j in 0..4
    let v{i}{j} = c{i}{j};
    coopStoreT(v{i}{j}, &finished[at], pitch);
    workgroupBarrier();
    for (var k = lane; k < 2u * MATRIX; k += THREADS) {
        y[(group.x * 8u + {i}u * 4u + {j}u) * 2u * MATRIX + k] = finished[k] + finished[2u * MATRIX + k];
    }
    workgroupBarrier();
#end
#end
}
