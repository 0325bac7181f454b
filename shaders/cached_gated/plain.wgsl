// y = activation(gate + B·z)·(up + B·z): the product of gate and up with the adapters of both, or of a gate with an adapter and the per-layer
// input, which has none. PARTS threads share the ranks of a column. With INTEGERS, y is one row, and stored as integers too. With
// EARLY the kernel starts before the products are there, and loads the first rows of B until then.
#import common/activation
#if {EARLY}
#import common/ahead
#end
#if {INTEGERS}
#import common/integers
#end

// Twin of `Params` in src/ops/cached_gated/mod.rs.
struct Params {
    rows: u32,          // T
    width4: u32,        // columns / 4
    gate_stride4: u32,
    up_stride4: u32,
    up_offset4: u32,
    z_offset4: u32,     // first vec4 of the gate's z in a row of gate
    rank4: u32,         // padded rank / 4 of the gate's adapter term; 0 for none
    up_z_offset4: u32,  // of up's z, in a row of gate too
    up_b_offset4: u32,
    up_rank4: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> gate: array<vec4<f32>>;       // [T, gate_stride]
@group(0) @binding(2) var<storage, read> up: array<vec4<f32>>;         // [T, up_stride]
@group(0) @binding(3) var<storage, read> b: array<vec4<f32>>;          // Bᵀ of gate and up [R, columns]
@group(0) @binding(4) var<storage, read_write> y: array<vec4<f32>>;    // [T, columns]
#if {INTEGERS}
@group(0) @binding(5) var<storage, read_write> integers: array<vec4<u32>>; // y [columns/16, 3]

var<workgroup> ours: array<vec4<f32>, 64>; // [COLUMNS]
#end

const COLUMNS: u32 = 64u / {PARTS}u; // of a workgroup

#if {PARTED}
var<workgroup> gate_terms: array<vec4<f32>, 64>; // [PARTS, COLUMNS]
var<workgroup> up_terms: array<vec4<f32>, 64>;
#end

// Four values of B·z from row 4·col4 on, for this part of z. Loads the rows of B for DEEP vec4s of z together.
fn adapter_term(b_offset4: u32, z_at: u32, col4: u32, rank4: u32, part: u32) -> vec4<f32> {
    var sum = vec4<f32>();
    for (var r = part * {DEEP}u; r < rank4; r += {DEEP}u * {PARTS}u) {
#for j in 0..{DEEP}
        let z{j} = gate[z_at + r + {j}u];
        let at{j} = b_offset4 + 4u * (r + {j}u) * params.width4 + col4;
        let x{j} = b[at{j}];
        let y{j} = b[at{j} + params.width4];
        let u{j} = b[at{j} + 2u * params.width4];
        let v{j} = b[at{j} + 3u * params.width4];
#end
#for j in 0..{DEEP}
        sum += z{j}.x * x{j} + z{j}.y * y{j} + z{j}.z * u{j} + z{j}.w * v{j};
#end
    }
    return sum;
}

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let count = params.rows * params.width4;
    let i = (group.x + group.y * groups.x) * COLUMNS + lane % COLUMNS;
    let mine = min(i, count - 1u);
    let t = mine / params.width4;
    let c = mine % params.width4;
    let row = t * params.gate_stride4;
    let part = lane / COLUMNS;
#if {EARLY}
#for (name, rank4, offset, z_at) in (g, params.rank4, 0u, params.z_offset4) (u, params.up_rank4, params.up_b_offset4, params.up_z_offset4)
#for j in 0..{DEEP}
    var {name}x{j} = vec4<f32>();
    var {name}y{j} = vec4<f32>();
    var {name}z{j} = vec4<f32>();
    var {name}w{j} = vec4<f32>();
    if part * {DEEP}u < {rank4} {
        let at = {offset} + 4u * (part * {DEEP}u + {j}u) * params.width4 + c;
        {name}x{j} = b[at];
        {name}y{j} = b[at + params.width4];
        {name}z{j} = b[at + 2u * params.width4];
        {name}w{j} = b[at + 3u * params.width4];
    }
#end
#end
    wait_for_kernel_ahead();
#for (name, rank4, offset, z_at) in (g, params.rank4, 0u, params.z_offset4) (u, params.up_rank4, params.up_b_offset4, params.up_z_offset4)
    var {name} = vec4<f32>();
    if part * {DEEP}u < {rank4} {
#for j in 0..{DEEP}
        let z{j} = gate[row + {z_at} + part * {DEEP}u + {j}u];
        {name} += z{j}.x * {name}x{j} + z{j}.y * {name}y{j} + z{j}.z * {name}z{j} + z{j}.w * {name}w{j};
#end
    }
    for (var r = (part + {PARTS}u) * {DEEP}u; r < {rank4}; r += {DEEP}u * {PARTS}u) {
        for (var j = r; j < r + {DEEP}u; j++) {
            let z = gate[row + {z_at} + j];
            let at = {offset} + 4u * j * params.width4 + c;
            {name} += z.x * b[at] + z.y * b[at + params.width4] + z.z * b[at + 2u * params.width4] + z.w * b[at + 3u * params.width4];
        }
    }
#end
#else
    var g = adapter_term(0u, row + params.z_offset4, c, params.rank4, part);
    var u = adapter_term(params.up_b_offset4, row + params.up_z_offset4, c, params.up_rank4, part);
#end
#if {PARTED}
    gate_terms[lane] = g;
    up_terms[lane] = u;
    workgroupBarrier();
    g = vec4<f32>();
    u = vec4<f32>();
    for (var p = lane % COLUMNS; p < 64u; p += COLUMNS) {
        g += gate_terms[p];
        u += up_terms[p];
    }
#end
    var result = vec4<f32>();
    if i < count && part == 0u {
        g += gate[row + c];
        u += up[t * params.up_stride4 + params.up_offset4 + c];
        result = activation4(g) * value4(u);
        y[i] = result;
    }
#if {INTEGERS}
    if part == 0u {
        ours[lane] = result;
    }
    workgroupBarrier();
    let sixteen = (i - lane % COLUMNS) / 4u + lane;
    if lane < COLUMNS / 4u && sixteen * 4u < count {
        let at = 4u * lane;
        store_sixteen(sixteen, ours[at], ours[at + 1u], ours[at + 2u], ours[at + 3u]);
    }
#end
}
