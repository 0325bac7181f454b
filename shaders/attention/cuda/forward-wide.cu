// Attention of forward.cuh by wgmma, for heads of 512 numbers. Both warpgroups have the same 64 queries: each multiplies half of a head's numbers
// for the scores, which they exchange, and has half of the columns of the result.
#include "forward.cuh"

constexpr int KEYS = 64, QUERIES = 64;
using Rows = Stage<KEYS>;
constexpr int KEYS_AT = Rows::BYTES, VALUES_AT = 2 * Rows::BYTES, EXCHANGE_AT = 3 * Rows::BYTES, EXCHANGE = QUERIES * KEYS * 4;
static_assert(EXCHANGE_AT + 2 * EXCHANGE <= 227 * 1024, "a block of compute capability 9.0 has no more");

__device__ __forceinline__ void forward_block(const Forward& a, char* memory, uint32_t base, uint32_t head, uint32_t query0) {
    uint32_t last = (a.rows - 1) / 16, kv = head / (a.heads / a.kv_heads), half = __shfl_sync(~0u, threadIdx.x / 128, 0);
    const char* k = a.k + (size_t)kv * DEPTH * a.tiles * 512;
    const char* v = a.v + (size_t)kv * DEPTH * a.tiles * 512;
    uint32_t warp_query = query0 + threadIdx.x / 32 % 4 * 16, query = warp_query + threadIdx.x % 32 / 4;
    uint32_t first[2] = {first_key(a, query), first_key(a, query + 8)}, end[2] = {query + 1, query + 9}, all_see = first_key(a, warp_query + 15);
    uint32_t begin = first_key(a, query0) / KEYS, blocks = (min(query0 + QUERIES, a.rows) + KEYS - 1) / KEYS - begin;
    float most[2] = {LOWEST, LOWEST}, sum[2] = {0.f, 0.f}, change[2], s[KEYS / 2], other[KEYS / 2], o[HEAD / 4];
    uint32_t p[KEYS / 16][4];
#pragma unroll
    for (int i = 0; i < HEAD / 4; i++) o[i] = 0.f;
    // Starts with the keys next to the queries: block i from the end.
    auto key_of = [&](uint32_t i) { return (begin + blocks - 1 - i) * KEYS; };
    Rows::copy(base, a.q + (size_t)head * DEPTH * a.tiles * 512, a.tiles, query0, last);
    Rows::copy(base + KEYS_AT, k, a.tiles, key_of(0), last);
    copies_end();
    for (uint32_t i = 0; i < blocks; i++) {
        uint32_t key0 = key_of(i);
        products_wait<0>(o);
        copies_wait<0>();
        Rows::copy(base + VALUES_AT, v, a.tiles, key0, last);
        copies_end();
        products_begin();
#pragma unroll
        for (int n = 0; n < DEPTH / 2; n++)
            multiply_shared(s, Rows::rows(base + half * Rows::BYTES / 2, n), Rows::rows(base + KEYS_AT + half * Rows::BYTES / 2, n), n > 0);
        products_commit();
        products_wait<0>(s);
        send(memory + EXCHANGE_AT + half * EXCHANGE, s);
        __syncthreads();
        if (i + 1 < blocks) Rows::copy(base + KEYS_AT, k, a.tiles, key_of(i + 1), last);
        copies_end();
        receive(other, memory + EXCHANGE_AT + (1 - half) * EXCHANGE);
#pragma unroll
        for (int n = 0; n < KEYS / 2; n++) s[n] += other[n];
        if (key0 + KEYS > warp_query + 1 || key0 < all_see) hide(s, key0, first, end);
        weigh(s, most, sum, change, a.scale * LOG2E);
#pragma unroll
        for (int n = 0; n < HEAD / 4; n++) o[n] *= change[n >> 1 & 1];
        pack(p, s);
        copies_wait<1>();
        products_begin();
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) multiply<1>(o, p[n], Rows::columns(base + VALUES_AT + half * Rows::BYTES / 2, n), 1);
        products_commit();
    }
    float factor[2];
    finish(a, factor, most, sum, head, query, half == 0);
    products_wait<0>(o);
    leave(a, o, factor, head, half * HEAD / 2, query);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) forward(const __grid_constant__ Forward a) {
    extern __shared__ __align__(1024) char memory[];
    uint32_t at = (uint32_t)__cvta_generic_to_shared(memory), all = (a.rows + QUERIES - 1) / QUERIES;
    wait_for_previous();
    // The last queries see the most keys, so they start first.
    for (uint32_t i = blockIdx.x; i < all * a.heads; i += gridDim.x) {
        __syncthreads();
        forward_block(a, memory, at, i % a.heads, (all - 1 - i / a.heads) * QUERIES);
    }
}
