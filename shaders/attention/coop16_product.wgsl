// Products of attention's backward from the weights and score gradients of shaders/attention/coop16_scores.wgsl: dq = ds·k, and for each
// query head dk = dsᵀ·q and dv = pᵀ·dout. A workgroup computes 128 rows of up to 128 columns, each of its four subgroups 32 rows. Weights and
// score gradients are read as matrices straight from memory. The other operand passes through workgroup memory, 32 rows at a time, as in
// common/coop16.
enable f16;
enable wgpu_cooperative_matrix;
#import common/attention_part
#import common/reduce

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f16>>;          // k [G·K/16, T/16, 16, 16]; q or dout [H·K/16, T/16, 16, 16]
@group(0) @binding(2) var<storage, read> bounds: array<vec2<u32>>;     // start and end row of each token's sample [T]
@group(0) @binding(3) var<storage, read> factors: array<f32>;          // factors of dout's rows [T]
@group(0) @binding(4) var<storage, read_write> units: array<f32>;      // the largest factor for each block of keys [T/128]
// Only read; it is read_write because it may share a buffer with the result.
@group(0) @binding(5) var<storage, read_write> left: array<vec4<f16>>; // see common/attention_part.wgsl
@group(0) @binding(6) var<storage, read_write> result: array<vec4<f32>>; // [T, H, K]

const DEPTH: u32 = {DEPTH}u;            // matrices over a head: K/16
const TILES: u32 = {TILES}u;            // matrices of a workgroup among them
const PITCH: u32 = TILES * 4u + 2u;     // vec4s of a staged row

var<workgroup> staged: array<vec4<f16>, {STAGED}>;   // 32 rows of 16·TILES columns
var<workgroup> finished: array<vec4<f32>, 320>;     // 16×16 results per subgroup, 5 vec4s per row

fn block_at(key: u32, query: u32, head: u32) -> u32 {
    let keys = params.end_key - params.first_key;
    return (((head * keys + key - params.first_key) * params.blocks) + query - key - params.offset) * 4096u;
}

// Four values of matrix `i` that this thread stages, of the rows from `row0` on.
fn read4(row0: u32, column: u32, i: u32, lane: u32) -> vec4<f16> {
    let row = min(row0 / 16u + lane / 64u, (params.rows - 1u) / 16u);
    return x[((column + i) * params.tiles + row) * 64u + lane % 64u];
}

// Stores or adds the 16×16 results of this subgroup in `finished`, up to row `rows`, times `factor` and, if asked, the rows' own factors.
fn store(row0: u32, rows: u32, head: u32, col4: u32, factor: f32, by_row: bool, add: bool, lane: u32) {
    for (var i = lane % 32u; i < 64u; i += 32u) {
        let row = row0 + i / 4u;
        if row < rows {
            let at = (row * params.heads + head) * DEPTH * 4u + col4 + i % 4u;
            var value = factor * finished[lane / 32u * 80u + i / 4u * 5u + i % 4u];
            if by_row {
                value *= factors[row];
            }
            if add {
                value += result[at];
            }
            result[at] = value;
        }
    }
}

@compute @workgroup_size(128)
fn queries(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let head = group.x;
    let query = params.first_key + params.offset + group.z;
    let query0 = query * BLOCK;
    let seen = first_of(query0, bounds[query0].x) / BLOCK;
    let last = params.offset + params.blocks - 1u;
    let begin = max(max(params.first_key, seen), query - min(last, query));
    let end = min(params.end_key, query - params.offset + 1u);
    // An earlier part has added keys that these queries see.
    let add = seen < params.first_key || params.offset > 0u && end < params.end_key;
    let column = group.y * TILES;
    let kv_column = head / (params.heads / params.kv_heads) * DEPTH + column;
    let own = lane / 32u * 2u;
#for i in 0..2
#for j in 0..{TILES}
    var c{i}{j} = coop_mat16x16<f32, C>();
#end
#end
#for i in 0..{TILES}
    var y{i} = read4(begin * BLOCK, kv_column, {i}u, lane);
#end
    for (var step = begin * 4u; step < end * 4u; step++) {
        let at = block_at(step / 4u, query, head) + (step % 4u * 16u + own) * 64u;
#for k in 0..2
#for i in 0..2
        let w{k}{i} = coopLoad<coop_mat16x16<f16, A>>(&left[at + ({k}u * 8u + {i}u) * 64u], 4u);
#end
#end
        workgroupBarrier();
#for i in 0..{TILES}
        staged[lane / 4u * PITCH + {i}u * 4u + lane % 4u] = y{i};
#end
        workgroupBarrier();
#for i in 0..{TILES}
        y{i} = read4((step + 1u) * 32u, kv_column, {i}u, lane);
#end
#for k in 0..2
#for j in 0..{TILES}
        let x{k}_{j} = coopLoadT<coop_mat16x16<f16, B>>(&staged[{k}u * 16u * PITCH + {j}u * 4u], PITCH);
#for i in 0..2
        c{i}{j} = coopMultiplyAdd(w{k}{i}, x{k}_{j}, c{i}{j});
#end
#end
#end
    }
    let rows = select(0u, params.rows, begin < end);
    let at = lane / 32u * 80u;
    let narrow = 5u;
#for i in 0..2
#for j in 0..{TILES}
    let v{i}{j} = c{i}{j};
    coopStoreT(v{i}{j}, &finished[at], narrow);
    subgroupBarrier();
    store(query0 + (own + {i}u) * 16u, rows, head, (column + {j}u) * 4u, params.scale, true, add, lane);
    subgroupBarrier();
#end
#end
}

@compute @workgroup_size(128)
fn keys(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let head = group.x;
    let key = params.first_key + group.z;
    let key0 = key * BLOCK;
    let begin = key + params.offset;
    let end = min(begin + params.blocks, (end_query(key0) + BLOCK - 1u) / BLOCK);
    // The first part of these keys has stored queries that see them.
    let add = params.offset > 0u;
    let unit = units[key];
    let column = group.y * TILES;
    let own = lane / 32u * 2u;
#for i in 0..2
#for j in 0..{TILES}
    var c{i}{j} = coop_mat16x16<f32, C>();
#end
#end
#for i in 0..{TILES}
    var y{i} = read4(begin * BLOCK, head * DEPTH + column, {i}u, lane);
#end
    var factor = factors[min(begin * BLOCK + lane / 4u, params.rows - 1u)];
    for (var step = begin * 4u; step < end * 4u; step++) {
        let at = block_at(key, step / 4u, head) + (own * 8u + step % 4u * 2u) * 64u;
#for k in 0..2
#for i in 0..2
        let w{k}{i} = coopLoadT<coop_mat16x16<f16, A>>(&left[at + ({i}u * 8u + {k}u) * 64u], 4u);
#end
#end
        let beside = f16(min(factor / unit, 1.0));
        workgroupBarrier();
#for i in 0..{TILES}
        staged[lane / 4u * PITCH + {i}u * 4u + lane % 4u] = beside * y{i};
#end
        workgroupBarrier();
#for i in 0..{TILES}
        y{i} = read4((step + 1u) * 32u, head * DEPTH + column, {i}u, lane);
#end
        factor = factors[min((step + 1u) * 32u + lane / 4u, params.rows - 1u)];
#for k in 0..2
#for j in 0..{TILES}
        let x{k}_{j} = coopLoadT<coop_mat16x16<f16, B>>(&staged[{k}u * 16u * PITCH + {j}u * 4u], PITCH);
#for i in 0..2
        c{i}{j} = coopMultiplyAdd(w{k}{i}, x{k}_{j}, c{i}{j});
#end
#end
#end
    }
    let rows = select(0u, params.rows, begin < end);
    let at = lane / 32u * 80u;
    let narrow = 5u;
#for i in 0..2
#for j in 0..{TILES}
    let v{i}{j} = c{i}{j};
    coopStoreT(v{i}{j}, &finished[at], narrow);
    subgroupBarrier();
    store(key0 + (own + {i}u) * 16u, rows, head, (column + {j}u) * 4u, params.scale * unit, false, add, lane);
    subgroupBarrier();
#end
#end
}

// The largest unit of the queries that see any key of a block. Rows that f16 rounds to zero beside it do not matter in the sum.
@compute @workgroup_size(64)
fn key_units(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let key0 = group.x * BLOCK;
    let end = end_query(key0);
    var most = 0.0;
    for (var row = key0 + lane; row < end; row += 64u) {
        most = max(most, factors[row]);
    }
    let unit = reduce_max(most, lane);
    if lane == 0u {
        units[group.x] = unit;
    }
}
