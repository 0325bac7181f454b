// Norms of rows that stay in registers, 64 threads per row. Rows may come packed (shaders/pack/plain.wgsl). The importer has `params` with
// `width4`, with `x_tiles`, the stride between columns of matrices in a packed x, and with `x_blocks`, that between factors of 256 columns.
#import common/packed
#import common/rstd

#if {MATRICES}
@group(0) @binding(1) var<storage, read> x: array<vec4<f16>>;              // [D/16, T/16, 16, 16]
@group(0) @binding(8) var<storage, read> x_factors: array<f32>;            // [T], or [D/256, T]
#else
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;              // [T, D], or parts of it
#end

const ROWS: u32 = 4u;       // per workgroup
const THREADS: u32 = 64u;   // per row

var<workgroup> squares: array<f32, 256>;
var<workgroup> largest: array<f32, 256>;

fn source4(row: u32, c: u32) -> vec4<f32> {
#if {MATRICES}
    return x_factors[c / 64u * params.x_blocks + row] * vec4<f32>(x[packed_at(params.x_tiles, row, c)]);
#else
    return x[row * params.width4 + c];
#end
}

// Stores the sum of squares and the largest value over the threads of a row in the place of the row's first thread.
fn reduce_row(square: f32, most: f32, lane: u32) {
    workgroupBarrier();
    squares[lane] = square;
    largest[lane] = most;
    for (var step = THREADS / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if lane % THREADS < step {
            squares[lane] += squares[lane + step];
            largest[lane] = max(largest[lane], largest[lane + step]);
        }
    }
    workgroupBarrier();
}
