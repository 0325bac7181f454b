// Gradients of an adapter's matrices on cooperative matrices, dA += uᵀ·x and dB += scale·dyᵀ·z, with sums in parts. The wide operand (x or
// dy) comes packed and is read as matrices straight from memory.
enable f16;
enable wgpu_cooperative_matrix;
#import common/packed
#import common/thin_scale

// Twin of `Params` in src/ops/lora/coop16.rs.
struct Params {
    rows: u32,          // T
    tiles: u32,         // stride between columns of matrices: T/16 or more
    wide_cols: u32,     // columns of the wide operand
    thin_cols4: u32,    // columns of the thin one, / 4
    thin_stride4: u32,  // of z or u
    thin_offset4: u32,
    y_stride4: u32,     // of the gradient
    y_offset4: u32,
    scale: f32,
    part_steps: u32,    // steps of the sum per part; part i, group.z, writes result[i]
    accumulate: u32,    // 1: add to the result; 0 for parts
    transposed: u32,    // whether the gradient's rows are the wide operand's columns
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> wide: array<vec4<f16>>;       // [K/16, T/16, 16, 16]
@group(0) @binding(2) var<storage, read> factors: array<f32>;          // undoes the scaling of its rows [T]
@group(0) @binding(3) var<storage, read> thin: array<vec4<f32>>;       // z or u [T, R]
@group(0) @binding(4) var<storage, read_write> result: array<vec4<f32>>;

const THIN4: u32 = {COLUMNS}u * 4u;         // columns of the thin operand that a workgroup takes, / 4
const THIN_PITCH: u32 = THIN4 + 2u;

var<workgroup> staged: array<vec4<f16>, 1152>;      // 64 rows of at most 64 columns, padded
var<workgroup> finished: array<vec4<f32>, 320>;     // 16×16 results per subgroup, 5 vec4s per row

fn wide_at(row: u32, column: u32) -> u32 {
    return (column * params.tiles + min(row, (params.rows + 15u) / 16u - 1u)) * 64u;
}

fn write(at: u32, value: vec4<f32>) {
    var sum = value;
    if params.accumulate == 1u {
        sum += result[at];
    }
    result[at] = sum;
}

// z or u, scaled as the wide operand's rows.
fn thin4(t: u32, col4: u32) -> vec4<f32> {
    if t >= params.rows || col4 >= params.thin_cols4 {
        return vec4<f32>();
    }
    return factors[t] * thin[t * params.thin_stride4 + params.thin_offset4 + col4];
}

// The scale of this part's thin operand.
fn part_scale(first: u32, end: u32, first4: u32, lane: u32) -> f32 {
    var most = vec4<f32>();
    for (var q = lane; q < (end - first) * THIN4; q += 128u) {
        most = max(most, abs(thin4(first + q / THIN4, first4 + q % THIN4)));
    }
    return thin_scale(most, lane);
}

// Stores 16×16 values of a gradient, from row 4·row4 and column 4·col4 on.
fn store_gradient(part: u32, row4: u32, col4: u32, factor: f32, lane: u32) {
    let at = lane / 32u * 80u;
    for (var q = lane % 32u; q < 64u; q += 32u) {
        let across = q % 4u;
        if params.transposed == 1u {
            let n = col4 * 4u + q / 4u;
            if n < params.wide_cols && row4 + across < params.thin_cols4 {
                let start = at + across * 20u + q / 16u;
                let i = q / 4u % 4u;
                let value = vec4<f32>(finished[start][i], finished[start + 5u][i], finished[start + 10u][i], finished[start + 15u][i]);
                write((part * params.wide_cols + n) * params.y_stride4 + params.y_offset4 + row4 + across, factor * value);
            }
        } else {
            let r = row4 * 4u + q / 4u;
            if r < params.thin_cols4 * 4u && (col4 + across) * 4u < params.wide_cols {
                let value = finished[at + q / 4u * 5u + across];
                write((part * params.thin_cols4 * 4u + r) * params.y_stride4 + params.y_offset4 + col4 + across, factor * value);
            }
        }
    }
}

// dW = scale·thinᵀ·wide: 16·COLUMNS rows and 256 columns per workgroup, 64 columns per subgroup.
@compute @workgroup_size(128)
fn gradient(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first4 = group.y * THIN4;
    let column = group.x * 16u + lane / 32u * 4u; // matrices over the wide columns
    let last_column = (params.wide_cols - 1u) / 16u;
    let first = group.z * params.part_steps * 64u;
    let end = max(first, min(first + params.part_steps * 64u, params.rows));
    let factor = part_scale(first, end, first4, lane);
#for j in 0..{COLUMNS}
#for i in 0..4
    var c{j}{i} = coop_mat16x16<f32, C>();
#end
#end
    for (var t0 = first; t0 < end; t0 += 64u) {
#for k in 0..4
#for i in 0..4
        let x{k}{i} = coopLoadT<coop_mat16x16<f16, B>>(&wide[wide_at(t0 / 16u + {k}u, min(column + {i}u, last_column))], 4u);
#end
#end
        workgroupBarrier();
        for (var q = lane; q < THIN4 * 64u; q += 128u) {
            staged[q / THIN4 * THIN_PITCH + q % THIN4] = vec4<f16>(thin4(t0 + q / THIN4, first4 + q % THIN4) / factor);
        }
        workgroupBarrier();
#for k in 0..4
#for j in 0..{COLUMNS}
        let u{k}{j} = coopLoad<coop_mat16x16<f16, A>>(&staged[{k}u * 16u * THIN_PITCH + {j}u * 4u], THIN_PITCH);
#end
#for j in 0..{COLUMNS}
#for i in 0..4
        c{j}{i} = coopMultiplyAdd(u{k}{j}, x{k}{i}, c{j}{i});
#end
#end
#end
    }
    let at = lane / 32u * 80u;
    let pitch = 5u;
#for j in 0..{COLUMNS}
#for i in 0..4
    workgroupBarrier();
    let v{j}{i} = c{j}{i};
    coopStoreT(v{j}{i}, &finished[at], pitch);
    workgroupBarrier();
    store_gradient(group.z, first4 + {j}u * 4u, (column + {i}u) * 4u, factor * params.scale, lane);
#end
#end
}
