// What the products with an adapter's thin matrices share. The wide operand is f16 tiles [K/16, T/16, 16, 16] of scaled rows. Each warp copies tiles
// to shared memory of its own, some steps ahead of those it multiplies. The 32 lanes copy a whole tile at a time: an H200 took 1.6 times as long
// where each lane copied what it multiplies, from rows apart.
#pragma once
#include "../../common/cuda/launches.cuh"
#include "../../common/cuda/matrices.cuh"
#include "../../common/cuda/numbers.cuh"

constexpr uint32_t TILE = 512; // bytes

__device__ __forceinline__ uint32_t quarter_of() { return threadIdx.x % 4; }

__device__ __forceinline__ void copy(uint32_t to, const char* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until all but the newest PENDING groups of copies have ended.
template <int PENDING>
__device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Where a lane's part of a tile lies in shared memory, and where it reads a row of one of the tile's matrices of 8×8: halves of the rows 4 to 7 and
// 12 to 15 are swapped, so that rows are in other banks. TRANSPOSED: for columns as the rows of the first operand.
__device__ __forceinline__ uint32_t place_of() { return (lane_of() ^ (lane_of() / 8 % 2)) * 16; }
template <bool TRANSPOSED>
__device__ __forceinline__ uint32_t matrix_of() {
    uint32_t lane = lane_of(), row = lane % 8 + (TRANSPOSED ? lane / 16 : lane / 8 % 2) * 8, half = TRANSPOSED ? lane / 8 % 2 : lane / 16;
    return row * 32 + (half ^ (row / 4 % 2)) * 16;
}
__device__ __forceinline__ uint32_t address_of(const void* shared) { return (uint32_t)__cvta_generic_to_shared(shared); }

__device__ __forceinline__ uint2 halves_of(float4 v) { return uint2{half2_of(v.x, v.y), half2_of(v.z, v.w)}; }

// Whether this block is the last of those that share a sum. The others' parts can be read then. `shared` is a place in shared memory.
__device__ __forceinline__ bool ends_last(uint32_t* arrivals, uint32_t* shared) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        *shared = atomicAdd(arrivals, 1) + 1 == gridDim.z;
        if (*shared) *arrivals = 0;
    }
    __syncthreads();
    __threadfence();
    return *shared;
}

// Adds up the parts of COUNT sums of each of THREADS threads, in order, in the block that ends last; the others leave.
template <int COUNT, int THREADS>
__device__ __forceinline__ bool add_up(float (&sums)[COUNT], float* all_parts, uint32_t* arrivals, uint32_t* shared) {
    if (gridDim.z == 1) return true;
    uint32_t tile = blockIdx.y * gridDim.x + blockIdx.x;
    float4* parts = (float4*)all_parts + (size_t)tile * gridDim.z * (COUNT / 4 * THREADS) + threadIdx.x;
#pragma unroll
    for (int q = 0; q < COUNT / 4; q++)
        parts[(blockIdx.z * (COUNT / 4) + q) * THREADS] = float4{sums[4 * q], sums[4 * q + 1], sums[4 * q + 2], sums[4 * q + 3]};
    if (!ends_last(arrivals + tile, shared)) return false;
#pragma unroll
    for (int n = 0; n < COUNT; n++) sums[n] = 0;
#pragma unroll 4
    for (uint32_t z = 0; z < gridDim.z; z++)
#pragma unroll
        for (int q = 0; q < COUNT / 4; q++) {
            float4 v = __ldcg(parts + (z * (COUNT / 4) + q) * THREADS);
            sums[4 * q] += v.x;
            sums[4 * q + 1] += v.y;
            sums[4 * q + 2] += v.z;
            sums[4 * q + 3] += v.w;
        }
    return true;
}
