// Products by mma.sync, one warp for 16 rows: the second operand through registers. They have ended where they return.
#pragma once
#include "../../common/cuda/matrices.cuh"

// The second operand in a stage. `apart`: sixteenths of bytes from 16 columns to the next where a row is a step.
struct Operand {
    uint32_t at, apart;
};
__device__ __forceinline__ Operand operand(uint32_t at, uint32_t apart) { return Operand{at, apart}; }
// Matrix instructions see what cp.async has copied.
__device__ __forceinline__ void copies_seen() {}

// Reads 16 columns and 16 steps. TRANSPOSED: a row in shared memory is a step, else a column.
template <int TRANSPOSED>
__device__ __forceinline__ void read_pair(uint32_t (&b)[4], uint32_t at) {
    uint32_t lane = threadIdx.x % 32, row = TRANSPOSED ? lane % 16 : lane / 16 * 8 + lane % 8, half = TRANSPOSED ? lane / 16 : lane >> 3 & 1;
    at += row * 32 + ((half ^ (row >> 2 & 1)) << 4);
    read_matrices<TRANSPOSED>(b, at);
}

// d (+)= a·b for 16 rows, N/2 columns and 16 steps.
template <int TRANSPOSED, int N>
__device__ __forceinline__ void multiply(float (&d)[N], const uint32_t (&a)[4], Operand b, int add) {
#pragma unroll
    for (int i = 0; i < N; i++) d[i] = add ? d[i] : 0.f;
#pragma unroll
    for (int pair = 0; pair < N / 8; pair++) {
        uint32_t both[4];
        read_pair<TRANSPOSED>(both, b.at + pair * (TRANSPOSED ? b.apart * 16 : 512));
        multiply_matrices(d + pair * 8, a, both[0], both[1]);
        multiply_matrices(d + pair * 8 + 4, a, both[2], both[3]);
    }
}

__device__ __forceinline__ void products_begin() {}
__device__ __forceinline__ void products_commit() {}
template <int PENDING, int N>
__device__ __forceinline__ void products_wait(float (&)[N]) {}
