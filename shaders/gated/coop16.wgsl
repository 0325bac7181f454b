// The gated unit of shaders/gated/plain.wgsl, packed as operands of products on cooperative matrices (shaders/pack/plain.wgsl). A workgroup
// takes a row and keeps it in registers, EACH vec4s per thread, until its largest value is known. Forward may round gate and up as packing does
// (ROUNDED), and store the result for backward: tiles.wgsl reads that. Backward writes the gradients in their place.
enable f16;
#import common/gated_bound
#import common/packed

// Twin of `Params` in src/ops/gated/coop16.rs.
struct Params {
    rows: u32,      // T
    tiles: u32,     // stride between columns of matrices: T/16 or more
    cols4: u32,     // F / 4
    packed4: u32,   // columns to write, / 4: F rounded up to 64
    x_tiles: u32,   // as tiles, of rounded gate and up
    stored: u32,    // 1: store rounded gate and up
    blocks: u32,    // factors of a row of these
    stride: u32,    // floats from one factor of a row to the next; 0 where it has one
    own: u32,       // the first of the factors of gradients, behind those of gate and of up
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> gate: array<vec4<f32>>;               // [T, F]
@group(0) @binding(2) var<storage, read> up: array<vec4<f32>>;                 // [T, F]
#if {ROUNDED}
@group(0) @binding(8) var<storage, read_write> gate_factors: array<f32>;       // [blocks, T]
@group(0) @binding(9) var<storage, read_write> up_factors: array<f32>;         // [blocks, T]
@group(0) @binding(10) var<storage, read_write> gate_tiles: array<vec4<f16>>;  // [F/16, T/16, 16, 16]
@group(0) @binding(11) var<storage, read_write> up_tiles: array<vec4<f16>>;    // [F/16, T/16, 16, 16]
#end
@group(0) @binding(3) var<storage, read> dy: array<vec4<f32>>;                 // [T, F]
@group(0) @binding(4) var<storage, read_write> first: array<vec4<f16>>;        // y, or gate and dgate [F/16, T/16, 16, 16]
@group(0) @binding(5) var<storage, read_write> first_factors: array<f32>;      // [T], or of gate [blocks, T], then of dgate [T]
@group(0) @binding(6) var<storage, read_write> second: array<vec4<f16>>;       // up and dup [F/16, T/16, 16, 16]
@group(0) @binding(7) var<storage, read_write> second_factors: array<f32>;     // [blocks, T], then [T]

const THREADS: u32 = {THREADS}u;

var<workgroup> largest: array<vec2<f32>, {THREADS}>;

// The largest of each component over the workgroup.
fn row_largest(most: vec2<f32>, lane: u32) -> vec2<f32> {
    workgroupBarrier();
    largest[lane] = most;
    for (var step = THREADS / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if lane < step {
            largest[lane] = max(largest[lane], largest[lane + step]);
        }
    }
    workgroupBarrier();
    return largest[0];
}

// Stores vec4 c of a row; zeros fill the columns up to the next multiple of 64.
fn write_first(row: u32, c: u32, value: vec4<f32>) {
    if c < params.packed4 {
        first[packed_at(params.tiles, row, c)] = vec4<f16>(value);
    }
}

fn write_second(row: u32, c: u32, value: vec4<f32>) {
    if c < params.packed4 {
        second[packed_at(params.tiles, row, c)] = vec4<f16>(value);
    }
}

@compute @workgroup_size({THREADS})
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x + group.y * groups.x;
    if row >= (params.rows + 15u) / 16u * 16u {
        return;
    }
    let token = min(row, params.rows - 1u);
    let end = select(0u, params.cols4, row < params.rows);
#for i in 0..{EACH}
    let c{i} = lane + {i}u * THREADS;
    let read{i} = min(c{i}, params.cols4 - 1u);
    var g{i} = gate[token * params.cols4 + read{i}];
    var u{i} = up[token * params.cols4 + read{i}];
#end
#if {ROUNDED}
    var most_read = vec2<f32>();
#for i in 0..{EACH}
    most_read = max(most_read, select(vec2<f32>(), vec2<f32>(most4(g{i}), most4(u{i})), c{i} < end));
#end
    most_read = row_largest(most_read, lane);
    let gate_e = exponent(most_read.x);
    let up_e = exponent(most_read.y);
    let is_stored = params.stored == 1u && row < params.rows;
    let zero = params.rows >> 31u;
    if is_stored && lane < params.blocks {
        gate_factors[lane * params.stride + row] = undoing(gate_e);
        up_factors[lane * params.stride + row] = undoing(up_e);
    }
#for i in 0..{EACH}
    let half_g{i} = rounded4(scaling(gate_e) * g{i}, zero);
    let half_u{i} = rounded4(scaling(up_e) * u{i}, zero);
    if is_stored && c{i} < end {
        gate_tiles[packed_at(params.x_tiles, row, c{i})] = vec4<f16>(half_g{i});
        up_tiles[packed_at(params.x_tiles, row, c{i})] = vec4<f16>(half_u{i});
    }
    g{i} = undoing(gate_e) * half_g{i};
    u{i} = undoing(up_e) * half_u{i};
#end
#end
#for i in 0..{EACH}
    let y{i} = select(vec4<f32>(), activation4(g{i}) * value4(u{i}), c{i} < end);
#end
#if {ROUNDED}
    let factor = factor_of(power_of_gate(undoing(gate_e)) + power_of_up(undoing(up_e)), ROOM);
#else
    var most = 0.0;
#for i in 0..{EACH}
    most = max(most, most4(y{i}));
#end
    let factor = undoing(exponent(row_largest(vec2<f32>(most), lane).x));
#end
    if lane == 0u && row < params.rows {
        first_factors[row] = factor;
    }
    let scale = inverse(factor);
#for i in 0..{EACH}
    write_first(row, c{i}, scale * y{i});
#end
}

// dgate = dy·up·activation′(gate), dup = dy·activation(gate). The barriers of the largest value lie between the reads of a row and its writes.
@compute @workgroup_size({THREADS})
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x + group.y * groups.x;
    if row >= (params.rows + 15u) / 16u * 16u {
        return;
    }
    let token = min(row, params.rows - 1u);
    let end = select(0u, params.cols4, row < params.rows);
    var most = vec2<f32>();
#for i in 0..{EACH}
    let c{i} = lane + {i}u * THREADS;
    let read{i} = min(c{i}, params.cols4 - 1u);
    let d{i} = dy[token * params.cols4 + read{i}];
    let g{i} = first_factors[read{i} / 64u * params.stride + token] * vec4<f32>(first[packed_at(params.tiles, token, read{i})]);
    let u{i} = second_factors[read{i} / 64u * params.stride + token] * vec4<f32>(second[packed_at(params.tiles, token, read{i})]);
#end
#for i in 0..{EACH}
    let dgate{i} = select(vec4<f32>(), d{i} * value4(u{i}) * derivative4(g{i}), c{i} < end);
    let dup{i} = select(vec4<f32>(), d{i} * activation4(g{i}) * passes4(u{i}), c{i} < end);
    most = max(most, vec2<f32>(most4(dgate{i}), most4(dup{i})));
#end
    storageBarrier();
    most = row_largest(most, lane);
    let e = vec2<u32>(exponent(most.x), exponent(most.y));
    if lane == 0u && row < params.rows {
        first_factors[params.own + row] = undoing(e.x);
        second_factors[params.own + row] = undoing(e.y);
    }
    let scale = vec2<f32>(scaling(e.x), scaling(e.y));
#for i in 0..{EACH}
    write_first(row, c{i}, scale.x * dgate{i});
    write_second(row, c{i}, scale.y * dup{i});
#end
}
