// Attention of forward.cuh by mma.sync, for heads of up to 256 numbers.
#include "forward.cuh"

// A block of 128 queries. The scores of the next keys are multiplied beside the products with the values of these. Longer than 60 lines: what
// the steps of one loop share.
__device__ __forceinline__ void forward_block(const Forward& a, uint32_t memory, uint32_t head, uint32_t query0) {
    constexpr int KEYS = SLOT / 2 / HEAD;
    using Keys = Stage<KEYS>;
    uint32_t last = (a.rows - 1) / 16, kv = head / (a.heads / a.kv_heads);
    const char* k = a.k + (size_t)kv * DEPTH * a.tiles * 512;
    const char* v = a.v + (size_t)kv * DEPTH * a.tiles * 512;
    uint32_t warp_query = query0 + threadIdx.x / 32 * 16, query = warp_query + threadIdx.x % 32 / 4;
    uint32_t first[2] = {first_key(a, query), first_key(a, query + 8)}, end[2] = {query + 1, query + 9}, all_see = first_key(a, warp_query + 15);
    uint32_t begin = first_key(a, query0) / KEYS, blocks = (min(query0 + 128, a.rows) + KEYS - 1) / KEYS - begin;
    float scale = scale_of(a);
#if CAPPED
    Cap cap(a);
#endif
    float most[2] = {LOWEST, LOWEST}, sum[2] = {0.f, 0.f}, change[2];
    uint32_t q[DEPTH][4], p[KEYS / 16][4];
    float s[KEYS / 2], o[HEAD / 2];
    // Starts with the keys next to the queries: block i from the end.
    auto key_of = [&](uint32_t i) { return (begin + blocks - 1 - i) * KEYS; };
    auto copy_keys = [&](uint32_t i) {
        if (i < blocks) Keys::copy(memory, k, a.tiles, key_of(i), last);
        copies_end();
    };
    auto copy_values = [&](uint32_t i) {
        if (i < blocks) Keys::copy(memory + (1 + (i & 1)) * SLOT, v, a.tiles, key_of(i), last);
        copies_end();
    };
    auto mask = [&](uint32_t i) {
        uint32_t key0 = key_of(i);
#if CAPPED
#pragma unroll
        for (int n = 0; n < KEYS / 2; n++) s[n] = cap.score_of(cap.share_of(s[n]));
#endif
        if (key0 + KEYS > warp_query + 1 || key0 < all_see) hide(s, key0, first, end);
    };
    copy_keys(0);
    copy_values(0);
    read_rows(q, a.q + (size_t)head * DEPTH * a.tiles * 512, a.tiles, min(warp_query / 16, last));
#pragma unroll
    for (int i = 0; i < HEAD / 2; i++) o[i] = 0.f;
    copies_wait<1>();
    products_begin();
#pragma unroll
    for (int n = 0; n < DEPTH; n++) multiply<0>(s, q[n], Keys::rows(memory, n), n > 0);
    products_commit();
    products_wait<0>(s);
    __syncthreads();
    copy_keys(1);
    mask(0);
    weigh(s, most, sum, change, scale);
    pack(p, s);
    for (uint32_t i = 0; i + 1 < blocks; i++) {
        copies_wait<0>();
        copy_values(i + 1);
        products_begin();
#pragma unroll
        for (int n = 0; n < DEPTH; n++) multiply<0>(s, q[n], Keys::rows(memory, n), n > 0);
        products_commit();
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) multiply<1>(o, p[n], Keys::columns(memory + (1 + (i & 1)) * SLOT, n), 1);
        products_commit();
        products_wait<1>(s);
        __syncthreads();
        copy_keys(i + 2);
        mask(i + 1);
        weigh(s, most, sum, change, scale);
        products_wait<0>(o);
#pragma unroll
        for (int n = 0; n < HEAD / 2; n++) o[n] *= change[n >> 1 & 1];
        pack(p, s);
    }
    copies_wait<0>();
    products_begin();
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++) multiply<1>(o, p[n], Keys::columns(memory + (1 + (blocks - 1 & 1)) * SLOT, n), 1);
    products_commit();
    float factor[2];
    finish(a, factor, most, sum, head, query, true);
    products_wait<0>(o);
    leave(a, o, factor, head, 0, query);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) forward(const __grid_constant__ Forward a) {
    __shared__ __align__(1024) char memory[3 * SLOT];
    uint32_t at = (uint32_t)__cvta_generic_to_shared(memory), all = (a.rows + 127) / 128;
    wait_for_previous();
    // The last queries see the most keys, so they start first.
    for (uint32_t i = blockIdx.x; i < all * a.heads; i += gridDim.x) {
        __syncthreads();
        forward_block(a, at, i % a.heads, (all - 1 - i / a.heads) * 128);
    }
}
