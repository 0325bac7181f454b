// The gradients of forward.cu, for heads of HEAD numbers: what the kernels of both kinds of matrix instructions share. build compiles
// backward-wgmma.cu, backward-wide.cu and backward-mma.cu to PTX, and with a softcap of the scores (CAPPED) to another, which the driver compiles
// for its GPU.
//
// dq, dk and dv are sums over the pairs of queries and keys that see each other. A block computes some rows of one of them, or of dk and dv, and
// makes the weights and their gradients itself, so that no block reads what another leaves.
#pragma once
#include "parts.cuh"

// Twin of the buffers and of `BackwardNumbers` in src/ops/attention/cuda.rs.
struct Backward {
    const char* q;        // [H·K/16, T/16, 16, 16]
    const char* k;        // [G·K/16, T/16, 16, 16]
    const char* v;        // [G·K/16, T/16, 16, 16]
    const char* dout;     // [H·K/16, T/16, 16, 16], its rows scaled, or 256 columns of a row
    const float* factors; // undo the scaling of dout's rows [T], or of their columns [H·K/256, factor_stride]
    const uint2* bounds;  // start and end row of each token's sample [T]
    const char* out;      // as q, or [T, H·K] in f32
    const float* lse;     // [T, H]
    float2* values;       // of each query, see `rows` [H, T rounded up to 2]
    float* dq;            // [T, H·K]
    float* dk;            // [T, G·K]
    float* dv;            // [T, G·K]
    float* sums;          // of dk, then of dv, where the heads of a group are shared out [2·shares, T, G·K]
    uint32_t rows;        // T
    uint32_t tiles;       // from one column of tiles to the next
    uint32_t heads;       // H
    uint32_t kv_heads;    // G
    uint32_t window;      // 0: none
    float scale;          // undoes the scaling of q·k
    float q_scale;        // that of q
    float k_scale;        // that of k
    uint32_t out_tiles;   // as `tiles`; 0: out is f32
    uint32_t shares;      // blocks among which the query heads of a key are shared out; 1: dk and dv are added to
    uint32_t dout_tiles;  // as `tiles`
    uint32_t factor_stride; // floats from the factors of 256 columns to those of the next; 0: rows have one
#if CAPPED
    float cap; // c of c·tanh(s/c) on the scores
#endif
};

// What undo the scaling of a head in the rows of dout.
__device__ __forceinline__ const float* factors_of(const Backward& a, uint32_t head) {
    return a.factors + (size_t)(head * HEAD / 256) * a.factor_stride;
}

// Half a row of a tile.
struct Eight {
    float x[8];
};
__device__ __forceinline__ Eight eight_of(const char* tile_row) {
    uint4 v = __ldg((const uint4*)tile_row);
    float2 a = floats_of(v.x), b = floats_of(v.y), c = floats_of(v.z), d = floats_of(v.w);
    return Eight{a.x, a.y, b.x, b.y, c.x, c.y, d.x, d.y};
}
__device__ __forceinline__ Eight eight_of(const float* row) {
    float4 a = __ldg((const float4*)row), b = __ldg((const float4*)row + 1);
    return Eight{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
}

// Values of every query: the log-sum-exp in base 2, less the logarithm of the unit of its row of dout, so that 2^(score − this) is a weight in
// that unit, and Σ dout·out in that unit. A warp computes those of 16 queries.
extern "C" __global__ void __launch_bounds__(THREADS) rows(const __grid_constant__ Backward a) {
    wait_for_previous();
    uint32_t down = (a.rows + 15) / 16, row = threadIdx.x % 32 / 2, half = threadIdx.x % 2, even = (a.rows + 1) & ~1u;
    for (uint32_t i = blockIdx.x * (THREADS / 32) + threadIdx.x / 32; i < down * a.heads; i += gridDim.x * (THREADS / 32)) {
        uint32_t head = i / down, tile = i % down, query = min(tile * 16 + row, a.rows - 1);
        float sum = 0.f;
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            Eight x = eight_of(a.dout + (((size_t)head * DEPTH + d) * a.dout_tiles + tile) * 512 + query % 16 * 32 + half * 16);
            Eight y = a.out_tiles ? eight_of(a.out + (((size_t)head * DEPTH + d) * a.out_tiles + tile) * 512 + query % 16 * 32 + half * 16)
                                  : eight_of((const float*)a.out + ((size_t)query * a.heads + head) * HEAD + d * 16 + half * 8);
#pragma unroll
            for (int n = 0; n < 8; n++) sum = fmaf(x.x[n], y.x[n], sum);
        }
        sum += __shfl_xor_sync(~0u, sum, 1);
        float lse = __ldg(a.lse + (size_t)query * a.heads + head) * LOG2E - ilogbf(__ldg(factors_of(a, head) + query));
        if (half == 0 && tile * 16 + row < even) a.values[(size_t)head * even + tile * 16 + row] = make_float2(lse, sum);
    }
}

// One past the last query that sees a key; none sees those behind the last.
__device__ __forceinline__ uint32_t end_query(const Backward& a, uint32_t key) {
    uint32_t end = key < a.rows ? __ldg(a.bounds + key).y : 0;
    return a.window ? min(end, key + a.window) : end;
}

// The largest unit of some heads in dout's rows from `row` to `end`, of those that a warp sees, where `threads` share them.
__device__ __forceinline__ float largest_of(const Backward& a, uint32_t first_head, uint32_t heads, uint32_t row, uint32_t end, uint32_t threads) {
    float unit = 0.f;
    uint32_t blocks = a.factor_stride ? (first_head + heads - 1) * HEAD / 256 - first_head * HEAD / 256 + 1 : 1;
    for (uint32_t block = 0; block < blocks; block++) {
        const float* factors = factors_of(a, first_head) + (size_t)block * a.factor_stride;
        for (uint32_t own = row + threadIdx.x; own < end; own += threads) unit = fmaxf(unit, __ldg(factors + own));
    }
    for (int i = 16; i > 0; i /= 2) unit = fmaxf(unit, __shfl_xor_sync(~0u, unit, i));
    return unit;
}

// That of all THREADS threads. What f16 rounds to zero beside it does not matter in a sum over them.
__device__ __forceinline__ float largest_unit(const Backward& a, float* shared, uint32_t first_head, uint32_t heads, uint32_t row, uint32_t end) {
    float unit = largest_of(a, first_head, heads, row, end, THREADS);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = unit;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++) unit = fmaxf(unit, shared[i]);
    __syncthreads();
    return unit;
}

// The rows of the others, from `low` to below `high`, that rows of a block from row0 on meet: keys that queries see (SEES), or queries that see keys.
// A thread has two of the OWN rows, and its warp 16. A stage holds STEP rows of the others.
template <bool SEES, int OWN, int STEP>
struct Met {
    uint32_t warp_row, row, low[2], high[2];
    uint32_t seen_from, seen_to;    // of the warp's rows in common
    uint32_t begin, end, stages;    // of all rows: the first stage, one past the last row, and stages of one head
    struct Place {
        uint32_t head, row;
    };
    static __device__ __forceinline__ uint32_t low_of(const Backward& a, uint32_t row) { return SEES ? first_key(a, row) : row; }
    static __device__ __forceinline__ uint32_t high_of(const Backward& a, uint32_t row) { return SEES ? row + 1 : end_query(a, row); }
    __device__ __forceinline__ Met(const Backward& a, uint32_t row0)
        : warp_row(row0 + threadIdx.x / 32 % (OWN / 16) * 16), row(warp_row + threadIdx.x % 32 / 4), low{low_of(a, row), low_of(a, row + 8)},
          high{high_of(a, row), high_of(a, row + 8)}, seen_from(low_of(a, warp_row + 15)),
          seen_to(warp_row + 15 < a.rows ? high_of(a, warp_row) : 0), begin(low_of(a, row0) / STEP), end(high_of(a, min(row0 + OWN, a.rows) - 1)),
          stages((end + STEP - 1) / STEP - begin) {}
    // The stage behind one: queries come of one head after the other.
    __device__ __forceinline__ Place after(Place place) const {
        place.row += STEP;
        if (!SEES && place.row >= end) place.row = begin * STEP, place.head++;
        return place;
    }
};

// Stores or adds this thread's part of 16 rows of a result.
template <int N>
__device__ __forceinline__ void leave(const Backward& a, float* to, const float (&d)[N], uint32_t row, uint32_t stride,
                                      const float (&factor)[2], bool add) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (row + r * 8 >= a.rows) continue;
        float2* at = (float2*)(to + (size_t)(row + r * 8) * stride) + threadIdx.x % 4;
        // All are read before one is stored: else each would wait for memory by itself.
        float2 before[N / 4];
#pragma unroll
        for (int i = 0; i < N / 4; i++) before[i] = make_float2(0.f, 0.f);
        if (add) {
#pragma unroll
            for (int i = 0; i < N / 4; i++) before[i] = at[i * 4];
        }
#pragma unroll
        for (int i = 0; i < N / 4; i++)
            at[i * 4] = make_float2(fmaf(d[i * 4 + r * 2], factor[r], before[i].x), fmaf(d[i * 4 + r * 2 + 1], factor[r], before[i].y));
    }
}
