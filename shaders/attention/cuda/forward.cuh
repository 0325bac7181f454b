// Causal, windowed, grouped-query attention over packed samples, for heads of HEAD numbers: what its kernels share. build compiles them to PTX, and
// with a softcap of the scores (CAPPED) to another, which the driver compiles for its GPU.
#pragma once
#include "parts.cuh"

// Twin of the buffers and of `ForwardNumbers` in src/ops/attention/cuda.rs.
struct Forward {
    const char* q;       // [H·K/16, T/16, 16, 16]
    const char* k;       // [G·K/16, T/16, 16, 16]
    const char* v;       // [G·K/16, T/16, 16, 16]
    const uint2* bounds; // start and end row of each token's sample [T]
    const float* sinks;  // one more score of each head, without a value [H]
    float* lse;          // [T, H]
    char* out;           // as q, or [T, H·K] in f32
    float* factors;      // of out's rows: 1, because means of values fit into f16 [T]
    uint32_t rows;       // T
    uint32_t tiles;      // from one column of tiles to the next
    uint32_t heads;      // H
    uint32_t kv_heads;   // G
    uint32_t window;     // 0: none
    float scale;         // undoes the scaling of q·k
    uint32_t has_sinks;
    uint32_t out_tiles; // as `tiles`; 0: out is f32
#if CAPPED
    float cap; // c of c·tanh(s/c) on the scores
#endif
};

// Weights of a block of scores: s becomes exp2(s·scale − most), and `most` is raised before. Returns by which factor of sums then change.
template <int N>
__device__ __forceinline__ void weigh(float (&s)[N], float (&most)[2], float (&sum)[2], float (&change)[2], float scale) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = s[r * 2];
#pragma unroll
        for (int i = 0; i < N / 4; i++) top = fmaxf(top, fmaxf(s[i * 4 + r * 2], s[i * 4 + r * 2 + 1]));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        float higher = fmaxf(most[r], top * scale), added = 0.f;
        change[r] = exp2_of(most[r] - higher);
        most[r] = higher;
#pragma unroll
        for (int i = 0; i < N / 4; i++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                float p = exp2_of(fmaf(s[i * 4 + r * 2 + c], scale, -higher));
                s[i * 4 + r * 2 + c] = p;
                added += p;
            }
        sum[r] = sum[r] * change[r] + added;
    }
}

// Stores this thread's part of 16 rows of a result: 2·N columns of a head, from `column` on.
template <int N>
__device__ __forceinline__ void leave(const Forward& a, const float (&o)[N], const float (&factor)[2], uint32_t head, uint32_t column,
                                      uint32_t query) {
    uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        uint32_t row = query + r * 8;
        bool seen = row < a.rows;
        if (a.out_tiles == 0 && seen) {
            float* to = (float*)a.out + ((size_t)row * a.heads + head) * HEAD + column + t * 2;
#pragma unroll
            for (int i = 0; i < N / 4; i++)
                *(float2*)(to + i * 8) = make_float2(o[i * 4 + r * 2] * factor[r], o[i * 4 + r * 2 + 1] * factor[r]);
        }
        // Rows behind the last are zero in its tile.
        if (a.out_tiles != 0 && row / 16 * 16 < a.rows) {
            char* to = a.out + ((size_t)(head * DEPTH + column / 16) * a.out_tiles + row / 16) * 512 + row % 16 * 32 + t * 4;
#pragma unroll
            for (int i = 0; i < N / 4; i++) {
                uint32_t pair = half2_of(o[i * 4 + r * 2] * factor[r], o[i * 4 + r * 2 + 1] * factor[r]);
                *(uint32_t*)(to + (size_t)(i / 2) * a.out_tiles * 512 + (i & 1) * 16) = seen ? pair : 0;
            }
        }
    }
}

// By which factors the sums of weighted values become means, a sink counted. Stores the log-sum-exp of both rows if `stores`.
__device__ __forceinline__ void finish(const Forward& a, float (&factor)[2], float (&most)[2], const float (&sum)[2], uint32_t head, uint32_t query,
                                       bool stores) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float total = sum[r];
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
        factor[r] = 1.f;
        if (a.has_sinks) {
            float sink = a.sinks[head] * LOG2E, higher = fmaxf(most[r], sink);
            factor[r] = exp2_of(most[r] - higher);
            total = total * factor[r] + exp2_of(sink - higher);
            most[r] = higher;
        }
        total = fmaxf(total, 1e-30f);
        factor[r] /= total;
        uint32_t row = query + r * 8;
        if (stores && threadIdx.x % 4 == 0 && row < a.rows) {
            a.lse[(size_t)row * a.heads + head] = most[r] * LN2 + logf(total);
            if (a.out_tiles) a.factors[row] = 1.f;
        }
    }
}
