// What attention's kernels for NVIDIA's GPUs of compute capability 9.0 share: matrix instructions, and the copies of their operands.
//
// q, k, v and dout are f16 tiles [heads·K/16, T/16, 16, 16]. A warpgroup holds 64 rows of one operand and of the result in registers. The
// rows that they meet pass through shared memory, a stage of 16·n rows at a time: [K/16, 16·n] rows of 32 bytes, whose halves swap in every
// other four rows. wgmma reads such a stage by its rows (scores) and by its columns (products with weights).
#pragma once
#include <cuda_fp16.h>
#include <stdint.h>

constexpr int DEPTH = HEAD / 16, THREADS = 256, SLOT = 16384;
constexpr float LOG2E = 1.44269504f, LN2 = 0.69314718f, LOWEST = -1e30f;

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
    __device__ __forceinline__ void multiply(float (&d)[sums], const uint32_t (&a)[4], uint64_t b, int add) {                             \
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

__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most PENDING groups are under way; d is a result of an earlier one.
template <int PENDING, int N>
__device__ __forceinline__ void wgmma_wait(float (&d)[N]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

__device__ __forceinline__ float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float reciprocal_of(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ uint32_t half2_of(float low, float high) {
    __half2 h = __floats2half2_rn(low, high);
    return *(uint32_t*)&h;
}
__device__ __forceinline__ float2 floats_of(uint32_t h) { return __half22float2(*(__half2*)&h); }

// Results of 64 rows and N/2 columns are the first operand of a product over these columns, 16 at a time.
template <int N>
__device__ __forceinline__ void pack(uint32_t (&to)[N / 8][4], const float (&from)[N]) {
#pragma unroll
    for (int s = 0; s < N / 8; s++)
#pragma unroll
        for (int i = 0; i < 4; i++) to[s][i] = half2_of(from[s * 8 + i * 2], from[s * 8 + i * 2 + 1]);
}

// Stages of ROWS rows of heads of HEAD numbers.
template <int ROWS>
struct Stage {
    static constexpr int BYTES = HEAD * ROWS * 2, PIECES = BYTES / 16 / THREADS, APART = THREADS / (2 * ROWS);
    static_assert(PIECES * THREADS * 16 == BYTES && APART * PIECES == DEPTH, "every thread copies pieces of the same row");

    // Copies the rows from row0, a multiple of 16, on. Rows behind the last tile are those of the last tile.
    static __device__ __forceinline__ void copy(uint32_t to, const char* head, uint32_t tiles, uint32_t row0, uint32_t last) {
        uint32_t half = threadIdx.x & 1, row = threadIdx.x / 2 % ROWS, d = threadIdx.x / (2 * ROWS);
        uint32_t tile = min(row0 / 16 + row / 16, last);
        const char* from = head + ((size_t)d * tiles + tile) * 512 + row % 16 * 32 + half * 16;
        to += (d * ROWS + row) * 32 + ((half ^ (row >> 2 & 1)) << 4);
#pragma unroll
        for (int j = 0; j < PIECES; j++)
            asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to + j * APART * ROWS * 32),
                         "l"(from + (size_t)j * APART * tiles * 512)
                         : "memory");
    }
    // Step s over a head, a column of the result per row.
    static __device__ __forceinline__ uint64_t rows(uint32_t at, int s) { return operand(at + s * ROWS * 32, 1); }
    // Step s over the rows, a column of the result per number of a head.
    static __device__ __forceinline__ uint64_t columns(uint32_t at, int s) { return operand(at + s * 512, ROWS * 2); }
    // Swizzled by 32 bytes; 8 rows are 256 bytes apart.
    static __device__ __forceinline__ uint64_t operand(uint32_t at, uint32_t apart) {
        return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)apart << 16 | (uint64_t)16 << 32 | (uint64_t)3 << 62;
    }
};
__device__ __forceinline__ void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for the copies of all threads, but for the last PENDING groups; whatever was read before may be overwritten.
template <int PENDING>
__device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
}

// This thread's part of 16 rows of a head as the first operand of products.
__device__ __forceinline__ void read_rows(uint32_t (&a)[DEPTH][4], const char* head, uint32_t tiles, uint32_t tile) {
    const char* from = head + (size_t)tile * 512 + threadIdx.x % 32 / 4 * 32 + threadIdx.x % 4 * 4;
#pragma unroll
    for (int s = 0; s < DEPTH; s++)
#pragma unroll
        for (int i = 0; i < 4; i++) a[s][i] = __ldg((const uint32_t*)(from + (size_t)s * tiles * 512 + (i & 1) * 256 + (i >> 1) * 16));
}

#if CAPPED
// Scores under a softcap, c·tanh(s/c), from the share 1/(1 + e^(2s/c)) that tanh lacks of 1: it overflows nowhere, and a score is off by some
// 1e-7·c, where that of tanh.approx would be off by 5e-4·c.
struct Cap {
    float rate, most; // of the exponent in base 2 by an unscaled score; c in base 2
    __device__ __forceinline__ Cap(float cap, float scale) : rate(2.f * LOG2E * scale / cap), most(LOG2E * cap) {}
    __device__ __forceinline__ float share_of(float s) const { return reciprocal_of(1.f + exp2_of(s * rate)); }
    // In base 2.
    __device__ __forceinline__ float score_of(float share) const { return fmaf(-2.f * most, share, most); }
    // By how much the score grows with s.
    static __device__ __forceinline__ float slope_of(float share) { return 4.f * share * (1.f - share); }
};
#endif

// The first key that a query sees; `start` is the first row of its sample.
__device__ __forceinline__ uint32_t first_of(uint32_t query, uint32_t start, uint32_t window) {
    return window ? max(start, query + 1 - min(window, query + 1)) : start;
}

// Hides the scores of this thread's rows with columns that are not from `low` to below `high`; `column` is the first.
template <int N>
__device__ __forceinline__ void hide(float (&s)[N], uint32_t column, const uint32_t (&low)[2], const uint32_t (&high)[2]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        uint32_t at = column + i / 4 * 8 + threadIdx.x % 4 * 2 + (i & 1), r = i >> 1 & 1;
        if (at < low[r] || at >= high[r]) s[i] = -INFINITY;
    }
}
