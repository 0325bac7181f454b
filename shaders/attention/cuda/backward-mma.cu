// The kernel of backward.cuh by mma.sync, in 48 KiB of shared memory: a block computes rows of one of dq, dk and dv, and holds two operands of
// its rows in registers.
#include "backward.cuh"

enum Way { DQ, DK, DV };

// Rows of a stage. It holds those of two operands: keys and values, or queries and dout.
constexpr int STEP = SLOT / 4 / HEAD;
using Rows = Stage<STEP>;

// Registers hold the results of at most 128 columns beside two operands of 256. Both warpgroups then have the same rows.
template <int WAY>
constexpr bool halved = HEAD == 256 && WAY != DV;
template <int WAY>
constexpr uint32_t own_rows = halved<WAY> ? 64 : 128;

// A block of rows from row0 on: queries of a head for dq, else keys and a share of the query heads that read them. Scores and the gradients
// of weights of the next stage are multiplied beside the products with this one. Longer than 60 lines: the steps of one loop share much.
template <int WAY>
__device__ __forceinline__ void block(const Backward& a, float* shared, uint32_t memory, uint32_t own_head, uint32_t share, uint32_t row0) {
    constexpr int N = HEAD / (halved<WAY> ? 2 : 1);
    uint32_t last = (a.rows - 1) / 16, group = a.heads / a.kv_heads, of_share = group / a.shares, lane = threadIdx.x % 32,
             half = halved<WAY> ? threadIdx.x / 128 : 0;
    Met<WAY == DQ, own_rows<WAY>, STEP> met(a, row0);
    uint32_t row = met.row, all = WAY == DQ ? met.stages : of_share * met.stages;
    float unit = WAY == DQ ? 1.f : largest_unit(a, shared, own_head * group + share * of_share, of_share, row0, met.end);

    // A stage holds rows of keys and values, or of queries and dout.
    using Place = typename decltype(met)::Place;
    Place now{WAY == DQ ? own_head / group : own_head * group + share * of_share, met.begin * STEP};
    size_t head_bytes = (size_t)DEPTH * a.tiles * 512, dout_bytes = (size_t)DEPTH * a.dout_tiles * 512;
    auto copy = [&](uint32_t slot, Place place) {
        const char* second = WAY == DQ ? a.v + place.head * head_bytes : a.dout + place.head * dout_bytes;
        Rows::copy(slot, (WAY == DQ ? a.k : a.q) + place.head * head_bytes, a.tiles, place.row, last);
        Rows::copy(slot + SLOT / 2, second, WAY == DQ ? a.tiles : a.dout_tiles, place.row, last);
    };
    uint32_t x[DEPTH][4], y[WAY == DV ? 1 : DEPTH][4], w[STEP / 16][4];
    float s[STEP / 2], dp[WAY == DV ? 1 : STEP / 2], d[N / 2];
    // The values of queries: of this thread's rows for dq, else of its columns. `shift` is the weights' exponent without a score: weights are
    // whole for dq, else they and their gradients are in the largest unit.
    constexpr int VALUES = WAY == DQ ? 2 : STEP / 4;
    uint32_t even = (a.rows + 1) & ~1u;
    float shift[VALUES], delta[VALUES], log_unit = WAY == DQ ? 0.f : ilogbf(unit);
    auto read_columns = [&](Place place) {
        const float2* values = a.values + (size_t)place.head * even;
#pragma unroll
        for (int n = 0; n < VALUES / 2; n++) {
            float4 two = *(const float4*)(values + min(place.row + n * 8 + lane % 4 * 2, even - 2));
            shift[n * 2] = -two.x - log_unit, delta[n * 2] = two.y, shift[n * 2 + 1] = -two.z - log_unit, delta[n * 2 + 1] = two.w;
        }
    };
    auto read_row = [&](int n, uint32_t query) {
        query = min(query, a.rows - 1);
        float2 value = a.values[(size_t)own_head * even + query];
        shift[n] = -value.x - ilogbf(__ldg(factors_of(a, own_head) + query)), delta[n] = value.y;
    };
    auto begin_scores = [&](uint32_t slot) {
        products_begin();
#pragma unroll
        for (int n = 0; n < DEPTH; n++) multiply<0>(s, x[n], Rows::rows(slot, n), n > 0);
        products_commit();
        if constexpr (WAY != DV) {
#pragma unroll
            for (int n = 0; n < DEPTH; n++) multiply<0>(dp, y[n], Rows::rows(slot + SLOT / 2, n), n > 0);
            products_commit();
        }
    };
    auto begin_products = [&](uint32_t slot) {
#pragma unroll
        for (int n = 0; n < STEP / 16; n++) multiply<1>(d, w[n], Rows::columns(slot + (WAY == DV ? SLOT / 2 : half * SLOT / 4), n), 1);
        products_commit();
    };
    // Which of a row's values element n of s takes.
    auto of = [](int n) { return WAY == DQ ? n >> 1 & 1 : n / 4 * 2 + (n & 1); };
    float scale = scale_of(a);
#if CAPPED
    Cap cap(a);
#endif
    // With a softcap, weights for dq and dk come times its slope, which their gradients need.
    auto weigh = [&](uint32_t other) {
#if CAPPED
        float slope[STEP / 2];
#pragma unroll
        for (int n = 0; n < STEP / 2; n++) {
            float share = cap.share_of(s[n]);
            s[n] = cap.score_of(share), slope[n] = WAY == DV ? 1.f : cap.slope_of(share);
        }
#endif
        if (other < met.seen_from || other + STEP > met.seen_to) hide(s, other, met.low, met.high);
#pragma unroll
        for (int n = 0; n < STEP / 2; n++) s[n] = exp2_of(fmaf(s[n], scale, shift[of(n)]));
#if CAPPED
#pragma unroll
        for (int n = 0; n < STEP / 2; n++) s[n] *= slope[n];
#endif
    };
    copy(memory, now);
    copies_end();
    read_rows(x, (WAY == DQ ? a.q : a.k) + own_head * head_bytes, a.tiles, min(met.warp_row / 16, last));
    if constexpr (WAY == DQ) read_rows(y, a.dout + own_head * dout_bytes, a.dout_tiles, min(met.warp_row / 16, last));
    if constexpr (WAY == DK) read_rows(y, a.v + own_head * head_bytes, a.tiles, min(met.warp_row / 16, last));
    if constexpr (WAY == DQ)
        read_row(0, row), read_row(1, row + 8);
    else
        read_columns(now);
#pragma unroll
    for (int i = 0; i < N / 2; i++) d[i] = 0.f;
#pragma unroll
    for (int i = 0; i < STEP / 4; i++) w[i / 4][i % 4] = 0;
    // The first products are zero.
    uint32_t slot = memory, before = memory;
    for (uint32_t left = all; left > 0; left--) {
        copies_wait<0>();
        Place next = met.after(now);
        uint32_t next_slot = slot == memory + 2 * SLOT ? memory : slot + SLOT;
        if (left > 1) copy(next_slot, next);
        copies_end();
        begin_scores(slot);
        begin_products(before);
        products_wait<WAY == DV ? 1 : 2>(s);
        weigh(now.row);
        if constexpr (WAY != DV) {
            products_wait<1>(dp);
#pragma unroll
            for (int n = 0; n < STEP / 2; n++) s[n] *= dp[n] - delta[of(n)];
        }
        if (WAY != DQ && left > 1) read_columns(next);
        products_wait<0>(d);
        pack(w, s);
        before = slot, slot = next_slot, now = next;
    }
    products_begin();
    begin_products(before);
    products_wait<0>(d);
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; r++)
        factor[r] = WAY == DQ ? __ldg(factors_of(a, own_head) + min(row + r * 8, a.rows - 1)) / a.k_scale : WAY == DK ? unit / a.q_scale : unit;
    float* to = WAY == DQ ? a.dq : WAY == DK ? a.dk : a.dv;
    uint32_t stride = (WAY == DQ ? a.heads : a.kv_heads) * HEAD;
    bool shared_out = WAY != DQ && a.shares > 1;
    if (shared_out) to = a.sums + (size_t)(share + (WAY == DV ? a.shares : 0)) * a.rows * stride;
    leave(a, to + own_head * HEAD + half * N, d, row, stride, factor, WAY != DQ && !shared_out);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) backward(const __grid_constant__ Backward a) {
    wait_for_previous();
    __shared__ __align__(1024) char memory[3 * SLOT];
    uint32_t at = (uint32_t)__cvta_generic_to_shared(memory);
    auto blocks = [&](uint32_t rows, uint32_t heads) { return (a.rows + rows - 1) / rows * heads; };
    uint32_t each = a.kv_heads * a.shares;
    uint32_t dk = blocks(own_rows<DK>, each), dv = dk + blocks(own_rows<DV>, each), dq = dv + blocks(own_rows<DQ>, a.heads);
    // The longest blocks start first: those of keys, which the queries of several heads see, and of these the first.
    for (uint32_t i = blockIdx.x; i < dq; i += gridDim.x) {
        __syncthreads();
        if (i < dk)
            block<DK>(a, (float*)memory, at, i % each / a.shares, i % a.shares, i / each * own_rows<DK>);
        else if (i < dv)
            block<DV>(a, (float*)memory, at, (i - dk) % each / a.shares, (i - dk) % a.shares, (i - dk) / each * own_rows<DV>);
        else
            block<DQ>(a, (float*)memory, at, (dq - 1 - i) % a.heads, 0, (dq - 1 - i) / a.heads * own_rows<DQ>);
    }
}
