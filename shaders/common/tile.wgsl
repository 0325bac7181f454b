// A 64×64 tile of C = P·Q for 64 threads, 8×8 per thread, staged through workgroup memory 16 steps of the sum at a time. The importer
// stages P `[16, 64]` and Q `[16, 64]` and calls tile_multiply. At the end its `store_row(row, col4, a, b)` gets each row: eight neighbouring
// columns from 4·col4 on.
// Operands have the importer's type `operand`, sums are f32.
// The accumulators have names because no known driver keeps an indexed array of them in registers.
const TILE: u32 = 64u;
const STEPS: u32 = 16u;
const PITCH: u32 = 17u; // vec4s between two steps: one more than 16 spreads the banks

var<workgroup> tile_p: array<vec4<operand>, 272>;
var<workgroup> tile_q: array<vec4<operand>, 272>;
var<private> c0a: vec4<f32>;
var<private> c0b: vec4<f32>;
var<private> c1a: vec4<f32>;
var<private> c1b: vec4<f32>;
var<private> c2a: vec4<f32>;
var<private> c2b: vec4<f32>;
var<private> c3a: vec4<f32>;
var<private> c3b: vec4<f32>;
var<private> c4a: vec4<f32>;
var<private> c4b: vec4<f32>;
var<private> c5a: vec4<f32>;
var<private> c5b: vec4<f32>;
var<private> c6a: vec4<f32>;
var<private> c6b: vec4<f32>;
var<private> c7a: vec4<f32>;
var<private> c7b: vec4<f32>;

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
    let p_at = lane / 8u * 2u;
    let q_at = lane % 8u * 2u;
    for (var step = 0u; step < STEPS; step++) {
        let p0 = vec4<f32>(tile_p[step * PITCH + p_at]);
        let p1 = vec4<f32>(tile_p[step * PITCH + p_at + 1u]);
        let q0 = vec4<f32>(tile_q[step * PITCH + q_at]);
        let q1 = vec4<f32>(tile_q[step * PITCH + q_at + 1u]);
        c0a += p0.x * q0;
        c0b += p0.x * q1;
        c1a += p0.y * q0;
        c1b += p0.y * q1;
        c2a += p0.z * q0;
        c2b += p0.z * q1;
        c3a += p0.w * q0;
        c3b += p0.w * q1;
        c4a += p1.x * q0;
        c4b += p1.x * q1;
        c5a += p1.y * q0;
        c5b += p1.y * q1;
        c6a += p1.z * q0;
        c6b += p1.z * q1;
        c7a += p1.w * q0;
        c7b += p1.w * q1;
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
    let row = row0 + lane / 8u * 8u;
    let col = col4 + lane % 8u * 2u;
    store_row(row + 0u, col, c0a, c0b);
    store_row(row + 1u, col, c1a, c1b);
    store_row(row + 2u, col, c2a, c2b);
    store_row(row + 3u, col, c3a, c3b);
    store_row(row + 4u, col, c4a, c4b);
    store_row(row + 5u, col, c5a, c5b);
    store_row(row + 6u, col, c6a, c6b);
    store_row(row + 7u, col, c7a, c7b);
}
