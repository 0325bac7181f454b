// The numbers of both kernels of products, project.cu and project-staged.cu.
#pragma once
#include "parts.cuh"

// Twin of the buffers and of `Project` in src/ops/lora/cuda.rs.
struct Project {
    const char* wide;           // x or dy
    const float* factors;       // undoes the scaling of its rows [T]
    const float* thin;          // A [R, K] or B [K, R]
    float* y;                   // z or u [T, y_stride]
    __half* packed;             // likewise, [R/16, T/16, 16, 16], scaled as the rows of the wide operand
    float* parts;               // of the blocks' sums
    uint32_t* arrivals;         // finished parts of each sum; 0 before and after
    uint32_t rows;              // T
    uint32_t summed;            // K, a multiple of 4
    uint32_t columns;           // R, a multiple of 4
    uint32_t tiles;             // from one column of the wide operand's tiles to the next
    uint32_t thin_stride;
    uint32_t y_stride;
    uint32_t packed_tiles;
    uint32_t part_steps;        // sixteenths of the sum of a block
    float scale;
};
