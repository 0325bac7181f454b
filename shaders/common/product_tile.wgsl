// The part of a product that a workgroup computes, with or without rows that are grouped by expert.
struct Tile {
    first_row: u32,     // of W
    rows: u32,          // of W: N
    first_column: u32,  // of the result
    part: u32,          // of the sum
    part_steps: u32,    // 0 with a part that is not the first: nothing, because returns must be uniform for later barriers
}

const NONE: u32 = 0xffffffffu;
