// Norms of rows that stay in registers, THREADS threads per row. Rows may come packed (shaders/pack/plain.wgsl). The importer has `params` with
// `width4`, with `x_tiles`, the stride between columns of matrices in a packed x, and with `x_blocks`, that between factors of 256 columns.
// With WARPS, a workgroup is so many subgroups of 32 lanes, whose lanes add up first; they have a row's threads beside those of the next row.
#import common/packed
#import common/rstd

#if {MATRICES}
@group(0) @binding(1) var<storage, read> x: array<vec4<f16>>;              // [D/16, T/16, 16, 16]
@group(0) @binding(8) var<storage, read> x_factors: array<f32>;            // [T], or [D/256, T]
#else
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;              // [T, D], or parts of it
#end

const ROWS: u32 = {ROWS}u;          // per workgroup
const THREADS: u32 = {THREADS}u;    // per row

var<workgroup> squares: array<f32, ROWS * THREADS>;
var<workgroup> largest: array<f32, ROWS * THREADS>;

fn source4(row: u32, c: u32) -> vec4<f32> {
#if {MATRICES}
    return x_factors[c / 64u * params.x_blocks + row] * vec4<f32>(x[packed_at(params.x_tiles, row, c)]);
#else
    return x[row * params.width4 + c];
#end
}

#if {WARPS}
// Loads of one overlap with what another computes: naga-ptx leaves `ptxas` no more registers than that.
const WORKGROUPS_AT_ONCE: u32 = 2u;

const LANES: u32 = 32u / ROWS;      // of a row in a subgroup

// A thread's place among those of all rows. Four neighbours of a row stand beside four of the next, so that a subgroup reads and writes longer
// pieces of matrices.
fn place(thread: u32) -> u32 {
    return thread / 4u % ROWS * THREADS + thread / (4u * ROWS) * 4u + thread % 4u;
}

fn sum_of_lanes(value: f32) -> f32 {
    var sum = value + subgroupShuffleXor(value, 1u);
    sum += subgroupShuffleXor(sum, 2u);
    for (var step = 4u * ROWS; step < 32u; step *= 2u) {
        sum += subgroupShuffleXor(sum, step);
    }
    return sum;
}

fn largest_of_lanes(value: f32) -> f32 {
    var most = max(value, subgroupShuffleXor(value, 1u));
    most = max(most, subgroupShuffleXor(most, 2u));
    for (var step = 4u * ROWS; step < 32u; step *= 2u) {
        most = max(most, subgroupShuffleXor(most, step));
    }
    return most;
}

// Stores the sums of squares and the largest values over the lanes of a row in each subgroup.
fn reduce_row(square: f32, most: f32, lane: u32) {
    let own_square = sum_of_lanes(square);
    let own_most = largest_of_lanes(most);
    workgroupBarrier();
    if lane % LANES == 0u {
        squares[lane / LANES] = own_square;
        largest[lane / LANES] = own_most;
    }
    workgroupBarrier();
}

// The sum of squares over the threads of a row, whose first is `leader`.
fn row_square(leader: u32) -> f32 {
    var sum = squares[leader / LANES];
    for (var i = 1u; i < {WARPS}u; i++) {
        sum += squares[leader / LANES + i];
    }
    return sum;
}

// The largest value over the threads of a row, likewise.
fn row_largest(leader: u32) -> f32 {
    var most = largest[leader / LANES];
    for (var i = 1u; i < {WARPS}u; i++) {
        most = max(most, largest[leader / LANES + i]);
    }
    return most;
}
#else
fn place(thread: u32) -> u32 {
    return thread;
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

fn row_square(leader: u32) -> f32 {
    return squares[leader];
}

fn row_largest(leader: u32) -> f32 {
    return largest[leader];
}
#end
