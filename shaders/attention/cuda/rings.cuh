// Stages in shared memory that a warpgroup fills for two others, whose products read them: nobody waits for all threads.
#pragma once
#include "parts.cuh"

constexpr int GROUPS = 2, COPIERS = 128, ALL_THREADS = COPIERS + GROUPS * 128;

// Waits for copies that this thread has begun, without this thread.
__device__ __forceinline__ void arrive_copied(uint32_t b) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(b) : "memory");
}
template <int COUNT>
__device__ __forceinline__ void named_sync(uint32_t name) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "n"(COUNT) : "memory");
}
template <int COUNT>
__device__ __forceinline__ void named_arrive(uint32_t name) {
    asm volatile("bar.arrive %0, %1;" ::"r"(name), "n"(COUNT) : "memory");
}

// Copies a stage by COPIERS threads, else as Stage::copy.
template <int ROWS>
__device__ __forceinline__ void copy_rows(uint32_t to, const char* head, uint32_t tiles, uint32_t row0, uint32_t last) {
    constexpr int AT_ONCE = COPIERS / 2;
    uint32_t half = threadIdx.x & 1, row = threadIdx.x / 2;
    to += row * 32 + ((half ^ (row >> 2 & 1)) << 4);
    for (int i = 0; i < ROWS; i += AT_ONCE) {
        const char* from = head + (size_t)min((row0 + row + i) / 16, last) * 512 + row % 16 * 32 + half * 16;
#pragma unroll
        for (int d = 0; d < DEPTH; d++, from += (size_t)tiles * 512)
            asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to + (d * ROWS + i) * 32), "l"(from) : "memory");
    }
}

// COUNT slots in turn, with two barriers each from BARRIERS on: it is full, and all warps of products have given it back.
template <int COUNT, int BARRIERS>
struct Slots {
    uint32_t base, slot = 0, parity = 0;
    __device__ __forceinline__ Slots(uint32_t base) : base(base) {}
    __device__ __forceinline__ uint32_t full_of(uint32_t slot) const { return base + BARRIERS + slot * 16; }
    __device__ __forceinline__ uint32_t full() const { return full_of(slot); }
    __device__ __forceinline__ void init(uint32_t copiers) {
        for (slot = 0; slot < COUNT; slot++) barrier_init(full(), copiers), barrier_init(full() + 8, GROUPS * 4);
    }
    __device__ __forceinline__ void next() {
        if (++slot == COUNT) slot = 0, parity ^= 1;
    }
    __device__ __forceinline__ void wait_free() const { wait(full() + 8, parity ^ 1); }
    __device__ __forceinline__ void wait_full() const {
        wait(full(), parity);
        copies_seen();
    }
    __device__ __forceinline__ void give_back(uint32_t slot) const {
        if (threadIdx.x % 32 == 0) arrive(full_of(slot) + 8);
    }
};
