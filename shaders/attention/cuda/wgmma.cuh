// Products by wgmma: the second operand from shared memory, or both. They run beside what follows, until `products_wait`.
#pragma once
#include "../../common/cuda/barriers.cuh"

// The second operand in a stage, swizzled by 32 bytes; 8 rows are 256 bytes apart. `apart`: sixteenths of bytes from 16 columns to the next
// where a row is a step.
typedef uint64_t Operand;
__device__ __forceinline__ Operand operand(uint32_t at, uint32_t apart) {
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)apart << 16 | (uint64_t)16 << 32 | (uint64_t)3 << 62;
}
// Matrix instructions see what cp.async has copied.
__device__ __forceinline__ void copies_seen() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#define P0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define P8 P0 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define P16 P8 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define P32 P16 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define P48 P32 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define P64 P48 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define P80 P64 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define P96 P80 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define P112 P96 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define D8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define D16(i) D8(i), D8(i + 8)
#define D32(i) D16(i), D16(i + 16)
#define D64(i) D32(i), D32(i + 32)
#define D128(i) D64(i), D64(i + 64)

// d (+)= a·b for 64 rows, `columns` columns and 16 steps. TRANSPOSED: a row of b in shared memory is a step, else a column. Of the operands of
// the instruction, `registers` are the sums, and the seven numbers those behind them.
//
// Operands that stay in registers over a loop need a look at the machine code after a change: from one kernel, correct as PTX, ptxas 13.0 made
// code that overwrote them.
#define MULTIPLY(columns, sums, registers, list, a0, a1, a2, a3, x, adds, t)                                                              \
    template <int TRANSPOSED>                                                                                                             \
    __device__ __forceinline__ void multiply(float (&d)[sums], const uint32_t (&a)[4], Operand b, int add) {                             \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #adds                                                                           \
                     ", 0;\n"                                                                                                             \
                     "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.f16.f16 {" registers "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 \
                     "}, %" #x ", p, 1, 1, %" #t ";\n}"                                                                                   \
                     : list                                                                                                               \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TRANSPOSED));                                    \
    }
MULTIPLY(16, 8, P0, D8(0), 8, 9, 10, 11, 12, 13, 14)
MULTIPLY(32, 16, P8, D16(0), 16, 17, 18, 19, 20, 21, 22)
MULTIPLY(64, 32, P16, D32(0), 32, 33, 34, 35, 36, 37, 38)
MULTIPLY(128, 64, P48, D64(0), 64, 65, 66, 67, 68, 69, 70)
MULTIPLY(256, 128, P112, D128(0), 128, 129, 130, 131, 132, 133, 134)

// d (+)= a·b for 64 rows, 64 columns and 16 steps, both from shared memory, where a row of a and a column of b are 32 bytes of a stage.
__device__ __forceinline__ void multiply_shared(float (&d)[32], Operand a, Operand b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" P16 "}, %32, %33, p, 1, 1, 0, 0;\n}"
                 : D32(0)
                 : "l"(a), "l"(b), "r"(add));
}

__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most PENDING groups are under way; d is a result of an earlier one.
template <int PENDING, int N>
__device__ __forceinline__ void products_wait(float (&d)[N]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// This thread's scores of 64 columns, for the thread with its place in the other warpgroup.
__device__ __forceinline__ void send(char* exchange, const float (&s)[32]) {
#pragma unroll
    for (int i = 0; i < 8; i++)
        ((float4*)exchange)[i * 128 + threadIdx.x % 128] = make_float4(s[i * 4], s[i * 4 + 1], s[i * 4 + 2], s[i * 4 + 3]);
}
__device__ __forceinline__ void receive(float (&s)[32], const char* exchange) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float4 v = ((const float4*)exchange)[i * 128 + threadIdx.x % 128];
        s[i * 4] = v.x, s[i * 4 + 1] = v.y, s[i * 4 + 2] = v.z, s[i * 4 + 3] = v.w;
    }
}
