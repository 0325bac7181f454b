// Where a matrix of packed rows (shaders/pack/plain.wgsl) begins, in vec4s. The importer has `params` with `rows` and `tiles`, the stride between
// columns of matrices.

// Past the last row of matrices it is that of the last one.
fn matrix_at(row: u32, column: u32) -> u32 {
    return (column * params.tiles + min(row, (params.rows - 1u) / 16u)) * 64u;
}
