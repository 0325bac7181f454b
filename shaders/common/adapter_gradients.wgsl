// Gradients of an adapter's matrices over few rows: dB += scale·dyᵀ·z of up to three B, and dA += uᵀ·x. The four subgroups of a workgroup of
// 128 threads share the rows, so that no second pass adds up parts. The wide operands come packed. There is a second B with SECOND, a third with
// THIRD, and A with OF_A. The importer has `params` with the fields of common/gradient_params, and workgroup memory: `staged`, 1536 vec4<f16>
// for rows of the thin operand, padded, and `finished`, 640 vec4<f32> for two 16×16 results per subgroup, 5 vec4s per row.
#import common/packed
#import common/thin_scale

@group(0) @binding(7) var<storage, read> z_rows: array<vec4<f32>>;         // z [T, Σ R]
#for (n, at_dy, at_factors, at_db) in (0, 8, 9, 10) (1, 11, 12, 13) (2, 14, 15, 16)
@group(0) @binding({at_dy}) var<storage, read> dy_{n}: array<vec4<f16>>;            // [N/16, T/16, 16, 16]
@group(0) @binding({at_factors}) var<storage, read> dy_factors_{n}: array<f32>;          // undoes the scaling of its rows [T]
@group(0) @binding({at_db}) var<storage, read_write> db_{n}: array<vec4<f32>>;     // [N, R]
#end
@group(0) @binding(17) var<storage, read> input: array<vec4<f16>>;         // x [K/16, T/16, 16, 16]
@group(0) @binding(18) var<storage, read> input_factors: array<f32>;       // as those of dy [T]
@group(0) @binding(19) var<storage, read> u_rows: array<vec4<f32>>;        // u [T, Σ R]
@group(0) @binding(20) var<storage, read_write> da: array<vec4<f32>>;      // [Σ R, K]

const ROWS: u32 = 256u;     // staged at a time; a subgroup takes a quarter of them
const PITCH: u32 = 6u;      // 16 columns and 8 halves, / 4

// The sum over the subgroups, in order.
fn sum_at(at: u32) -> vec4<f32> {
    return finished[at] + finished[160u + at] + finished[320u + at] + finished[480u + at];
}

#for n in 0..3
// Adds 16×16 values to dB, from row `first` and column 4·r4 on. Half of the threads have the first of two results.
fn store_{n}(first: u32, r4: u32, factor: f32, lane: u32) {
    let q = lane % 64u;
    let row = first + q / 4u;
    let across = q % 4u;
    if row < params.cols_{n} && r4 + across < params.ranks4_{n} {
        let at = lane / 64u * 80u + across * 20u + q / 16u;
        let i = q / 4u % 4u;
        let value = vec4<f32>(sum_at(at)[i], sum_at(at + 5u)[i], sum_at(at + 10u)[i], sum_at(at + 15u)[i]);
        db_{n}[row * params.ranks4_{n} + r4 + across] += params.b_scale * factor * value;
    }
}

#end
// Adds 16×16 values to dA, from row 4·r4 and column `first` on.
fn store_a(first: u32, r4: u32, factor: f32, lane: u32) {
    let q = lane % 64u;
    let row = r4 * 4u + q / 4u;
    let col4 = first / 4u + q % 4u;
    if row < params.ranks4_a * 4u && col4 * 4u < params.cols_a {
        da[row * (params.cols_a / 4u) + col4] += factor * sum_at(lane / 64u * 80u + q / 4u * 5u + q % 4u);
    }
}

#for (of, wide, factors, thin, stride) in (0, dy_0, dy_factors_0, z_rows, z_stride4) (1, dy_1, dy_factors_1, z_rows, z_stride4) (2, dy_2, dy_factors_2, z_rows, z_stride4) (a, input, input_factors, u_rows, u_stride4)
fn wide_at_{of}(row: u32, column: u32) -> u32 {
    return (column * params.tiles_{of} + min(row, (params.rows + 15u) / 16u - 1u)) * 64u;
}

// The thin operand, scaled as the wide operand's rows.
fn thin4_{of}(t: u32, col4: u32) -> vec4<f32> {
    if t >= params.rows || col4 >= params.ranks4_{of} {
        return vec4<f32>();
    }
    return {factors}[t] * {thin}[t * params.{stride} + params.offset4_{of} + col4];
}

// 16 of the thin operand's columns and 64 of the wide one's.
fn gradient_{of}(index: u32, lane: u32) {
    let across = (params.cols_{of} + 63u) / 64u;
    let column = index % across * 4u; // matrices over the wide columns
    let first4 = index / across * 4u;
    let last_column = (params.cols_{of} - 1u) / 16u;
    let quarter = lane / 32u;
    var most = vec4<f32>();
    for (var q = lane; q < params.rows * 4u; q += 128u) {
        most = max(most, abs(thin4_{of}(q / 4u, first4 + q % 4u)));
    }
    let factor = thin_scale(most, lane);
#for i in 0..4
    var c{i} = coop_mat16x16<f32, C>();
#end
    for (var t0 = 0u; t0 < params.rows; t0 += ROWS) {
        let row = t0 / 16u + quarter * 4u;
#for k in 0..4
#for i in 0..4
        let w{k}{i} = coopLoadT<coop_mat16x16<f16, B>>(&{wide}[wide_at_{of}(row + {k}u, min(column + {i}u, last_column))], 4u);
#end
#end
        workgroupBarrier();
        for (var q = lane; q < ROWS * 4u; q += 128u) {
            staged[q / 4u * PITCH + q % 4u] = vec4<f16>(thin4_{of}(t0 + q / 4u, first4 + q % 4u) / factor);
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

// The gradients of workgroup `index` of all that compute some; there may be more workgroups.
fn gradient(index: u32, lane: u32) {
    if index < params.end_0 {
        gradient_0(index, lane);
#if {SECOND}
    } else if index < params.end_1 {
        gradient_1(index - params.end_0, lane);
#end
#if {THIRD}
    } else if index < params.end_2 {
        gradient_2(index - params.end_1, lane);
#end
#if {OF_A}
    } else if index < params.end_a {
        gradient_a(index - params.end_2, lane);
#end
    }
}
