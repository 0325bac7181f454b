// Gradients of an adapter's matrices over few rows: dB += scale·dyᵀ·z and, in the same dispatch, dA += uᵀ·x. The four subgroups of a
// workgroup share the rows, so that no second pass adds up parts. The wide operands come packed.
enable f16;
enable wgpu_cooperative_matrix;
#import common/packed

// Twin of `Params` in src/ops/lora/coop16_gradients.rs.
struct Params {
    rows: u32,          // T
    scale: f32,         // of dB
    b_groups: u32,      // workgroups of dB; those of dA follow
    b_tiles: u32,       // stride between columns of matrices in dy: T/16 or more
    b_cols: u32,        // N
    b_ranks4: u32,      // R / 4
    b_stride4: u32,     // of z
    b_offset4: u32,
    a_tiles: u32,       // as b_tiles, in x
    a_cols: u32,        // K
    a_ranks4: u32,      // Σ R / 4
    a_stride4: u32,     // of u
    a_offset4: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> dy: array<vec4<f16>>;             // [N/16, T/16, 16, 16]
@group(0) @binding(2) var<storage, read> dy_factors: array<f32>;           // undoes the scaling of its rows [T]
@group(0) @binding(3) var<storage, read> z: array<vec4<f32>>;              // [T, R]
@group(0) @binding(4) var<storage, read_write> db: array<vec4<f32>>;       // [N, R]
@group(0) @binding(5) var<storage, read> x: array<vec4<f16>>;              // [K/16, T/16, 16, 16]
@group(0) @binding(6) var<storage, read> x_factors: array<f32>;            // as those of dy [T]
@group(0) @binding(7) var<storage, read> u: array<vec4<f32>>;              // [T, Σ R]
@group(0) @binding(8) var<storage, read_write> da: array<vec4<f32>>;       // [Σ R, K]

const ROWS: u32 = 256u;     // staged at a time; a subgroup takes a quarter of them
const PITCH: u32 = 6u;      // 16 columns and 8 halves, / 4

var<workgroup> staged: array<vec4<f16>, 1536>;      // rows of the thin operand, padded
var<workgroup> finished: array<vec4<f32>, 640>;     // two 16×16 results per subgroup, 5 vec4s per row
var<workgroup> largest: array<f32, 128>;

// A power of two above every value of the thin operand. Rows that f16 rounds to zero beside it do not matter in the sum.
fn scale_of(most: vec4<f32>, lane: u32) -> f32 {
    largest[lane] = most4(most);
    for (var step = 64u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if lane < step {
            largest[lane] = max(largest[lane], largest[lane + step]);
        }
    }
    workgroupBarrier();
    return undoing(exponent(largest[0]));
}

// The sum over the subgroups, in order.
fn sum_at(at: u32) -> vec4<f32> {
    return finished[at] + finished[160u + at] + finished[320u + at] + finished[480u + at];
}

// Adds 16×16 values to dB, from row `n` and column 4·r4 on. Half of the threads have the first of two results.
fn store_b(n: u32, r4: u32, factor: f32, lane: u32) {
    let q = lane % 64u;
    let row = n + q / 4u;
    let across = q % 4u;
    if row < params.b_cols && r4 + across < params.b_ranks4 {
        let at = lane / 64u * 80u + across * 20u + q / 16u;
        let i = q / 4u % 4u;
        let value = vec4<f32>(sum_at(at)[i], sum_at(at + 5u)[i], sum_at(at + 10u)[i], sum_at(at + 15u)[i]);
        db[row * params.b_ranks4 + r4 + across] += params.scale * factor * value;
    }
}

// Adds 16×16 values to dA, from row 4·r4 and column `n` on.
fn store_a(n: u32, r4: u32, factor: f32, lane: u32) {
    let q = lane % 64u;
    let row = r4 * 4u + q / 4u;
    let col4 = n / 4u + q % 4u;
    if row < params.a_ranks4 * 4u && col4 * 4u < params.a_cols {
        da[row * (params.a_cols / 4u) + col4] += factor * sum_at(lane / 64u * 80u + q / 4u * 5u + q % 4u);
    }
}

#for (of, wide, factors, thin) in (b, dy, dy_factors, z) (a, x, x_factors, u)
fn {of}_at(row: u32, column: u32) -> u32 {
    return (column * params.{of}_tiles + min(row, (params.rows + 15u) / 16u - 1u)) * 64u;
}

// The thin operand, scaled as the wide operand's rows.
fn {of}_thin4(t: u32, col4: u32) -> vec4<f32> {
    if t >= params.rows || col4 >= params.{of}_ranks4 {
        return vec4<f32>();
    }
    return {factors}[t] * {thin}[t * params.{of}_stride4 + params.{of}_offset4 + col4];
}

// 16 of the thin operand's columns and 64 of the wide one's.
fn gradient_{of}(index: u32, lane: u32) {
    let across = (params.{of}_cols + 63u) / 64u;
    let column = index % across * 4u; // matrices over the wide columns
    let first4 = index / across * 4u;
    let last_column = (params.{of}_cols - 1u) / 16u;
    let quarter = lane / 32u;
    var most = vec4<f32>();
    for (var q = lane; q < params.rows * 4u; q += 128u) {
        most = max(most, abs({of}_thin4(q / 4u, first4 + q % 4u)));
    }
    let factor = scale_of(most, lane);
#for i in 0..4
    var c{i} = coop_mat16x16<f32, C>();
#end
    for (var t0 = 0u; t0 < params.rows; t0 += ROWS) {
        let row = t0 / 16u + quarter * 4u;
#for k in 0..4
#for i in 0..4
        let w{k}{i} = coopLoadT<coop_mat16x16<f16, B>>(&{wide}[{of}_at(row + {k}u, min(column + {i}u, last_column))], 4u);
#end
#end
        workgroupBarrier();
        for (var q = lane; q < ROWS * 4u; q += 128u) {
            staged[q / 4u * PITCH + q % 4u] = vec4<f16>({of}_thin4(t0 + q / 4u, first4 + q % 4u) / factor);
        }
        workgroupBarrier();
#for k in 0..4
        let t{k} = coopLoad<coop_mat16x16<f16, A>>(&staged[(quarter * 64u + {k}u * 16u) * PITCH], PITCH);
#for i in 0..4
        c{i} = coopMultiplyAdd(t{k}, w{k}{i}, c{i});
#end
#end
    }
    let at = quarter * 160u;
    let behind = at + 80u; // a name of its own: naga does not evaluate what it finds within coopStoreT
    let pitch = 5u;
#for (first, second) in (0, 1) (2, 3)
    workgroupBarrier();
    let v{first} = c{first};
    let v{second} = c{second};
    coopStoreT(v{first}, &finished[at], pitch);
    coopStoreT(v{second}, &finished[behind], pitch);
    workgroupBarrier();
    store_{of}((column + {first}u + lane / 64u) * 16u, first4, factor, lane);
#end
}

#end
@compute @workgroup_size(128)
fn both(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    if group.x < params.b_groups {
        gradient_b(group.x, lane);
    } else {
        gradient_a(group.x - params.b_groups, lane);
    }
}

@compute @workgroup_size(128)
fn of_b(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    gradient_b(group.x, lane);
}
