// Matrix instructions of NVIDIA's GPUs of compute capability 8.0 and newer, for one warp.
#pragma once
#include <stdint.h>

// Reads four matrices of 8×8 f16 from shared memory: lane l has the address of row l % 8 of matrix l / 8. TRANSPOSED: their rows become columns.
template <bool TRANSPOSED>
__device__ __forceinline__ void read_matrices(uint32_t (&r)[4], uint32_t at) {
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}

// d[0..4] += a·b for 16 rows, 8 columns and 16 steps of f16.
__device__ __forceinline__ void multiply_matrices(float* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
