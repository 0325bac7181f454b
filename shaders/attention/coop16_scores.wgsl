// Weights exp(q·k − lse) and score gradients weights·(dout·v − delta) of attention's backward; the gradients are in units of their query's
// row of dout. Under a softcap, the gradients have its slope besides. Both stay in memory for shaders/attention/coop16_product.wgsl. A workgroup computes those of 128 queries and 128 keys, each of
// its four subgroups those of 32 queries. Queries and dout are read as matrices straight from memory. Keys and values pass through workgroup
// memory, 32 columns of a head at a time, as in common/coop16.
enable f16;
enable wgpu_cooperative_matrix;
#import common/attention_part
#import common/matrix_at
#import common/softcap

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> q: array<vec4<f16>>;          // [H·K/16, T/16, 16, 16]
@group(0) @binding(2) var<storage, read> k: array<vec4<f16>>;          // [G·K/16, T/16, 16, 16]
@group(0) @binding(3) var<storage, read> v: array<vec4<f16>>;          // [G·K/16, T/16, 16, 16]
@group(0) @binding(4) var<storage, read> dout: array<vec4<f16>>;       // [H·K/16, T/16, 16, 16]
@group(0) @binding(5) var<storage, read> bounds: array<vec2<u32>>;     // start and end row of each token's sample [T]
@group(0) @binding(6) var<storage, read> rows: array<vec2<f32>>;       // lse, delta in units of dout's row [T, H]
@group(0) @binding(7) var<storage, read_write> weights: array<vec4<f16>>;   // see common/attention_part.wgsl
@group(0) @binding(8) var<storage, read_write> gradients: array<vec4<f16>>;

const DEPTH: u32 = {DEPTH}u;        // matrices over a head: K/16
const PITCH: u32 = 10u;             // vec4s of a staged key: 32 columns and 8 halves
const NEVER: u32 = 0xffffffffu;

var<workgroup> staged: array<vec4<f16>, 1280>;      // 128 keys
var<workgroup> finished: array<vec4<f32>, 640>;     // 16 queries and 32 keys per subgroup, 5 vec4s per key
var<workgroup> lse: array<f32, 128>;                // of the queries
var<workgroup> delta: array<f32, 128>;
var<workgroup> first: array<u32, 128>;              // the first key that each sees

// The values of four queries in a row of workgroup memory.
#for (name, values, of) in (lse4, lse, f32) (delta4, delta, f32) (first4, first, u32)
fn {name}(at: u32) -> vec4<{of}> {
    return vec4<{of}>({values}[at], {values}[at + 1u], {values}[at + 2u], {values}[at + 3u]);
}

#end
// The weights of four queries from `query` on and a key.
fn weights4(scores: vec4<f32>, lse: vec4<f32>, at: u32, first: vec4<u32>, query: u32, key: u32) {
    let queries = vec4<u32>(query) + vec4<u32>(0u, 1u, 2u, 3u);
    let seen = (vec4<u32>(key) <= queries) & (vec4<u32>(key) >= first);
#if {CAP}
    let s = capped(params.scale * scores);
    let p = select(vec4<f32>(), exp(s - lse), seen);
    weights[at] = vec4<f16>(p);
    gradients[at] = vec4<f16>(p * slope_at(s)); // what `gradients4` multiplies
#else
    weights[at] = vec4<f16>(select(vec4<f32>(), exp(params.scale * scores - lse), seen));
#end
}

// The score gradients of four queries from `query` on and a key.
fn gradients4(products: vec4<f32>, delta: vec4<f32>, at: u32, first: vec4<u32>, query: u32, key: u32) {
#if {CAP}
    gradients[at] = vec4<f16>(vec4<f32>(gradients[at]) * (products - delta));
#else
    gradients[at] = vec4<f16>(vec4<f32>(weights[at]) * (products - delta));
#end
}

#for (name, left, right, finish, own4) in (make_weights, q, k, weights4, lse4) (make_gradients, dout, v, gradients4, delta4)
fn {name}(query0: u32, key0: u32, head: u32, block: u32, seen: bool, lane: u32) {
    let row = query0 / 16u + lane / 32u * 2u; // matrices over the rows
    let column = head * DEPTH;
    let kv_column = head / (params.heads / params.kv_heads) * DEPTH;
#for i in 0..2
#for j in 0..8
    var c{i}{j} = coop_mat16x16<f32, C>();
#end
#end
    // A thread stages four of the columns of 8 keys.
    let source = lane % 64u;
    let to = (lane / 64u * 16u + source / 4u) * PITCH + source % 4u;
#for n in 0..8
    var y{n} = {right}[matrix_at(key0 / 16u + lane / 64u + {n}u / 2u * 2u, kv_column + {n}u % 2u) + source];
#end
    let depth = select(0u, DEPTH, seen);
    for (var d = 0u; d < depth; d += 2u) {
#for n in 0..2
#for i in 0..2
        let x{n}{i} = coopLoadT<coop_mat16x16<f16, A>>(&{left}[matrix_at(row + {i}u, column + d + {n}u)], 4u);
#end
#end
        workgroupBarrier();
#for n in 0..8
        staged[to + ({n}u / 2u * 32u) * PITCH + {n}u % 2u * 4u] = y{n};
#end
        workgroupBarrier();
        let next = kv_column + min(d + 2u, DEPTH - 2u);
#for n in 0..8
        y{n} = {right}[matrix_at(key0 / 16u + lane / 64u + {n}u / 2u * 2u, next + {n}u % 2u) + source];
#end
#for n in 0..2
#for j in 0..8
        let w{n}{j} = coopLoad<coop_mat16x16<f16, B>>(&staged[{j}u * 16u * PITCH + {n}u * 4u], PITCH);
#for i in 0..2
        c{i}{j} = coopMultiplyAdd(x{n}{i}, w{n}{j}, c{i}{j});
#end
#end
#end
    }
    let end = select(0u, 128u, seen);
    let at = lane / 32u * 160u;
    let beside = at + 80u;
    let pitch = 5u;
#for i in 0..2
    let local{i} = lane / 32u * 32u + {i}u * 16u + lane % 4u * 4u;
    let own{i} = {own4}(local{i});
    let first{i} = first4(local{i});
#for (a, b) in (0, 1) (2, 3) (4, 5) (6, 7)
    let v{i}{a} = c{i}{a};
    coopStore(v{i}{a}, &finished[at], pitch);
    let v{i}{b} = c{i}{b};
    coopStore(v{i}{b}, &finished[beside], pitch);
    subgroupBarrier();
    for (var n = lane % 32u; n < end; n += 32u) {
        let matrix = block * 64u + ({a}u + n / 64u) * 8u + lane / 32u * 2u + {i}u;
        let product = finished[at + n / 4u * 5u + n % 4u];
        {finish}(product, own{i}, matrix * 64u + n % 64u, first{i}, query0 + local{i}, key0 + {a}u * 16u + n / 4u);
    }
    subgroupBarrier();
#end
#end
}

#end
@compute @workgroup_size(128)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let head = group.x;
    let key0 = (params.first_key + group.z) * BLOCK;
    let query0 = key0 + (params.offset + group.y) * BLOCK;
    let query = query0 + lane;
    let token = min(query, params.rows - 1u);
    let row = rows[token * params.heads + head];
    lse[lane] = row.x;
    delta[lane] = row.y;
    first[lane] = select(NEVER, first_of(token, bounds[token].x), query < params.rows);
    let block = (head * groups.z + group.z) * groups.y + group.y;
    // The barriers of the first product come before these reads; blocks that are not seen are not written.
    let seen = query0 < end_query(key0);
    make_weights(query0, key0, head, block, seen, lane);
    make_gradients(query0, key0, head, block, seen, lane);
}
