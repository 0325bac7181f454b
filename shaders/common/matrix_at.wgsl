// Where a matrix of packed rows (pack.wgsl) begins, in vec4s. The importer has `params` with rows and tiles, the matrices from one
// column of them to the next.

// Past the last row of matrices it is the last.
fn matrix_at(row: u32, column: u32) -> u32 {
    return (column * params.tiles + min(row, (params.rows - 1u) / 16u)) * 64u;
}
