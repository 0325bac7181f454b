// Barriers in shared memory, on GPUs of compute capability 9.0 and newer.
#pragma once
#include <stdint.h>

__device__ __forceinline__ void barrier_init(uint32_t b, uint32_t count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(b), "r"(count) : "memory");
}
__device__ __forceinline__ void arrive(uint32_t b) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(b) : "memory");
}
__device__ __forceinline__ void wait(uint32_t b, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred p;\nL: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@p bra D;\nbra L;\nD:\n}" ::"r"(b), "r"(parity)
        : "memory");
}
