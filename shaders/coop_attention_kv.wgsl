// The gradients of keys or of values by query head, from what backward_q of coop_attention.wgsl left: products of its weights with
// dout, or of their gradients with the queries. A workgroup makes the results of 64 keys, each of its four subgroups those of half
// of the keys and half of the columns: more of them, or dout loaded a step ahead, do not fit into registers. What was left is read as
// matrices straight from memory, dout or the queries come through workgroup memory, 32 at a time.
enable f16;
enable wgpu_cooperative_matrix;
#import common/end_query

// Twin of `Params` in src/ops/coop_attention_kv.rs.
struct Params {
    rows: u32,          // T
    tiles: u32,         // matrices from one column of them to the next: T/16 or more
    heads: u32,         // H
    window: u32,        // 0: none
    first_key: u32,     // the keys of this call, in whole blocks of 64
    blocks: u32,        // blocks of queries that are left of one block of keys
    scale: f32,         // what undoes the scaling of x, where it is not by row
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f16>>;          // dout or q [H·K/16, T/16, 16, 16]
@group(0) @binding(2) var<storage, read> bounds: array<vec2<u32>>;     // start and end row of each token's sample [T]
@group(0) @binding(3) var<storage, read> units: array<f32>;            // of each block of keys, by head [H, T/64]
// Written nowhere; it may lie in one buffer with the result.
@group(0) @binding(4) var<storage, read_write> left: array<vec4<f16>>; // weights or gradients [H, keys/64, blocks, queries/16, keys/16, 16, 16]
@group(0) @binding(5) var<storage, read_write> result: array<vec4<f32>>; // [T, H, K]

const BLOCK: u32 = 64u;
const DEPTH: u32 = {DEPTH}u;                    // matrices over a head: K/16
const TILES: u32 = {TILES}u;                    // of them, those of a workgroup, of which a subgroup takes half
const PITCH: u32 = TILES * 4u + 2u;             // vec4s of a staged row

var<workgroup> staged: array<vec4<f16>, {STAGED}>;       // 32 queries, 16·TILES columns
var<workgroup> finished: array<vec4<f32>, 320>;     // 16×16 results of each subgroup, 5 vec4s a row

// Four of the values that this thread stages of the queries from `query0` on: those of matrix `i`.
fn read4(query0: u32, column: u32, i: u32, lane: u32) -> vec4<f16> {
    let row = min(query0 / 16u + lane / 64u, (params.rows - 1u) / 16u);
    return x[((column + i) * params.tiles + row) * 64u + lane % 64u];
}

@compute @workgroup_size(128)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let key0 = params.first_key + group.z * BLOCK;
    let head = group.x;
    let column = head * DEPTH + group.y * TILES;
    let block = (head * groups.z + group.z) * params.blocks * 16u + lane / 32u % 2u * 2u;
    let own = lane / 64u * {OUT}u;
    let steps = (end_query(key0) - key0 + 31u) / 32u;
#for i in 0..2
#for j in 0..{OUT}
    var c{i}{j} = coop_mat16x16<f32, C>();
#end
#end
    for (var step = 0u; step < steps; step++) {
#for k in 0..2
#for i in 0..2
        let w{k}{i} = coopLoad<coop_mat16x16<f16, A>>(&left[(block + (step * 2u + {k}u) * 4u + {i}u) * 64u], 4u);
#end
#end
#for i in 0..{TILES}
        let y{i} = read4(key0 + step * 32u, column, {i}u, lane);
#end
        workgroupBarrier();
#for i in 0..{TILES}
        staged[lane / 4u * PITCH + {i}u * 4u + lane % 4u] = y{i};
#end
        workgroupBarrier();
#for k in 0..2
#for j in 0..{OUT}
        let x{k}_{j} = coopLoadT<coop_mat16x16<f16, B>>(&staged[{k}u * 16u * PITCH + (own + {j}u) * 4u], PITCH);
#for i in 0..2
        c{i}{j} = coopMultiplyAdd(w{k}{i}, x{k}_{j}, c{i}{j});
#end
#end
#end
    }
    let unit = params.scale * units[head * ((params.rows + BLOCK - 1u) / BLOCK) + key0 / BLOCK];
    let at = lane / 32u * 80u;
    let narrow = 5u;
#for i in 0..2
#for j in 0..{OUT}
    let v{i}{j} = c{i}{j};
    coopStoreT(v{i}{j}, &finished[at], narrow);
    subgroupBarrier();
    for (var i = lane % 32u; i < 64u; i += 32u) {
        let row = key0 + lane / 32u % 2u * 32u + {i}u * 16u + i / 4u;
        if row < params.rows {
            result[(row * params.heads + head) * DEPTH * 4u + (group.y * TILES + own + {j}u) * 4u + i % 4u] = unit * finished[at + i / 4u * 5u + i % 4u];
        }
    }
    subgroupBarrier();
#end
#end
}
