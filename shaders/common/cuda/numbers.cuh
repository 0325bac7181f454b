// Lanes, pairs of f16, and the powers of two that scale rows, as kernels of several ops have them.
#pragma once
#include <cuda_fp16.h>
#include <stdint.h>

__device__ __forceinline__ uint32_t warp_of() { return threadIdx.x / 32; }
__device__ __forceinline__ uint32_t lane_of() { return threadIdx.x % 32; }
// This lane's first row of a result of a matrix instruction.
__device__ __forceinline__ uint32_t row_of() { return lane_of() / 4; }

__device__ __forceinline__ uint32_t half2_of(float low, float high) {
    __half2 h = __floats2half2_rn(low, high);
    return *(uint32_t*)&h;
}
__device__ __forceinline__ float2 floats_of(uint32_t h) { return __half22float2(*(__half2*)&h); }

// The exponent bits of the largest value, clamped so that both powers are normal numbers; as in shaders/common/packed.wgsl.
__device__ __forceinline__ uint32_t exponent(float most) { return min(max(__float_as_uint(most) >> 23, 1u), 252u); }
__device__ __forceinline__ float scaling(uint32_t e) { return __uint_as_float((253 - e) << 23); }
__device__ __forceinline__ float undoing(uint32_t e) { return __uint_as_float((e + 1) << 23); }
// The largest of a warp's values, none of which is negative.
__device__ __forceinline__ float warp_max(float most) {
    return __uint_as_float(__reduce_max_sync(0xffffffff, __float_as_uint(most)));
}
