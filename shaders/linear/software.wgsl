// shaders/linear/tiled.wgsl for a software renderer. Tiles have 4·{LANES} rows of the result; forward, they have 4·{LANES} columns, backward
// 32 columns (a slice of each row of W).
#import weight
#import common/product
#import common/simd

#for v in 0..4
var<private> row{v}: u32;
var<private> x{v}: vec4<f32>; // forward: four values of x
#for q in 0..{QUADS}
var<private> dy{v}_{q}: vec4<f32>; // backward: values of dy, at the columns that the lanes have rows of W for
#for g in 0..4
var<private> y{v}_{g}_{q}: vec4<f32>;
#end
#end
#for c in 0..8
var<private> dx{v}_{c}: vec4<f32>;
#end
#end

fn store(row: u32, col4: u32, sum: vec4<f32>) {
    if row >= params.rows || col4 >= params.cols4 {
        return;
    }
    let at = row * params.y_stride4 + params.y_offset4 + col4;
    if params.accumulate == 1u {
        result[at] += sum;
    } else {
        result[at] = sum;
    }
}

// Stores four columns of y; those past the last row of W are zero.
fn store_columns(row: u32, col: u32, sum: vec4<f32>) {
    let there = col + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(params.weight_rows);
    store(row, col / 4u, select(vec4<f32>(), sum, there));
}

fn choose_rows(group: u32, lane: u32) {
#for v in 0..4
    row{v} = group * 4u * {LANES}u + {v}u * {LANES}u + lane;
#end
}

// y += x·wᵀ: `w` are four values of the rows of W that group {g} of the tile's columns stands for.
#for g in 0..4
fn multiply_{g}(w: vec4<f32>) {
#for q in 0..{QUADS}
    let w{q} = rows_{q}(w);
#for v in 0..4
    y{v}_{g}_{q} += x{v} * w{q};
#end
#end
}

#end
@compute @workgroup_size({LANES})
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    choose_rows(group.y, lane);
    let col0 = group.x * 4u * {LANES}u;
    let cols4 = params.weight_cols / 4u;
#for g in 0..4
    let n{g} = min(col0 + {g}u * {LANES}u + lane, params.weight_rows - 1u);
#end
    for (var slice = 0u; slice * 8u < cols4; slice++) {
#for g in 0..4
        let slice{g} = load_slice(n{g}, slice);
        let factors{g} = slice_factors(slice{g});
#end
        for (var c = 0u; c < 8u; c++) {
#for v in 0..4
            x{v} = params.scale * x4(row{v}, slice * 8u + c, cols4);
#end
#for g in 0..4
            multiply_{g}(slice4(slice{g}, factors{g}, c));
#end
        }
    }
    for (var r4 = 0u; r4 < params.rank4; r4++) {
#for v in 0..4
        x{v} = z4(row{v}, r4);
#end
#for g in 0..4
        multiply_{g}(b4(n{g}, r4));
#end
    }
#for v in 0..4
#for g in 0..4
#for q in 0..{QUADS}
    store_columns(row{v}, col0 + {g}u * {LANES}u + {q}u * 4u, y{v}_{g}_{q});
#end
#end
#end
}

// dx += dy·w: `w` are columns {c} of the slices of W that the lanes have.
#for c in 0..8
fn multiply_back_{c}(w: vec4<f32>) {
#for q in 0..{QUADS}
    let w{q} = rows_{q}(w);
#for v in 0..4
    dx{v}_{c} += w{q} * dy{v}_{q};
#end
#end
}

#end
// dx = dy·W + u·A
@compute @workgroup_size({LANES})
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    choose_rows(group.y, lane);
    let col4 = group.x * 8u;
    let rows4 = (params.weight_rows + 3u) / 4u;
    for (var n = 0u; n < params.weight_rows; n += {LANES}u) {
#for v in 0..4
#for q in 0..{QUADS}
        dy{v}_{q} = params.scale * x4(row{v}, n / 4u + {q}u, rows4);
#end
#end
        let slice = load_slice(min(n + lane, params.weight_rows - 1u), group.x);
        let factors = slice_factors(slice);
#for c in 0..8
        multiply_back_{c}(slice4(slice, factors, {c}u));
#end
    }
    for (var r = 0u; r < params.rank4 * 4u; r += {LANES}u) {
#for v in 0..4
#for q in 0..{QUADS}
        dy{v}_{q} = z4(row{v}, r / 4u + {q}u);
#end
#end
#for c in 0..8
        multiply_back_{c}(a4(r + lane, col4 + {c}u));
#end
    }
#for v in 0..4
#for c in 0..8
    store(row{v}, col4 + {c}u, dx{v}_{c});
#end
#end
}
