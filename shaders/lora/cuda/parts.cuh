// What the products with an adapter's thin matrices share. The wide operand is f16 tiles [K/16, T/16, 16, 16] of scaled rows. A lane reads eight
// bytes of two rows of a tile at a time, straight from memory: four neighbouring columns, 4·(lane % 4) and on, of rows lane / 4 and lane / 4 + 8.
#pragma once
#include "../../common/cuda/launches.cuh"
#include "../../common/cuda/matrices.cuh"
#include "../../common/cuda/numbers.cuh"

constexpr uint32_t TILE = 512; // bytes

__device__ __forceinline__ uint32_t quarter_of() { return threadIdx.x % 4; }

// The values of a row of a thin matrix from `at` on, N of them; zeros behind its last column.
template <int N>
__device__ __forceinline__ void read_thin(float (&to)[N], const float* row, uint32_t at, uint32_t columns) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
        float2 both = at + i < columns ? *(const float2*)(row + at + i) : float2{0.f, 0.f};
        to[i] = both.x;
        to[i + 1] = both.y;
    }
}
