// The end of a block, one workgroup per token: stream = scale·(stream + norm(y + B·z)), and the norm before the next block,
// normed = next_norm(stream). y lies in the row of products that holds the adapter's z. A thread keeps its columns in registers, and issues
// all its loads before the first sum: of B, the rows for DEEP vec4s of z at a time. One workgroup reads all of B, most of its traffic; where
// the device allows so many threads, GROUPS groups of 256 share it. With INTEGERS, normed is stored as integers too. With EARLY the kernel starts
// before y is there, and loads norms and the first rows of B until then.
#import common/reduce_wide
#if {EARLY}
#import common/ahead
#end
#if {INTEGERS}
#import common/integers
#end

// Twin of `Params` in src/ops/block_end/mod.rs.
struct Params {
    width4: u32,        // D / 4, at most 256·SHARES
    y_stride4: u32,
    z_offset4: u32,     // first vec4 of z in a row of y
    rank4: u32,         // padded rank / 4 of the adapter term; 0 for none
    next: u32,          // 0: normed is not needed
    ended: u32,         // 1: the stream before lies in normed
    eps: f32,
    scale: f32,
    next_eps: f32,      // of the next norm
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> y: array<vec4<f32>>;          // [T, y_stride]
@group(0) @binding(2) var<storage, read> b: array<vec4<f32>>;          // Bᵀ [R, D]
#if !{IDENTITY}
@group(0) @binding(3) var<storage, read> norm: array<vec4<f32>>;       // [D]
#end
@group(0) @binding(4) var<storage, read> next_norm: array<vec4<f32>>;  // [D]
@group(0) @binding(5) var<storage, read_write> stream: array<vec4<f32>>; // [T, D]
@group(0) @binding(6) var<storage, read_write> normed: array<vec4<f32>>; // [T, D]
#if {INTEGERS}
@group(0) @binding(7) var<storage, read_write> integers: array<vec4<u32>>; // normed, of one token [D/16, 3]
#end

fn rstd(squares: f32, lane: u32) -> f32 {
    return 1.0 / sqrt(wide_sum(squares, lane) / f32(params.width4 * 4u) + params.eps);
}

const ROUND: u32 = 3u; // shares of normed that become integers together
var<workgroup> terms: array<vec4<f32>, 768>; // sums of all groups but the first; then columns of normed [ROUND, 256]

@compute @workgroup_size({THREADS})
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let thread = lane % 256u;
    let first = lane < 256u; // the first group computes everything but the other groups' share of B
    let y_row = group.x * params.y_stride4;
    let row = group.x * params.width4;
    // Columns past the row read its last column and count as zero.
#for i in 0..{SHARES}
    let inside{i} = first && thread + {i}u * 256u < params.width4;
    let c{i} = min(thread + {i}u * 256u, params.width4 - 1u);
    var value{i} = vec4<f32>();
    var before{i} = vec4<f32>();
#if !{IDENTITY}
    var norm{i} = vec4<f32>();
#end
    var next_norm{i} = vec4<f32>();
    if first {
#if !{IDENTITY}
        norm{i} = norm[c{i}];
#end
        next_norm{i} = next_norm[c{i}];
    }
#end
#if {EARLY}
    let mine = lane / 256u * {DEEP}u;
#for i in 0..{SHARES}
#for j in 0..{DEEP}
    var ahead{j}x{i} = vec4<f32>();
    var ahead{j}y{i} = vec4<f32>();
    var ahead{j}z{i} = vec4<f32>();
    var ahead{j}w{i} = vec4<f32>();
    if mine < params.rank4 {
        ahead{j}x{i} = b[4u * (mine + {j}u) * params.width4 + c{i}];
        ahead{j}y{i} = b[(4u * (mine + {j}u) + 1u) * params.width4 + c{i}];
        ahead{j}z{i} = b[(4u * (mine + {j}u) + 2u) * params.width4 + c{i}];
        ahead{j}w{i} = b[(4u * (mine + {j}u) + 3u) * params.width4 + c{i}];
    }
#end
#end
    wait_for_kernel_ahead();
#end
#for i in 0..{SHARES}
    if first {
        value{i} = y[y_row + c{i}];
        if params.ended == 1u {
            before{i} = normed[row + c{i}];
        } else {
            before{i} = stream[row + c{i}];
        }
    }
#end
#if {EARLY}
    if mine < params.rank4 {
#for j in 0..{DEEP}
        let z{j} = y[y_row + params.z_offset4 + mine + {j}u];
#for i in 0..{SHARES}
        value{i} += z{j}.x * ahead{j}x{i} + z{j}.y * ahead{j}y{i} + z{j}.z * ahead{j}z{i} + z{j}.w * ahead{j}w{i};
#end
#end
    }
    for (var r = mine + {DEEP}u * ({THREADS}u / 256u); r < params.rank4; r += {DEEP}u * ({THREADS}u / 256u)) {
#else
    for (var r = lane / 256u * {DEEP}u; r < params.rank4; r += {DEEP}u * ({THREADS}u / 256u)) {
#end
#for j in 0..{DEEP}
        let z{j} = y[y_row + params.z_offset4 + r + {j}u];
        let at{j} = 4u * (r + {j}u) * params.width4;
#for i in 0..{SHARES}
        let b{j}x{i} = b[at{j} + c{i}];
        let b{j}y{i} = b[at{j} + params.width4 + c{i}];
        let b{j}z{i} = b[at{j} + 2u * params.width4 + c{i}];
        let b{j}w{i} = b[at{j} + 3u * params.width4 + c{i}];
#end
#end
#for j in 0..{DEEP}
#for i in 0..{SHARES}
        value{i} += z{j}.x * b{j}x{i} + z{j}.y * b{j}y{i} + z{j}.z * b{j}z{i} + z{j}.w * b{j}w{i};
#end
#end
    }
#if {GROUPED}
#for i in 0..{SHARES}
    if !first {
        terms[lane - 256u] = value{i};
    }
    workgroupBarrier();
    if first {
        value{i} += terms[thread] + terms[256u + thread] + terms[512u + thread];
    }
    workgroupBarrier();
#end
#end
    var squares = 0.0;
#if !{IDENTITY}
#for i in 0..{SHARES}
    squares += select(0.0, dot(value{i}, value{i}), inside{i});
#end
    let this_rstd = rstd(squares, lane);
    squares = 0.0;
#end
#for i in 0..{SHARES}
#if {IDENTITY}
    let after{i} = params.scale * (before{i} + value{i});
#else
    let after{i} = params.scale * (before{i} + value{i} * this_rstd * norm{i});
#end
    squares += select(0.0, dot(after{i}, after{i}), inside{i});
    if inside{i} {
        stream[row + c{i}] = after{i};
    }
#end
    if params.next == 0u {
        return;
    }
#if {TWO_EPS}
    let next_rstd = 1.0 / sqrt(wide_sum(squares, lane) / f32(params.width4 * 4u) + params.next_eps);
#else
    let next_rstd = rstd(squares, lane);
#end
#for i in 0..{SHARES}
    let normed{i} = after{i} * next_rstd * next_norm{i};
    if inside{i} {
        normed[row + c{i}] = normed{i};
    }
#if {INTEGERS}
    if first {
        terms[thread + {i}u % ROUND * 256u] = normed{i};
    }
    // After the last share of a round, or of the row.
    if ({i}u + 1u) % ROUND * ({SHARES}u - 1u - {i}u) == 0u {
        workgroupBarrier();
        let sixteen = {i}u / ROUND * ROUND * 64u + lane;
        if sixteen < ({i}u + 1u) * 64u && sixteen * 4u < params.width4 {
            let at = 4u * lane;
            store_sixteen(sixteen, terms[at], terms[at + 1u], terms[at + 2u], terms[at + 3u]);
        }
        workgroupBarrier();
    }
#end
#end
}
