// What attention's kernels for NVIDIA's GPUs share: the copies of the operands of matrix instructions. These are in MATRICES: wgmma.cuh for
// compute capability 9.0, or mma.cuh for 8.0 and newer.
//
// q, k, v and dout are f16 tiles [heads·K/16, T/16, 16, 16]. Four warps hold 64 rows of one operand and of the result in registers. The
// rows that they meet pass through shared memory, a stage of 16·n rows at a time: [K/16, 16·n] rows of 32 bytes, whose halves swap in every
// other four rows. Matrix instructions read such a stage by its rows (scores) and by its columns (products with weights).
#pragma once
#include "../../common/cuda/launches.cuh"
#include "../../common/cuda/numbers.cuh"
#include MATRICES

constexpr int DEPTH = HEAD / 16, THREADS = 256, SLOT = 16384;
constexpr float LOG2E = 1.44269504f, LN2 = 0.69314718f, LOWEST = -1e30f;

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
    static __device__ __forceinline__ Operand rows(uint32_t at, int s) { return operand(at + s * ROWS * 32, 1); }
    // Step s over the rows, a column of the result per number of a head.
    static __device__ __forceinline__ Operand columns(uint32_t at, int s) { return operand(at + s * 512, ROWS * 2); }
};
__device__ __forceinline__ void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for the copies of all threads, but for the last PENDING groups; whatever was read before may be overwritten.
template <int PENDING>
__device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
    copies_seen();
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
    template <class Arguments>
    __device__ __forceinline__ explicit Cap(const Arguments& a) : rate(2.f * LOG2E * a.scale / a.cap), most(LOG2E * a.cap) {}
    __device__ __forceinline__ float share_of(float s) const { return reciprocal_of(1.f + exp2_of(s * rate)); }
    // In base 2.
    __device__ __forceinline__ float score_of(float share) const { return fmaf(-2.f * most, share, most); }
    // By how much the score grows with s.
    static __device__ __forceinline__ float slope_of(float share) { return 4.f * share * (1.f - share); }
};
#endif

// The factor that makes a score one in base 2. Those under a softcap are.
template <class Arguments>
__device__ __forceinline__ float scale_of(const Arguments& a) {
    return CAPPED ? 1.f : a.scale * LOG2E;
}

// The first key that a query sees; `start` is the first row of its sample.
__device__ __forceinline__ uint32_t first_of(uint32_t query, uint32_t start, uint32_t window) {
    return window ? max(start, query + 1 - min(window, query + 1)) : start;
}

// That of `a`; queries behind the last see what the last one sees.
template <class Arguments>
__device__ __forceinline__ uint32_t first_key(const Arguments& a, uint32_t query) {
    query = min(query, a.rows - 1);
    return first_of(query, __ldg(a.bounds + query).x, a.window);
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
