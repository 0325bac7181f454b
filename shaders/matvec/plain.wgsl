// y = scale·x·Wᵀ of one to eight rows x with up to three matrices, whose results lie side by side, and in the same row z = x·Aᵀ of an
// adapter that reads the same x. Readers of y (cached_heads, block_end, cached_gated) add B·z. PARTS threads share a row of W, in any format.
// If W is kept in slices, neighbouring threads take neighbouring rows, else neighbouring slices. A has few rows, which more threads share;
// its workgroups come first.
//
// With ALONE one thread takes a whole row, of A too: no threads wait for each other, which costs a software renderer more than the product.
//
// With WHOLE slices, K is a multiple of 32, and no load waits for a comparison.
//
// With GATED or ENDED every workgroup computes x itself, which is short: it loads the rows of B for DEEP vec4s of z together. With BYTES there
// is one row x, in integers too: W is multiplied by these, and A by x. With EARLY the kernel starts before x is there, and loads weights
// until then.
#import weights

// Twin of `Params` in src/ops/matvec/mod.rs.
struct Params {
    rows: u32,          // T, at most ROWS
    weight_rows_0: u32, // N of each matrix
    weight_rows_1: u32,
    weight_rows_2: u32,
    weight_cols: u32,   // K
    sliced: u32,        // bit i: whether matrix i is kept in slices
    x_stride4: u32,
    x_offset4: u32,
    y_stride: u32,      // floats per row of the result
    y_offset: u32,
    z_offset: u32,
    a_rows: u32,        // rows of A; 0 for none
    a_height: u32,      // rows of A that a workgroup takes: 1 to 32
    scale: f32,
    softcap: f32,       // y = softcap·tanh(y / softcap); 0: none
    up_stride4: u32,    // of a gated x, as in shaders/cached_gated/plain.wgsl
    up_offset4: u32,
    input_z_offset4: u32, // of the input's own term: the first vec4 of z, and its rank / 4
    input_rank4: u32,
    eps: f32,
}

override ROWS: u32;     // rows of x that a thread multiplies: 1, 2, 4 or 8
override PARTS: u32;    // threads that share a row of W: 8, 16, 32 or 64; 1 with ALONE

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;          // [T, K]; or what x is made of, and its z behind it
@group(0) @binding(2) var<storage, read> a: array<vec4<f32>>;          // A [R, K]
@group(0) @binding(3) var<storage, read_write> result: array<f32>;     // y [T, Σ N] and z [T, R], side by side
#for w in 0..{WEIGHTS}
@group(0) @binding(1{w}) var<storage, read> weight_{w}: array<vec4<u32>>; // W [N, K]
#end

#if {ALONE}
const THREADS: u32 = 32u;
#else
const THREADS: u32 = 256u;

var<workgroup> sums: array<f32, {SUMS}>; // [ROWS, PARTS, rows of the workgroup]
#end
var<private> acc: array<f32, 8>;
var<private> one: f32; // instead of acc with one row: software renderers are slow at arrays

#if {GATED}
#import common/matvec_gated
#end
#if {ENDED}
#import common/matvec_ended
#end
#if !{GATED}
#if !{ENDED}
fn x_at(t: u32, col4: u32) -> vec4<f32> {
    return x[t * params.x_stride4 + params.x_offset4 + col4];
}
#end
#end

fn add_columns(w: vec4<f32>, col4: u32) {
    if ROWS == 1u {
        one += dot(w, x_at(0u, col4));
        return;
    }
    for (var t = 0u; t < ROWS; t++) {
        acc[t] += dot(w, x_at(min(t, params.rows - 1u), col4));
    }
}

#if {EARLY}
#import common/matvec_early
#end
#if {BYTES}
#import common/matvec_bytes
#else
#for w in 0..{WEIGHTS}
#if {EARLY}
fn add_slice_{w}(s: Slice_{w}, i: u32) {
    let cols4 = params.weight_cols / 4u;
    {
        let factors = slice_factors_{w}(s);
#else
fn multiply_{w}(row: u32, part: u32) {
    if row >= params.weight_rows_{w} {
        return;
    }
    let cols4 = params.weight_cols / 4u;
    for (var i = part; i * 8u < cols4; i += PARTS) {
        let s = load_slice_{w}(row, i);
        let factors = slice_factors_{w}(s);
#end
#for c in 0..8
#if {WHOLE}
        add_columns(slice4_{w}(s, factors, {c}u), i * 8u + {c}u);
#else
        if i * 8u + {c}u < cols4 {
            add_columns(slice4_{w}(s, factors, {c}u), i * 8u + {c}u);
        }
#end
#end
    }
}

#end
#end
// Every `parts`-th vec4 of a row of A from `first` on. Four loads at a time: each would otherwise wait for the one before.
fn add_row_of_a(row: u32, first: u32, parts: u32) {
    let cols4 = params.weight_cols / 4u;
    for (var c = first; c < cols4; c += 4u * parts) {
#for i in 0..4
        let c{i} = c + {i}u * parts;
        let a{i} = a[row * cols4 + min(c{i}, cols4 - 1u)];
#end
#for i in 0..4
        if c{i} < cols4 {
            add_columns(a{i}, c{i});
        }
#end
    }
}

#if !{EARLY}
fn multiply_a(row: u32, part: u32, parts: u32) {
    if row < params.a_rows {
        add_row_of_a(row, part, parts);
    }
}

#end
// Stores the sum of row t of x with row `at` of A, or of the matrices.
fn store(t: u32, which: u32, at: u32, sum: f32) {
    if which == 0u {
        result[t * params.y_stride + params.z_offset + at] = sum;
        return;
    }
    var y = sum * params.scale;
    if params.softcap != 0.0 {
        y = params.softcap * tanh(clamp(y / params.softcap, -10.0, 10.0));
    }
    result[t * params.y_stride + params.y_offset + at] = y;
}

#if {ALONE}
fn finish(which: u32, before: u32, row: u32) {
    if ROWS == 1u {
        store(0u, which, before + row, one);
        return;
    }
    for (var t = 0u; t < min(ROWS, params.rows); t++) {
        store(t, which, before + row, acc[t]);
    }
}
#else
// Adds to every part whose number is a multiple of 8·apart the seven that follow it at distances of `apart`.
fn add_eight(lane: u32, height: u32, apart: u32) {
    if lane < THREADS / (8u * apart) {
        let first = lane / height * 8u * apart * height + lane % height;
        for (var t = 0u; t < ROWS; t++) {
            var eight = 0.0;
            for (var i = 0u; i < 8u; i++) {
                eight += sums[t * THREADS + first + i * apart * height];
            }
            sums[t * THREADS + first] = eight;
        }
    }
    workgroupBarrier();
}
#end

@compute @workgroup_size(THREADS)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let all_rows = vec4<u32>(params.a_rows, params.weight_rows_0, params.weight_rows_1, params.weight_rows_2);
    // The matrix of this workgroup (0 is A), the workgroup's index in it, and the rows of the matrices before it.
    var index = group.x + group.y * groups.x;
    var which = 0u;
    var height = params.a_height; // rows of the workgroup
    var before = 0u;
    let of_a = (params.a_rows + height - 1u) / height;
    if index >= of_a {
        index -= of_a;
        which = 1u;
        height = THREADS / PARTS;
        while which < 3u && index >= (all_rows[which] + height - 1u) / height {
            index -= (all_rows[which] + height - 1u) / height;
            before += all_rows[which];
            which += 1u;
        }
    }
    let parts = THREADS / height;
    var at = vec2<u32>(lane / parts, lane % parts); // row of the workgroup, part of the row
    if (((params.sliced << 1u) >> which) & 1u) == 1u {
        at = vec2<u32>(lane % height, lane / height);
    }
#if {EARLY}
    let row = index * height + at.x;
    let stores = index == 0u && which == 1u;
    if which == 0u {
        multiply_a(row, at.y, parts, stores, lane);
    }
#for w in 0..{WEIGHTS}
    if which == {w}u + 1u {
        multiply_{w}(row, at.y, stores, lane);
    }
#end
#else
#if {GATED}
    make_x(lane);
#end
#if {ENDED}
    make_x(index == 0u && which == 1u, lane);
#end
    let row = index * height + at.x;
    if which == 0u {
        multiply_a(row, at.y, parts);
    }
#for w in 0..{WEIGHTS}
    if which == {w}u + 1u {
        multiply_{w}(row, at.y);
    }
#end
#end
#if {ALONE}
    if row < all_rows[which] {
        finish(which, before, row);
    }
#else
    if ROWS == 1u {
        sums[at.y * height + at.x] = one;
    } else {
        for (var t = 0u; t < ROWS; t++) {
            sums[t * THREADS + at.y * height + at.x] = acc[t];
        }
    }
    workgroupBarrier();
    // Sums eight parts at a time, eight of these sums where there are many, then the rest.
    add_eight(lane, height, 1u);
    var step = 8u;
    if parts > 64u {
        add_eight(lane, height, 8u);
        step = 64u;
    }
    let out = index * height + lane;
    if lane >= height || out >= all_rows[which] {
        return;
    }
    for (var t = 0u; t < min(ROWS, params.rows); t++) {
        var sum = 0.0;
        for (var i = 0u; i < parts; i += step) {
            sum += sums[t * THREADS + lane + i * height];
        }
        store(t, which, before + out, sum);
    }
#end
}
