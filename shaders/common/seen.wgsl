// Which keys a query sees, and which queries see a key. The importer has `params` with `rows` and `window`, `bounds`, the start and end row
// of each token's sample, and BLOCK, the keys of a block.

// The first key that a query sees; `start` is the first row of its sample.
fn first_of(query: u32, start: u32) -> u32 {
    return max(start, select(0u, query + 1u - min(params.window, query + 1u), params.window != 0u));
}

// One past the last query that sees a key.
fn end_of(key: u32) -> u32 {
    var end = bounds[key].y;
    if params.window != 0u {
        end = min(end, key + params.window);
    }
    return end;
}

// One past the last query that sees any key of the block from `key0` on.
fn end_query(key0: u32) -> u32 {
    return end_of(min(key0 + BLOCK, params.rows) - 1u);
}
