// The thin operand of kernels that sum over tokens: z or u, in chunks of tokens.
#pragma once
#include "parts.cuh"

// Rows of a thin operand, and the factors of their wide operand.
struct ThinRows {
    const float* values;  // [T, stride]
    const float* factors; // undoes the scaling of the wide operand's rows [T]
    uint32_t stride;
    uint32_t columns;
};

// The thin operand of a chunk: what a thread brings to shared memory, in f32, and the factors of its rows.
template <int N, int CHUNK, int THREADS>
struct Thin {
    static constexpr int ALL = CHUNK * 2 * N, EACH = (ALL + THREADS - 1) / THREADS;
    static constexpr int ROW = 16 * N + 16; // bytes from one row to the next, in other banks
    float4 values[EACH];
    float factors[EACH];

    __device__ __forceinline__ void read(const ThinRows& rows, uint32_t first, uint32_t end, uint32_t first_column) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            uint32_t at = i * THREADS + threadIdx.x, t = first + at / (2 * N), column = first_column + at % (2 * N) * 4;
            bool is_there = (ALL % THREADS == 0 || at < ALL) && t < end && column < rows.columns;
            values[i] = is_there ? *(const float4*)(rows.values + (size_t)t * rows.stride + column) : float4{0.f, 0.f, 0.f, 0.f};
            factors[i] = is_there ? rows.factors[t] : 0.f;
        }
    }
    // Scales the values as the rows of the wide operand. Returns the largest.
    __device__ __forceinline__ float scale() {
        float most = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            float4& v = values[i];
            v = float4{v.x * factors[i], v.y * factors[i], v.z * factors[i], v.w * factors[i]};
            most = fmaxf(fmaxf(fmaxf(most, fabsf(v.x)), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
        }
        return most;
    }
    __device__ __forceinline__ void write(char* to, float by) const {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            uint32_t at = i * THREADS + threadIdx.x;
            float4 v = values[i];
            if (ALL % THREADS == 0 || at < ALL)
                *(uint2*)(to + at / (2 * N) * ROW + at % (2 * N) * 8) = halves_of(float4{v.x * by, v.y * by, v.z * by, v.w * by});
        }
    }
};

// The exponent above `power` and the largest values that warps found.
template <int WARPS>
__device__ __forceinline__ uint32_t exponent_above(uint32_t power, const float (&largest)[WARPS]) {
    float most = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) most = fmaxf(most, largest[w]);
    return max(power, exponent(most));
}
// Scales sums of values below `power` as those below `above`, and lets this be the power.
template <int J, int N>
__device__ __forceinline__ void raise(float (&sums)[J][N][4], uint32_t& power, uint32_t above) {
    if (above == power) return;
    float by = undoing(power) * scaling(above);
#pragma unroll
    for (int n = 0; n < 4 * J * N; n++) sums[n / (4 * N)][n / 4 % N][n % 4] *= by;
    power = above;
}
