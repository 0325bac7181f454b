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
};

// y as rows of f32.
struct Rows {
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

// The slices that there are in stage `i`.
__device__ __forceinline__ uint32_t valid_slices(const Numbers& n, uint32_t i) {
    uint32_t stages = (n.steps + SLICES - 1) / SLICES;
    return min(i < stages ? n.steps - i * SLICES : n.low_steps - (i - stages) * SLICES, (uint32_t)SLICES);
}

// The stages from `i` to before `end` that have all slices, up to the first that lacks some.
__device__ __forceinline__ uint32_t whole_stages(const Numbers& n, uint32_t i, uint32_t end) {
    uint32_t stages = (n.steps + SLICES - 1) / SLICES, whole = n.steps / SLICES, low_whole = stages + n.low_steps / SLICES;
    uint32_t to = min(i < stages && whole < stages ? whole : low_whole, end);
    return to > i ? to - i : 0;
}

// The stages of a product's sum.
__device__ __forceinline__ uint32_t all_stages(const Numbers& n) {
    return (n.steps + SLICES - 1) / SLICES + (n.low_steps + SLICES - 1) / SLICES;
}

// Two values in f16.
__device__ __forceinline__ uint32_t two(float low, float high) {
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

// The operands of one product, whose sum may be in parts.
struct One {
    const Operands& o;
    const Numbers& n;
    static constexpr uint32_t count = 1;
    static constexpr bool SCALES = false;
    __device__ __forceinline__ const Operands& operands(uint32_t) const { return o; }
    __device__ __forceinline__ const Numbers& numbers(uint32_t) const { return n; }
    __device__ __forceinline__ Tile part(const Tile& tile, uint32_t) const { return tile; }
    // What undoes the scaling of a row of the sum.
    __device__ __forceinline__ float unit(uint32_t row) const { return o.factors[row]; }
    __device__ __forceinline__ uint32_t ratio(uint32_t, uint32_t) const { return 0; }
};

// The operands of products that y sums. ALIKE: they have the same factors. If not, a row of the sum is scaled as the largest of its operands, and
// the others are scaled to that in f16.
template <bool ALIKE>
struct Several {
    const Operands* o;
    const Numbers* n;
    uint32_t count;
    static constexpr bool SCALES = !ALIKE;
    __device__ __forceinline__ const Operands& operands(uint32_t s) const { return o[s]; }
    __device__ __forceinline__ const Numbers& numbers(uint32_t s) const { return n[s]; }
    __device__ __forceinline__ Tile part(const Tile& tile, uint32_t s) const {
        return Tile{tile.column, tile.token, tile.rows, 0, 0, all_stages(n[s]), 0};
    }
    __device__ __forceinline__ float unit(uint32_t row) const {
        float most = o[0].factors[row];
        for (uint32_t s = 1; s < count && SCALES; s++) most = fmaxf(most, o[s].factors[row]);
        return most;
    }
    // What scales a row of operand `s`, twice in f16.
    __device__ __forceinline__ uint32_t ratio(uint32_t s, uint32_t row) const {
        if (ALIKE) return 0;
        float ratio = o[s].factors[row] / unit(row);
        return two(ratio, ratio);
    }
};

// Two products of values in f16.
__device__ __forceinline__ uint32_t times(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
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

// y as f16 matrices of 16 tokens and 16 columns, with a power of two for every 256 columns of a token: it brings the largest of them into
// [½, 1), by the functions of shaders/common/packed.wgsl.
struct Halves {
    uint4* y;               // [N/16, T/16, 16, 16], f16
    float* factors;         // undoes the scaling [N/256, T]
    uint32_t tiles;         // matrices from one column of them to the next
    uint32_t stride;        // floats from the factors of 256 columns to those of the next

    // What scales a token's 256 columns. This lane knows the largest of its own; four neighbouring lanes have the token.
    __device__ __forceinline__ float scaling(const Tile& tile, uint32_t token, float most, float unit) const {
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1)), most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        return scaling_of(tile, token, most, unit, threadIdx.x % 4 == 0);
    }
    // The same of the largest of all columns. One lane stores what undoes it, and the scaling of the sum by `unit`.
    __device__ __forceinline__ float scaling_of(const Tile& tile, uint32_t token, float most, float unit, bool stores) const {
        uint32_t e = min(max(__float_as_uint(most) >> 23, 1u), 252u);
        if (stores && token < tile.rows) factors[(size_t)(tile.column / COLUMNS) * stride + token] = factor(unit, e);
        return __uint_as_float((253 - e) << 23);
    }
    // unit·2^(e − 126), a normal number whose inverse is one.
    __device__ __forceinline__ static float factor(float unit, uint32_t e) {
        int power = (int)(__float_as_uint(unit) >> 23) + (int)e - 126;
        return __uint_as_float((uint32_t)min(max(power, 2), 252) << 23);
    }
    // This lane's half of a row in the matrix of 16 columns from `column` and 16 tokens from `token` on.
    __device__ __forceinline__ uint4* place(uint32_t column, uint32_t token) const {
        uint32_t lane = threadIdx.x % 32;
        return y + ((size_t)(column / 16) * tiles * 16 + token) * 2 + (lane % 4 / 2 * 8 + lane / 4) * 2 + lane % 2;
    }
};

__device__ __forceinline__ float larger(float most, float a, float b) { return fmaxf(most, fmaxf(fabsf(a), fabsf(b))); }

// A lane keeps the first of two values and gets that of the lane `step` away in place of the second one; `upper` lanes, the other way round.
__device__ __forceinline__ void exchange(uint32_t& first, uint32_t& second, uint32_t step, bool upper) {
    uint32_t other = __shfl_xor_sync(~0u, upper ? first : second, step);
    (upper ? first : second) = other;
}

// Half a row of a matrix, of which this lane has two values in each quarter: columns 0 to 8 and 8 to 16 of a row, then those of the row eight
// below. Four neighbouring lanes get these halves in that order.
__device__ __forceinline__ uint4 rows_of_matrix(uint32_t left, uint32_t right, uint32_t left_below, uint32_t right_below) {
    bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
    exchange(left, right, 1, odd), exchange(left_below, right_below, 1, odd);
    exchange(left, left_below, 2, upper), exchange(right, right_below, 2, upper);
    return {left, right, left_below, right_below};
}
