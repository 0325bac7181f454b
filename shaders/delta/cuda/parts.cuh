// Matrix instructions for the delta net's kernels on NVIDIA's GPUs of compute capability 8.0 and newer, and the copies of their operands.
//
// Operands pass through shared memory in pieces of 64 rows of 64 f16, whose eight parts of 16 bytes are in another order in each of eight rows.
// A warp multiplies 16 rows of the first operand, in registers, with a piece.
#pragma once
#include "../../common/cuda/matrices.cuh"
#include "../../common/cuda/numbers.cuh"

constexpr uint32_t HEAD = 128, CHUNK = 64, THREADS = 128, PIECE = 8192;

// Results of 16 rows and 8 columns: columns 2·(lane % 4) and the next one of rows lane / 4 and lane / 4 + 8.
typedef float Result[4];
// 16 rows and 16 terms of the first operand of a product.
typedef uint32_t Left[4];

// This thread's first column of a result.
__device__ __forceinline__ uint32_t column_of() { return lane_of() % 4 * 2; }

__device__ __forceinline__ uint32_t times(uint32_t h, uint32_t factors) {
    __half2 product = __hmul2(*(__half2*)&h, *(__half2*)&factors);
    return *(uint32_t*)&product;
}
__device__ __forceinline__ void scale(Left& a, float factor) {
    uint32_t both = half2_of(factor, factor);
    for (int i = 0; i < 4; i++) a[i] = times(a[i], both);
}

// The lowest exponent for terms that are added to values of exponent e: in its unit, these do not overflow.
__device__ __forceinline__ uint32_t lowest_beside(uint32_t e) { return max(e, 61u) - 60; }
template <int N>
__device__ __forceinline__ float most_of(const Result (&d)[N]) {
    float most = 0;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) most = fmaxf(most, fabsf(d[n][i]));
    return warp_max(most);
}
template <int N>
__device__ __forceinline__ void scale(Result (&d)[N], float factor) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) d[n][i] *= factor;
}
// Results as the first operand of a product over their columns.
template <int N>
__device__ __forceinline__ void pack(Left (&to)[N / 2], const Result (&from)[N], float factor) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) to[n / 2][n % 2 * 2 + i] = half2_of(factor * from[n][2 * i], factor * from[n][2 * i + 1]);
}

__device__ __forceinline__ uint32_t address_of(const void* shared) { return (uint32_t)__cvta_generic_to_shared(shared); }
// The place of eight numbers of a row of a piece.
__device__ __forceinline__ uint32_t part_at(uint32_t row, uint32_t part) { return row * 128 + ((part ^ (row & 7)) << 4); }

// The first operand: rows `row` to row + 15, terms 16·step to 16·step + 15; TRANSPOSED: a row of the piece is a term.
template <bool TRANSPOSED>
__device__ __forceinline__ void read_left(Left& a, uint32_t piece, uint32_t row, uint32_t step) {
    uint32_t l = lane_of(), low = l & 8, high = l >> 1 & 8, own = l & 7;
    if (TRANSPOSED) read_matrices<true>(a, piece + part_at(step * 16 + high + own, (row + low) / 8));
    else read_matrices<false>(a, piece + part_at(row + low + own, step * 2 + high / 8));
}
// d += a·b for 16 columns from 16·pair on and 16 terms of step `step`; BY_ROWS: a row of the piece is a column of b, else a term.
template <bool BY_ROWS>
__device__ __forceinline__ void multiply_pair(Result& d0, Result& d1, const Left& a, uint32_t piece, uint32_t pair, uint32_t step) {
    uint32_t l = lane_of(), low = l & 8, high = l >> 1 & 8, own = l & 7;
    Left b;
    if (BY_ROWS) read_matrices<false>(b, piece + part_at(pair * 16 + high + own, step * 2 + low / 8));
    else read_matrices<true>(b, piece + part_at(step * 16 + low + own, pair * 2 + high / 8));
    multiply_matrices(d0, a, b[0], b[1]);
    multiply_matrices(d1, a, b[2], b[3]);
}
// d += a·b over the 64 terms of a piece, for 64 columns.
template <bool BY_ROWS>
__device__ __forceinline__ void multiply_piece(Result* d, const Left* a, uint32_t piece) {
#pragma unroll
    for (int step = 0; step < 4; step++)
#pragma unroll
        for (int pair = 0; pair < 4; pair++) multiply_pair<BY_ROWS>(d[2 * pair], d[2 * pair + 1], a[step], piece, pair, step);
}

// Copies a piece whose rows lie `stride` numbers apart; those from `count` on are zero.
__device__ __forceinline__ void copy_piece(uint32_t to, const __half* from, size_t stride, uint32_t count) {
    uint32_t part = threadIdx.x % 8;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t row = threadIdx.x / 8 + i * 16;
        const __half* own = from + min(row, count - 1) * stride + part * 8;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + part_at(row, part)), "l"(own), "r"(row < count ? 16 : 0) : "memory");
    }
}
__device__ __forceinline__ void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for the copies of all threads, but for the last PENDING groups; earlier pieces may be overwritten then.
template <int PENDING>
__device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
    __syncthreads();
}

// The size of a micro-batch, and its samples: the first token of each token's sample and the one behind it; and by token and head, the sums of
// decays' logarithms and the rates.
struct Net {
    const uint2* bounds;    // [T]
    const float* gates;     // [T, 2, Hv], rows of a multiple of 4
};
struct Sizes {
    uint32_t tokens, key_heads, value_heads;
    __device__ uint32_t gate_stride() const { return (value_heads + 3) / 4 * 4; }
    __device__ uint32_t chunks() const { return (tokens + CHUNK - 1) / CHUNK; }
    __device__ uint32_t count(uint32_t chunk) const { return min(CHUNK, tokens - chunk * CHUNK); }
    // Rows of queries or keys and of values, by token; rows of 64 numbers by token; numbers by chunk.
    __device__ size_t key_at(uint32_t t, uint32_t part, uint32_t head) const { return ((size_t)(t * 2 + part) * key_heads + head % key_heads) * HEAD; }
    __device__ size_t value_at(uint32_t t, uint32_t head) const { return ((size_t)t * value_heads + head) * HEAD; }
    __device__ size_t pair_at(uint32_t t, uint32_t head) const { return ((size_t)t * value_heads + head) * CHUNK; }
    __device__ size_t state_at(uint32_t chunk, uint32_t head) const { return ((size_t)chunk * value_heads + head) * HEAD * HEAD; }
    __device__ size_t scale_at(uint32_t chunk, uint32_t head) const { return ((size_t)chunk * value_heads + head) * 16; }
    __device__ size_t key_stride() const { return (size_t)2 * key_heads * HEAD; }
    __device__ size_t value_stride() const { return (size_t)value_heads * HEAD; }
    __device__ size_t pair_stride() const { return (size_t)value_heads * CHUNK; }
};

// A token of a chunk, as it was read: see `seen_of` and `left_of`.
struct Token {
    float sum, last_sum, rate;
    uint32_t start, last_start;
};
__device__ __forceinline__ Token token_of(const Net& net, const Sizes& sizes, uint32_t chunk, uint32_t i, uint32_t head) {
    uint32_t t = min(chunk * CHUNK + i, sizes.tokens - 1), last = min(chunk * CHUNK + CHUNK, sizes.tokens) - 1, stride = sizes.gate_stride();
    return {net.gates[(size_t)2 * t * stride + head], net.gates[(size_t)2 * last * stride + head], net.gates[(size_t)(2 * t + 1) * stride + head],
            net.bounds[t].x, net.bounds[last].x};
}
// The part of the state before a token's chunk that is left at the token.
__device__ __forceinline__ float seen_of(const Token& own, uint32_t chunk) { return own.start < chunk * CHUNK ? __expf(own.sum) : 0.0f; }
// The part of a token's write that is left behind the chunk.
__device__ __forceinline__ float left_of(const Token& own, uint32_t chunk, uint32_t i, uint32_t count) {
    return i < count && own.last_start <= chunk * CHUNK + i ? __expf(own.last_sum - own.sum) : 0.0f;
}

// Runs of chunks that a scan takes at once; see shaders/common/delta_runs.wgsl.
struct Run {
    uint32_t first, count;
    bool silent;
};
__device__ __forceinline__ uint32_t border(const Net& net, const Sizes& sizes, uint32_t chunk) {
    if (chunk == 0 || chunk >= sizes.chunks()) return min(chunk, sizes.chunks());
    uint2 bound = net.bounds[min(chunk * CHUNK + CHUNK, sizes.tokens) - 1];
    if (bound.x >= chunk * CHUNK) return chunk;
    return bound.y >= sizes.tokens ? sizes.chunks() : bound.y / CHUNK;
}
__device__ __forceinline__ uint32_t shares(const Net& net, const Sizes& sizes, uint32_t chunk) {
    return chunk < sizes.chunks() && net.bounds[min(chunk * CHUNK, sizes.tokens - 1)].x < chunk * CHUNK;
}
// The chunks of this block forward; backward, they begin with the last, which the next run shares.
template <bool BACKWARD>
__device__ __forceinline__ Run run_of(const Net& net, const Sizes& sizes) {
    uint32_t first = border(net, sizes, blockIdx.z * sizes.chunks() / gridDim.z);
    uint32_t next = border(net, sizes, (blockIdx.z + 1) * sizes.chunks() / gridDim.z);
    uint32_t count = first == next ? 0 : next + shares(net, sizes, next) - first;
    uint32_t begin = min(first, sizes.chunks() - 1);
    if (BACKWARD) return {begin + max(count, 1u) - 1, count, shares(net, sizes, next) == 1};
    return {begin, count, shares(net, sizes, first) == 1};
}

// Clears the results of tokens behind the last. Their loads, for which nothing waits before, read that one.
__device__ __forceinline__ void clear_behind(Result (&d)[8], uint32_t count) {
#pragma unroll
    for (int i = 0; i < 32; i++)
        if (i / 4 * 8 + column_of() + (i & 1) >= count) d[i / 4][i % 4] = 0;
}

// Eight rows and columns, transposed: lane l has two neighbouring columns of row l / 4.
__device__ __forceinline__ uint32_t transposed(uint32_t a) {
    uint32_t d;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
    return d;
}

// Stores this warp's 16 columns of values of the chunk's tokens, which are the rows of the first operand, through its part of a piece.
__device__ __forceinline__ void store_values(__half* to, size_t stride, uint32_t count, const Left (&a)[4], uint32_t piece) {
    uint32_t l = lane_of();
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16; i++) {
        uint32_t row = i / 4 * 16 + (i >> 1 & 1) * 8 + row_of();
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(piece + part_at(row, warp_of() * 2 + (i & 1)) + column_of() * 2), "r"(transposed(a[i / 4][i % 4]))
                     : "memory");
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t row = i * 16 + l / 2;
        uint4 eight;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(eight.x), "=r"(eight.y), "=r"(eight.z), "=r"(eight.w)
                     : "r"(piece + part_at(row, warp_of() * 2 + l % 2))
                     : "memory");
        if (row < count) *(uint4*)(to + row * stride + l % 2 * 8) = eight;
    }
}
