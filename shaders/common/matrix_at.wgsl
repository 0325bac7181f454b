// The first vec4 of a matrix of packed rows (shaders/pack/plain.wgsl). The importer has `params` with `rows` and `tiles`, the stride between
// columns of matrices.

// A row past the last matrices reads the last one.
fn matrix_at(row: u32, column: u32) -> u32 {
    return (column * params.tiles + min(row, (params.rows - 1u) / 16u)) * 64u;
}
