// A tile of C = P·Q for 64 threads, 64 columns wide and 32·{HIGH} rows high, staged through workgroup memory 16 steps of the sum at a time.
// Each thread computes eight columns of 4·{HIGH} rows. The importer stages P `[16, ROWS]` and Q `[16, 64]` and calls tile_multiply. At the end
// its `store_row(row, col4, a, b)` gets each row: eight neighbouring columns from 4·col4 on.
// Operands have the importer's type `operand`, sums are f32.
// The accumulators have names because no known driver keeps an indexed array of them in registers.
const TILE: u32 = 64u;
const ROWS: u32 = 32u * {HIGH}u;
const STEPS: u32 = 16u;
const PITCH: u32 = 17u; // vec4s between two steps: one more than 16 spreads the banks

var<workgroup> tile_p: array<vec4<operand>, 272>;
var<workgroup> tile_q: array<vec4<operand>, 272>;
#for f in 0..{HIGH}
#for r in 0..4
var<private> c{f}{r}a: vec4<f32>;
var<private> c{f}{r}b: vec4<f32>;
#end
#end

// Stages four rows of P, four steps each: `rows[i]` holds steps 4·step4 .. of row 4·row4 + i.
fn stage_p_rows(step4: u32, row4: u32, rows: mat4x4<f32>) {
    let columns = transpose(rows);
    let at = step4 * 4u * PITCH + row4;
    tile_p[at] = vec4<operand>(columns[0]);
    tile_p[at + PITCH] = vec4<operand>(columns[1]);
    tile_p[at + 2u * PITCH] = vec4<operand>(columns[2]);
    tile_p[at + 3u * PITCH] = vec4<operand>(columns[3]);
}

// Stages four rows of Q: see stage_p_rows.
fn stage_q_rows(step4: u32, row4: u32, rows: mat4x4<f32>) {
    let columns = transpose(rows);
    let at = step4 * 4u * PITCH + row4;
    tile_q[at] = vec4<operand>(columns[0]);
    tile_q[at + PITCH] = vec4<operand>(columns[1]);
    tile_q[at + 2u * PITCH] = vec4<operand>(columns[2]);
    tile_q[at + 3u * PITCH] = vec4<operand>(columns[3]);
}

// Adds the product of the staged P and Q. All threads must call it together.
fn tile_multiply(lane: u32) {
    workgroupBarrier();
    let p_at = lane / 8u * {HIGH}u;
    let q_at = lane % 8u * 2u;
    for (var step = 0u; step < STEPS; step++) {
        let q0 = vec4<f32>(tile_q[step * PITCH + q_at]);
        let q1 = vec4<f32>(tile_q[step * PITCH + q_at + 1u]);
#for f in 0..{HIGH}
        let p{f} = vec4<f32>(tile_p[step * PITCH + p_at + {f}u]);
#for (r, c) in (0, x) (1, y) (2, z) (3, w)
        c{f}{r}a += p{f}.{c} * q0;
        c{f}{r}b += p{f}.{c} * q1;
#end
#end
    }
    workgroupBarrier();
}

// Stores up to eight neighbouring columns of a row of the importer's `result`, or adds them with `params.accumulate`; the result ends
// before column 4·`cols4`.
fn store_columns(at: u32, col4: u32, cols4: u32, a: vec4<f32>, b: vec4<f32>) {
    let left = col4 < cols4;
    let right = col4 + 1u < cols4;
    var sum_a = a;
    var sum_b = b;
    if params.accumulate == 1u && left {
        sum_a += result[at];
    }
    if params.accumulate == 1u && right {
        sum_b += result[at + 1u];
    }
    if left {
        result[at] = sum_a;
    }
    if right {
        result[at + 1u] = sum_b;
    }
}

// Calls store_row for the rows of the tile that begins at row `row0` and column 4·`col4`.
fn tile_store(row0: u32, col4: u32, lane: u32) {
    let row = row0 + lane / 8u * (4u * {HIGH}u);
    let col = col4 + lane % 8u * 2u;
#for f in 0..{HIGH}
#for r in 0..4
    store_row(row + {f}u * 4u + {r}u, col, c{f}{r}a, c{f}{r}b);
#end
#end
}
