// A part of attention's backward: some blocks of 128 keys, each with as many blocks of queries, from `offset` blocks behind itself on.
// What is left of it is [H, blocks of keys, blocks of queries, 8, 8, 16, 16]: keys by 16, queries by 16, matrices with a key a row.
// The importer binds `params` and `bounds`.
#import common/seen

// Twin of `Params` in src/ops/attention/coop16_backward.rs.
struct Params {
    rows: u32,          // T
    tiles: u32,         // matrices from one column of them to the next: T/16 or more
    heads: u32,         // H
    kv_heads: u32,      // G
    window: u32,        // 0: none
    first_key: u32,     // of the part, in blocks
    end_key: u32,
    offset: u32,        // in blocks
    blocks: u32,        // of queries for one of keys
    scale: f32,         // what undoes that of the operands
}

const BLOCK: u32 = 128u;
