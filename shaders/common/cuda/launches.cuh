// A kernel that may be launched before the one ahead of it has ended, on GPUs of compute capability 9.0 and newer.
#pragma once

// Waits until the kernel ahead has ended and its results are seen: nothing that another kernel writes is read before. Blocks start where those
// ahead have ended, so none says earlier that the next kernel may start: its blocks would fill the first multiprocessors that are free.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
