// y = factors·(x·Wᵀ + z·Bᵀ), and its mirror dx = factors·(dy·W + u·A), by the matrix instructions of NVIDIA's GPUs: with one matrix
// (whole.cu), or with that of each row's expert (grouped.cu). A block computes 256 columns of y for 128 tokens at a time.
//
// MATRICES is wgmma.cuh, for compute capability 9.0, or mma.cuh, for 8.0 and newer.
#pragma once
#include <stdint.h>
#include "../../common/cuda/launches.cuh"

// Twin of the buffers of a product in src/ops/linear/cuda/mod.rs.
struct Operands {
    const char* x;          // x or dy [K/16, T/16, 16, 16], f16
    const char* z;          // z or u, likewise
    const char* w;          // panels of W or Wᵀ (shaders/linear/panels.wgsl)
    const char* low;        // panels of B or Aᵀ
    const float* factors;   // undoes the scaling of the rows of x and z [T]
    float* y;               // [T, stride]
};

// Twin of `Numbers` in src/ops/linear/cuda/mod.rs.
struct Numbers {
    uint32_t rows;          // T
    uint32_t columns;       // of y, a multiple of 4
    uint32_t stride;        // floats from one row of y to the next
    uint32_t steps;         // sixteenths of K
    uint32_t low_steps;     // sixteenths of the rank
    uint32_t tiles;         // matrices from one column of x's to the next
    uint32_t z_tiles;
    uint32_t accumulate;    // 1: add to y
    uint32_t part_stages;   // stages in one part of the sum
    uint32_t parts;         // results of y's shape, one behind the other
};

constexpr int COLUMNS = 256, TOKENS = 128, SLICES = 4;
constexpr int SLICE = TOKENS * 32, PANEL = 64 * 128;        // bytes of 16 steps of x, and of 64 steps of 64 columns of W
constexpr uint32_t NONE = ~0u;

// Copies the first bytes of 16, and zeros behind them.
__device__ __forceinline__ void copy(uint32_t to, const char* from, uint32_t bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// 128 tokens and 256 columns of y, and the stages of their sums. What lists the tiles of a product knows the row of x that belongs to a row
// of y too (`source`, or NONE), and whether these differ (`GATHERS`).
struct Tile {
    uint32_t column, token, rows;   // the rows of y end before `rows`
    uint32_t part, first, end;      // part of the sum, and its stages
    uint32_t matrix;                // whose panels it reads
};

// 64 steps of the operands: of x and W, or of z and B.
struct Stage {
    const char *x, *w;
    uint32_t tiles;                 // matrices from one column of x's to the next
    uint32_t slice, valid;          // the first slice, and the slices that there are
    uint32_t index, count;          // among the stages of its operands
    bool low;
    __device__ __forceinline__ Stage(const Operands& o, const Numbers& n, uint32_t i) {
        uint32_t stages = (n.steps + SLICES - 1) / SLICES, low_stages = (n.low_steps + SLICES - 1) / SLICES;
        low = i >= stages;
        x = low ? o.z : o.x, w = low ? o.low : o.w, tiles = low ? n.z_tiles : n.tiles;
        index = low ? i - stages : i, count = low ? low_stages : stages, slice = index * SLICES;
        valid = min((low ? n.low_steps : n.steps) - slice, (uint32_t)SLICES);
    }
};

// The stages of a product's sum.
__device__ __forceinline__ uint32_t all_stages(const Numbers& n) {
    return (n.steps + SLICES - 1) / SLICES + (n.low_steps + SLICES - 1) / SLICES;
}

// Four neighbouring results of a token. A lane has two of `first` and two of `second`, groups of eight columns; an even lane gets those of
// `first` and an odd one those of `second`, by exchange with the lane beside it.
__device__ __forceinline__ float4 neighbours(float2 first, float2 second) {
    bool odd = threadIdx.x & 1;
    float2 own = odd ? second : first, other = odd ? first : second;
    other.x = __shfl_xor_sync(~0u, other.x, 1), other.y = __shfl_xor_sync(~0u, other.y, 1);
    return odd ? float4{other.x, other.y, own.x, own.y} : float4{own.x, own.y, other.x, other.y};
}
// Their first column in the sixteen of both groups.
__device__ __forceinline__ uint32_t neighbours_column() { return threadIdx.x % 2 * 8 + threadIdx.x % 4 / 2 * 4; }
