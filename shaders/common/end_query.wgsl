// Which queries attention's backward visits for a block of keys. The importer has `params` with rows and window, `bounds`, the start
// and end row of each token's sample, and BLOCK, the keys of a block.

// One past the last query that sees any key of the block from `key0` on.
fn end_query(key0: u32) -> u32 {
    let last = min(key0 + BLOCK, params.rows) - 1u;
    var end = bounds[last].y;
    if params.window != 0u {
        end = min(end, last + params.window);
    }
    return end;
}
