// A part of attention's backward: some blocks of 128 keys, each with the same number of blocks of queries, which begin `offset` blocks after
// it. Its weights and score gradients are [H, blocks of keys, blocks of queries, 8, 8, 16, 16]: keys by 16, queries by 16, matrices with a key
// per row. The importer has `params` and `bounds`.
#import common/seen

// Twin of `Params` in src/ops/attention/coop16_backward.rs.
struct Params {
    rows: u32,          // T
    tiles: u32,         // stride between columns of matrices: T/16 or more
    heads: u32,         // H
    kv_heads: u32,      // G
    window: u32,        // 0: none
    first_key: u32,     // first block of keys of the part
    end_key: u32,
    offset: u32,        // in blocks
    blocks: u32,        // blocks of queries per block of keys
    scale: f32,         // undoes the scale of the operands
}

const BLOCK: u32 = 128u;
