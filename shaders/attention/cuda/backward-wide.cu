// The kernel of backward.cuh by wgmma, for heads of 256 numbers: a block computes 64 rows of dq, or of both dk and dv. The operands of its rows are
// in shared memory too. Both warpgroups have the same rows: results of 64 fill their registers.
#include "backward.cuh"

enum Way { QUERIES, KEYS };

// Rows of a stage, which holds those of two operands: keys and values, or queries and dout. Rows of a block, whose two operands stay in shared
// memory.
constexpr int STEP = 64, OWN = 64, SLOTS = 2;
using Rows = Stage<STEP>;
using Own = Stage<OWN>;
// Shared memory: both operands of a block, stages, the values of their queries, the units that warps found, and what warpgroups exchange.
constexpr int STAGES_AT = 2 * Own::BYTES, VALUES_AT = STAGES_AT + SLOTS * 2 * Rows::BYTES, UNITS_AT = VALUES_AT + SLOTS * STEP * 8,
              EXCHANGE_AT = UNITS_AT + 64, EXCHANGE = 64 * STEP * 4, ALL_BYTES = EXCHANGE_AT + 2 * EXCHANGE;
static_assert(ALL_BYTES <= 227 * 1024, "a block of compute capability 9.0 has no more");

// A block of rows from row0 on: queries of a head for dq, else keys and a share of the query heads that read them, for dk and dv. A
// warpgroup makes the weights and the other one their gradients; of dq each has half the columns, and of keys one has dk and the other dv. Longer
// than 60 lines: the steps of one loop share much.
template <int WAY>
__device__ __forceinline__ void block(const Backward& a, char* memory, uint32_t base, uint32_t own_head, uint32_t share, uint32_t row0) {
    constexpr int N = WAY == QUERIES ? HEAD / 2 : HEAD;
    uint32_t last = (a.rows - 1) / 16, group = a.heads / a.kv_heads, of_share = group / a.shares, lane = threadIdx.x % 32,
             half = __shfl_sync(~0u, threadIdx.x / 128, 0);
    Met<WAY == QUERIES, OWN, STEP> met(a, row0);
    uint32_t row = met.row, all = WAY == QUERIES ? met.stages : of_share * met.stages;
    float unit = WAY == QUERIES ? 1.f : largest_unit(a, (float*)(memory + UNITS_AT), own_head * group + share * of_share, of_share, row0, met.end);
    float log_unit = WAY == QUERIES ? 0.f : ilogbf(unit);
    uint32_t even = (a.rows + 1) & ~1u;

    // A stage holds rows of keys and values, or of queries and dout.
    using Place = typename decltype(met)::Place;
    Place now{WAY == QUERIES ? own_head / group : own_head * group + share * of_share, met.begin * STEP};
    size_t head_bytes = (size_t)DEPTH * a.tiles * 512, dout_bytes = (size_t)DEPTH * a.dout_tiles * 512;
    uint32_t second_tiles = WAY == QUERIES ? a.tiles : a.dout_tiles, own_second_tiles = WAY == QUERIES ? a.dout_tiles : a.tiles;
    auto stage_at = [&](uint32_t slot) { return base + STAGES_AT + slot * 2 * Rows::BYTES; };
    auto copy = [&](uint32_t slot, Place place) {
        const char* second = WAY == QUERIES ? a.v + place.head * head_bytes : a.dout + place.head * dout_bytes;
        Rows::copy(stage_at(slot), (WAY == QUERIES ? a.k : a.q) + place.head * head_bytes, a.tiles, place.row, last);
        Rows::copy(stage_at(slot) + Rows::BYTES, second, second_tiles, place.row, last);
        if (WAY == KEYS && threadIdx.x < STEP / 2)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(base + VALUES_AT + slot * STEP * 8 + threadIdx.x * 16),
                         "l"(a.values + (size_t)place.head * even + min(place.row + threadIdx.x * 2, even - 2))
                         : "memory");
    };
    float s[STEP / 2], dp[STEP / 2], d[N / 2];
    uint32_t w[STEP / 16][4];
    // 2^(score + shift) is a weight: whole for dq, else in the largest unit. `delta` is Σ dout·out of a query.
    float row_shift[2], row_delta[2];
    if (WAY == QUERIES)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t query = min(row + r * 8, a.rows - 1);
            float2 value = a.values[(size_t)own_head * even + query];
            row_shift[r] = -value.x - ilogbf(__ldg(factors_of(a, own_head) + query)), row_delta[r] = value.y;
        }
    auto values_of = [&](uint32_t slot, int i) { return *(const float4*)(memory + VALUES_AT + slot * STEP * 8 + (i * 8 + lane % 4 * 2) * 8); };
    auto begin_scores = [&](uint32_t slot) {
#pragma unroll
        for (int n = 0; n < DEPTH; n++) multiply_shared(s, Own::rows(base, n), Rows::rows(stage_at(slot), n), n > 0);
        products_commit();
    };
    auto begin_gradients = [&](uint32_t slot) {
#pragma unroll
        for (int n = 0; n < DEPTH; n++)
            multiply_shared(dp, Own::rows(base + Own::BYTES, n), Rows::rows(stage_at(slot) + Rows::BYTES, n), n > 0);
        products_commit();
    };
    auto begin_product = [&](uint32_t from) {
#pragma unroll
        for (int n = 0; n < STEP / 16; n++) multiply<1>(d, w[n], Rows::columns(from, n), 1);
        products_commit();
    };
    float scale = scale_of(a);
#if CAPPED
    Cap cap(a);
    float slope[STEP / 2];
#endif
    auto weigh = [&](uint32_t slot, uint32_t other) {
#if CAPPED
#pragma unroll
        for (int n = 0; n < STEP / 2; n++) {
            float share = cap.share_of(s[n]);
            s[n] = cap.score_of(share), slope[n] = cap.slope_of(share);
        }
#endif
        if (other < met.seen_from || other + STEP > met.seen_to) hide(s, other, met.low, met.high);
#pragma unroll
        for (int i = 0; i < STEP / 8; i++) {
            float4 v = WAY == KEYS ? values_of(slot, i) : float4{};
#pragma unroll
            for (int n = i * 4; n < i * 4 + 4; n++)
                s[n] = exp2_of(fmaf(s[n], scale, WAY == QUERIES ? row_shift[n >> 1 & 1] : -(n & 1 ? v.z : v.x) - log_unit));
        }
    };
    // With a softcap, gradients of weights come times its slope.
    auto slopes = [&] {
#if CAPPED
#pragma unroll
        for (int n = 0; n < STEP / 2; n++) s[n] *= slope[n];
#endif
    };
    auto score_gradients = [&](uint32_t slot) {
#pragma unroll
        for (int i = 0; i < STEP / 8; i++) {
            float4 v = WAY == KEYS ? values_of(slot, i) : float4{};
#pragma unroll
            for (int n = i * 4; n < i * 4 + 4; n++) s[n] *= dp[n] - (WAY == QUERIES ? row_delta[n >> 1 & 1] : n & 1 ? v.w : v.y);
        }
    };
    Own::copy(base, (WAY == QUERIES ? a.q : a.k) + own_head * head_bytes, a.tiles, row0, last);
    Own::copy(base + Own::BYTES, WAY == QUERIES ? a.dout + own_head * dout_bytes : a.v + own_head * head_bytes, own_second_tiles, row0, last);
    copy(0, now);
    copies_end();
#pragma unroll
    for (int i = 0; i < N / 2; i++) d[i] = 0.f;
    uint32_t slot = 0;
    for (uint32_t left = all; left > 0; left--) {
        products_wait<0>(d);
        copies_wait<0>();
        Place next = met.after(now);
        uint32_t next_slot = slot + 1 == SLOTS ? 0 : slot + 1;
        if (left > 1) copy(next_slot, next);
        copies_end();
        products_begin();
        char* exchange = memory + EXCHANGE_AT;
        if (half == 0) {
            begin_gradients(slot);
            products_wait<0>(dp);
            if (WAY == QUERIES) send(exchange + EXCHANGE, dp);
            __syncthreads();
            receive(s, exchange);
            score_gradients(slot);
        } else {
            begin_scores(slot);
            products_wait<0>(s);
            weigh(slot, now.row);
            if (WAY == KEYS) pack(w, s);
            slopes();
            send(exchange, s);
            __syncthreads();
            if (WAY == QUERIES) receive(dp, exchange + EXCHANGE), score_gradients(slot);
        }
        if (WAY == QUERIES || half == 0) pack(w, s);
        products_begin();
        begin_product(stage_at(slot) + (WAY == QUERIES ? half * Rows::BYTES / 2 : half * Rows::BYTES));
        slot = next_slot, now = next;
    }
    products_wait<0>(d);
    bool of_values = WAY == KEYS && half == 1;
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; r++)
        factor[r] = WAY == QUERIES ? __ldg(factors_of(a, own_head) + min(row + r * 8, a.rows - 1)) / a.k_scale : of_values ? unit : unit / a.q_scale;
    uint32_t stride = (WAY == QUERIES ? a.heads : a.kv_heads) * HEAD;
    bool shared_out = WAY == KEYS && a.shares > 1;
    auto place_of = [&](bool of_values) {
        float* to = WAY == QUERIES ? a.dq : of_values ? a.dv : a.dk;
        if (shared_out) to = a.sums + (size_t)(share + (of_values ? a.shares : 0)) * a.rows * stride;
        return to + own_head * HEAD;
    };
    leave(a, place_of(of_values) + (WAY == QUERIES ? half * (HEAD - N) : 0), d, row, stride, factor, WAY == KEYS && !shared_out);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) backward(const __grid_constant__ Backward a) {
    wait_for_previous();
    extern __shared__ __align__(1024) char memory[];
    uint32_t at = (uint32_t)__cvta_generic_to_shared(memory), down = (a.rows + OWN - 1) / OWN, each = a.kv_heads * a.shares;
    // The longest blocks start first: those of keys, which the queries of several heads see, and of these the first.
    for (uint32_t i = blockIdx.x, keys = down * each, all = keys + down * a.heads; i < all; i += gridDim.x) {
        __syncthreads();
        if (i < keys)
            block<KEYS>(a, memory, at, i % each / a.shares, i % a.shares, i / each * OWN);
        else
            block<QUERIES>(a, memory, at, (all - 1 - i) % a.heads, 0, (all - 1 - i) / a.heads * OWN);
    }
}
