// The sequence of a row that belongs to none. Twin of `NO_SEQUENCE` in src/ops/cached_heads/mod.rs.
const NO_SEQUENCE: u32 = 0xFFFFFFFFu;
