// The parameter of the kernels of backward.
#pragma once
#include "parts.cuh"

// Twin of the launches in src/ops/delta/cuda.rs.
struct Backward {
    Net net;
    const __half* keys;     // queries, keys [T, 2, Hk, K]
    const __half* w;        // [T, Hv, K]
    const __half* u;        // by 16 columns of a chunk, scaled [T, Hv, K]
    const __half* inverse;  // [T, Hv, 64]
    const __half* scores;   // [T, Hv, 64]
    const __half* states;   // before each chunk, by 16 rows, scaled [N, Hv, columns, rows]
    const float* scales;    // factors that undo the scaling of states and of U [N, Hv, 2, 8]
    const float* dout;      // of O [T, Hv, K]
    __half* r;              // by 16 columns of a chunk, scaled [T, Hv, K]
    __half* dstates;        // behind each chunk, like states
    float* dscales;         // factors that undo the scaling of dstates and of R [N, Hv, 2, 8]
    float* dmixed;          // of queries, keys, values by value head [T, 3, Hv, K]
    float* dsums;           // of the sums of decays' logarithms [T, Hv], rows of a multiple of 4
    float* dbeta;           // of σ⁻¹(rate), likewise
    Sizes sizes;
    __device__ float* mixed_at(uint32_t t, uint32_t part, uint32_t head) const {
        return dmixed + ((size_t)(t * 3 + part) * sizes.value_heads + head) * HEAD;
    }
};
