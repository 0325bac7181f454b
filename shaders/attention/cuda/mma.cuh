// Products by mma.sync, one warp for 16 rows: the second operand through registers. They have ended where they return.
#pragma once
#include <stdint.h>

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
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(at) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(at) : "memory");
}

// d[0..4] (+)= a·b for 16 rows, 8 columns and 16 steps.
__device__ __forceinline__ void multiply_eight(float* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
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
        multiply_eight(d + pair * 8, a, both[0], both[1]);
        multiply_eight(d + pair * 8 + 4, a, both[2], both[3]);
    }
}

__device__ __forceinline__ void products_begin() {}
__device__ __forceinline__ void products_commit() {}
template <int PENDING, int N>
__device__ __forceinline__ void products_wait(float (&)[N]) {}
