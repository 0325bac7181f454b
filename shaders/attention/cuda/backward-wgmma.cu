// The kernel of backward.cuh by wgmma, for heads of up to 128 numbers: a block computes rows of dq, or of both dk and dv. A warpgroup copies, and two
// others have 64 rows each: one makes weights while the other multiplies.
#include "backward.cuh"
#include "rings.cuh"

enum Way { OF_QUERIES, OF_KEYS };

// Rows of a stage, which holds those of two operands: keys and values, or queries and dout. Rows of a block.
constexpr int STEP = 64, OWN = GROUPS * 64, STAGES = HEAD == 64 ? 6 : 4;
// Whether keys and values are in registers, where heads leave room beside their gradients.
constexpr bool HOLDS_KEYS = HEAD == 64;
// Whether the two warpgroups take turns to multiply.
constexpr bool TURNS_OF_QUERIES = true, TURNS_OF_KEYS = HEAD == 128;
using Rows = Stage<STEP>;
using Own = Stage<OWN>;
// Shared memory: both operands of a block, stages, the values of their queries, barriers, what a task says, and what belongs to the rows of a block.
constexpr int STAGES_AT = 2 * Own::BYTES, VALUES_AT = STAGES_AT + STAGES * 2 * Rows::BYTES, BARRIERS_AT = VALUES_AT + STAGES * STEP * 8,
              SAID_AT = BARRIERS_AT + 16 + STAGES * 16, UNITS_AT = SAID_AT + 32, BOUNDS_AT = UNITS_AT + 16, OWN_VALUES_AT = BOUNDS_AT + OWN * 8,
              FACTORS_AT = OWN_VALUES_AT + OWN * 8, ALL_BYTES = FACTORS_AT + OWN * 4;
static_assert(ALL_BYTES <= 227 * 1024, "a block of compute capability 9.0 has no more");

using OwnSlot = Slots<1, BARRIERS_AT>;
using Ring = Slots<STAGES, BARRIERS_AT + 16>;

// Tasks that were taken, but for the first of each block; blocks that have ended. Both are 0 between launches.
__device__ uint32_t taken, ended;

// Rows of a block, and the rows of the others that they meet: from `begin` to below `end`, of some heads one after the other. The longest tasks are
// the first: those of keys, which the queries of several heads see, and of these the first.
struct Task {
    Way way;
    uint32_t own_head, share, row0, head, heads, begin = 0, end = 0;
    static __device__ __forceinline__ uint32_t of_keys(const Backward& a) { return (a.rows + OWN - 1) / OWN * a.kv_heads * a.shares; }
    static __device__ __forceinline__ uint32_t count(const Backward& a) { return (a.rows + OWN - 1) / OWN * a.heads + of_keys(a); }
    __device__ __forceinline__ Task(const Backward& a, uint32_t i, Way way) : way(way) {
        uint32_t group = a.heads / a.kv_heads, each = a.kv_heads * a.shares, from_last = count(a) - 1 - i;
        if (way == OF_KEYS) {
            own_head = i % each / a.shares, share = i % a.shares, row0 = i / each * OWN;
            heads = group / a.shares, head = own_head * group + share * heads;
        } else {
            own_head = from_last % a.heads, share = 0, row0 = from_last / a.heads * OWN;
            heads = 1, head = own_head / group;
        }
    }
    __device__ __forceinline__ void look(const Backward& a) {
        uint32_t end_row = min(row0 + OWN, a.rows);
        begin = way == OF_KEYS ? row0 : first_key(a, row0) / STEP * STEP;
        end = way == OF_KEYS ? end_query(a, end_row - 1) : end_row;
    }
    __device__ __forceinline__ uint32_t stages() const { return (end - begin + STEP - 1) / STEP * heads; }
};

// What the copying warpgroup says of a task; `next` is for itself.
struct Said {
    uint32_t task, begin, end;
    float unit;
    uint32_t next;
};

template <int BYTES>
__device__ __forceinline__ void copy_few(uint32_t to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(BYTES) : "memory");
}

// Copies tasks, until there are no more.
struct Copier {
    const Backward& a;
    char* memory;
    uint32_t base;
    OwnSlot own;
    Ring ring;
    uint32_t last = (a.rows - 1) / 16, even = (a.rows + 1) & ~1u;

    __device__ __forceinline__ const char* rows_of(const char* all, uint32_t tiles, uint32_t head) const {
        return all + (size_t)head * DEPTH * tiles * 512;
    }
    // The operands of a block, and what belongs to its rows.
    __device__ __forceinline__ void copy_own(const Task& t) {
        bool of_keys = t.way == OF_KEYS;
        uint32_t tiles = of_keys ? a.tiles : a.dout_tiles, row = min(t.row0 + threadIdx.x, a.rows - 1);
        copy_rows<OWN>(base, rows_of(of_keys ? a.k : a.q, a.tiles, t.own_head), a.tiles, t.row0, last);
        copy_rows<OWN>(base + Own::BYTES, rows_of(of_keys ? a.v : a.dout, tiles, t.own_head), tiles, t.row0, last);
        copy_few<8>(base + BOUNDS_AT + threadIdx.x * 8, a.bounds + row);
        if (!of_keys) {
            copy_few<8>(base + OWN_VALUES_AT + threadIdx.x * 8, a.values + (size_t)t.own_head * even + row);
            copy_few<4>(base + FACTORS_AT + threadIdx.x * 4, factors_of(a, t.own_head) + row);
        }
        arrive_copied(own.full());
    }
    __device__ __forceinline__ void copy_stage(const Task& t, uint32_t head, uint32_t row) {
        bool of_keys = t.way == OF_KEYS;
        uint32_t to = base + STAGES_AT + ring.slot * 2 * Rows::BYTES, tiles = of_keys ? a.dout_tiles : a.tiles;
        ring.wait_free();
        copy_rows<STEP>(to, rows_of(of_keys ? a.q : a.k, a.tiles, head), a.tiles, row, last);
        copy_rows<STEP>(to + Rows::BYTES, rows_of(of_keys ? a.dout : a.v, tiles, head), tiles, row, last);
        if (of_keys && threadIdx.x < STEP / 2)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(base + VALUES_AT + ring.slot * STEP * 8 + threadIdx.x * 16),
                         "l"(a.values + (size_t)head * even + min(row + threadIdx.x * 2, even - 2))
                         : "memory");
        arrive_copied(ring.full());
        ring.next();
    }
    __device__ __forceinline__ float unit_of(const Task& t) const {
        float unit = largest_of(a, t.head, t.heads, t.row0, t.end, COPIERS);
        volatile float* units = (volatile float*)(memory + UNITS_AT);
        if (threadIdx.x % 32 == 0) units[threadIdx.x / 32] = unit;
        named_sync<COPIERS>(1 + GROUPS);
        for (int i = 0; i < COPIERS / 32; i++) unit = fmaxf(unit, units[i]);
        return unit;
    }
    __device__ __forceinline__ void run() {
        volatile Said& said = *(volatile Said*)(memory + SAID_AT);
        uint32_t all = Task::count(a), i = blockIdx.x;
        while (i < all) {
            Task t(a, i, i < Task::of_keys(a) ? OF_KEYS : OF_QUERIES);
            t.look(a);
            float unit = t.way == OF_KEYS ? unit_of(t) : 1.f;
            own.wait_free();
            if (threadIdx.x == 0) said.task = i, said.begin = t.begin, said.end = t.end, said.unit = unit, arrive(own.full());
            copy_own(t);
            own.next();
            for (uint32_t head = t.head; head < t.head + t.heads; head++)
                for (uint32_t row = t.begin; row < t.end; row += STEP) copy_stage(t, head, row);
            if (threadIdx.x == 0) said.next = gridDim.x + atomicAdd(&taken, 1);
            named_sync<COPIERS>(1 + GROUPS);
            i = said.next;
            named_sync<COPIERS>(1 + GROUPS);
        }
        own.wait_free();
        if (threadIdx.x == 0) said.task = i, arrive(own.full());
        arrive_copied(own.full());
        if (threadIdx.x == 0 && atomicInc(&ended, gridDim.x - 1) == gridDim.x - 1) taken = 0;
    }
};

// This thread's place among those that multiply; `own`: the first of 16 rows of a block that its warp has.
struct Place {
    char* memory;
    uint32_t base, group = __shfl_sync(~0u, threadIdx.x / 128, 0) - 1, lane = threadIdx.x % 32, own = group * 64 + threadIdx.x / 32 % 4 * 16;
    __device__ __forceinline__ Place(char* memory, uint32_t base) : memory(memory), base(base) {}
    __device__ __forceinline__ uint32_t stage(uint32_t slot) const { return base + STAGES_AT + slot * 2 * Rows::BYTES; }
    // Waits for this group's turn to multiply; gives it to the other one. Both have as many turns.
    __device__ __forceinline__ void turn() const { named_sync<256>(1 + group); }
    __device__ __forceinline__ void pass() const { named_arrive<256>(2 - group); }
    // The operands of this group's rows, as the first one of products.
    __device__ __forceinline__ void read_own(uint32_t (&first)[DEPTH][4], uint32_t (&second)[DEPTH][4]) const {
#pragma unroll
        for (int n = 0; n < DEPTH; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                uint32_t row = own + lane / 4 + (j & 1) * 8, half = j >> 1 ^ (row >> 2 & 1);
                const char* at = memory + (n * OWN + row) * 32 + half * 16 + lane % 4 * 4;
                first[n][j] = *(const uint32_t*)at, second[n][j] = *(const uint32_t*)(at + Own::BYTES);
            }
        __syncwarp();
    }
};

// The rows of the others that rows of a group see or that see them: of two rows, of all of a warp's 16, and of any of the 64.
template <Way WAY>
struct Sight {
    uint32_t low[2], high[2], seen_from, seen_to, group_from, group_to;
    __device__ __forceinline__ Sight(const Backward& a, const Place& place, const Task& t) {
        const uint2* bounds = (const uint2*)(place.memory + BOUNDS_AT);
        auto low_of = [&](uint32_t row) {
            row = WAY == OF_KEYS ? row : min(row, a.rows - 1);
            return WAY == OF_KEYS ? row : first_of(row, bounds[row - t.row0].x, a.window);
        };
        auto high_of = [&](uint32_t row) {
            if (WAY == OF_QUERIES) return row + 1;
            uint32_t end = row < a.rows ? bounds[row - t.row0].y : 0;
            return a.window ? min(end, row + a.window) : end;
        };
        uint32_t warp_row = t.row0 + place.own, row = warp_row + place.lane / 4, group_row = t.row0 + place.group * 64;
#pragma unroll
        for (int r = 0; r < 2; r++) low[r] = low_of(row + r * 8), high[r] = high_of(row + r * 8);
        seen_from = low_of(warp_row + 15), seen_to = warp_row + 15 < a.rows ? high_of(warp_row) : 0;
        group_from = low_of(group_row), group_to = group_row < a.rows ? high_of(min(group_row + 63, a.rows - 1)) : 0;
    }
    __device__ __forceinline__ bool any(uint32_t other) const { return other < group_to && other + STEP > group_from; }
    __device__ __forceinline__ void hide_unseen(float (&s)[STEP / 2], uint32_t other) const {
        if (other < seen_from || other + STEP > seen_to) hide(s, other, low, high);
    }
};

// Weights from scores, 2^(score + shift).
struct Weights {
    float scale;
#if CAPPED
    Cap cap;
    __device__ __forceinline__ explicit Weights(const Backward& a) : scale(scale_of(a)), cap(a) {}
    // The share stands for the score, negative: one that is hidden then has no weight and no slope.
    __device__ __forceinline__ void begin(float (&s)[STEP / 2]) const {
#pragma unroll
        for (int n = 0; n < STEP / 2; n++) s[n] = -cap.share_of(s[n]);
    }
    __device__ __forceinline__ float of(float s, float shift) const { return exp2_of(fmaf(cap.score_of(-s), scale, shift)); }
    // With a softcap, gradients of weights come times its slope.
    __device__ __forceinline__ float sloped(float weight, float s) const { return weight * Cap::slope_of(fminf(-s, 1.f)); }
#else
    __device__ __forceinline__ explicit Weights(const Backward& a) : scale(scale_of(a)) {}
    __device__ __forceinline__ void begin(float (&)[STEP / 2]) const {}
    __device__ __forceinline__ float of(float s, float shift) const { return exp2_of(fmaf(s, scale, shift)); }
    __device__ __forceinline__ float sloped(float weight, float) const { return weight; }
#endif
};

// Scores, or the gradients of weights, of 64 rows and a stage; what they and a stage add to gradients.
__device__ __forceinline__ void begin_pairs(float (&s)[STEP / 2], uint32_t own, uint32_t stage) {
#pragma unroll
    for (int n = 0; n < DEPTH; n++) multiply_shared(s, Own::rows(own, n), Rows::rows(stage, n), n > 0);
    products_commit();
}
__device__ __forceinline__ void begin_pairs(float (&s)[STEP / 2], const uint32_t (&own)[DEPTH][4], uint32_t stage) {
#pragma unroll
    for (int n = 0; n < DEPTH; n++) multiply<0>(s, own[n], Rows::rows(stage, n), n > 0);
    products_commit();
}
__device__ __forceinline__ void begin_sums(float (&d)[HEAD / 2], const uint32_t (&w)[STEP / 16][4], uint32_t stage) {
#pragma unroll
    for (int n = 0; n < STEP / 16; n++) multiply<1>(d, w[n], Rows::columns(stage, n), 1);
    products_commit();
}

// Makes weights before what follows: ptxas would wait for the products beside them first. It does not know that their signs are those of slopes.
__device__ __forceinline__ void made(const float (&s)[STEP / 2]) {
    uint32_t bits = 0;
#pragma unroll
    for (int n = 0; n < STEP / 2; n++) bits |= __float_as_uint(s[n]);
    asm volatile("{\n.reg .pred p, q;\nsetp.lt.s32 q, %0, 0;\nvote.sync.any.pred p, q, -1;\n@!p bra.uni D;\nnanosleep.u32 20;\nD:\n}" ::"r"(bits)
                 : "memory");
}

// dk and dv of 64 keys of a block. Weights are in the largest unit. Longer than 60 lines: the steps of one loop share much.
__device__ __forceinline__ void keys_of(const Backward& a, const Place& place, const Task& t, float unit, const OwnSlot& own, Ring& ring) {
    Sight<OF_KEYS> sight(a, place, t);
    Weights weights(a);
    float log_unit = ilogbf(unit), s[STEP / 2], dp[STEP / 2], d[HEAD / 2], e[HEAD / 2];
    uint32_t w[STEP / 16][4], p[STEP / 16][4], k[DEPTH][4], v[DEPTH][4], own_rows = place.base + place.group * 64 * 32;
    if constexpr (HOLDS_KEYS) place.read_own(k, v);
#pragma unroll
    for (int i = 0; i < HEAD / 2; i++) d[i] = e[i] = 0.f;
    uint32_t other = t.begin;
    for (uint32_t left = t.stages(); left > 0; left--) {
        ring.wait_full();
        uint32_t stage = place.stage(ring.slot);
        if (TURNS_OF_KEYS) place.turn();
        if (!sight.any(other)) {
            if (TURNS_OF_KEYS) place.pass();
        } else {
            // The log-sum-exp and `delta` of two queries.
            const float4* values = (const float4*)(place.memory + VALUES_AT + ring.slot * STEP * 8 + place.lane % 4 * 16);
            products_begin();
            if constexpr (HOLDS_KEYS) {
                begin_pairs(s, k, stage);
                begin_pairs(dp, v, stage + Rows::BYTES);
            } else {
                begin_pairs(s, own_rows, stage);
                begin_pairs(dp, own_rows + Own::BYTES, stage + Rows::BYTES);
            }
            if (TURNS_OF_KEYS) place.pass();
            products_wait<1>(s);
            weights.begin(s);
            sight.hide_unseen(s, other);
#pragma unroll
            for (int n = 0; n < STEP / 2; n += 2) {
                float4 value = values[n / 4 * 4];
                float first = weights.of(s[n], -value.x - log_unit), second = weights.of(s[n + 1], -value.z - log_unit);
                p[n / 8][n % 8 / 2] = half2_of(first, second);
                s[n] = weights.sloped(first, s[n]), s[n + 1] = weights.sloped(second, s[n + 1]);
            }
            products_begin();
            begin_sums(e, p, stage + Rows::BYTES);
            products_wait<1>(dp);
#pragma unroll
            for (int n = 0; n < STEP / 2; n += 2) {
                float4 value = values[n / 4 * 4];
                s[n] *= dp[n] - value.y, s[n + 1] *= dp[n + 1] - value.w;
            }
            pack(w, s);
            products_begin();
            begin_sums(d, w, stage);
            products_wait<0>(d);
            products_wait<0>(e);
        }
        ring.give_back(ring.slot);
        ring.next();
        other += STEP;
        if (other >= t.end) other = t.begin;
    }
    own.give_back(0);
    uint32_t row = t.row0 + place.own + place.lane / 4, stride = a.kv_heads * HEAD;
    bool shared_out = a.shares > 1;
    float* dk = shared_out ? a.sums + (size_t)t.share * a.rows * stride : a.dk;
    float* dv = shared_out ? a.sums + (size_t)(t.share + a.shares) * a.rows * stride : a.dv;
    float of_keys = unit / a.q_scale;
    leave(a, dk + t.own_head * HEAD, d, row, stride, {of_keys, of_keys}, !shared_out);
    leave(a, dv + t.own_head * HEAD, e, row, stride, {unit, unit}, !shared_out);
}

// dq of 64 queries of a block. Weights are whole. The scores of a stage, and the gradients of its weights, are multiplied before the sums over the
// stage before. Longer than 60 lines: the steps of one loop share much.
__device__ __forceinline__ void queries_of(const Backward& a, const Place& place, const Task& t, const OwnSlot& own, Ring& ring) {
    Sight<OF_QUERIES> sight(a, place, t);
    Weights weights(a);
    uint32_t row = t.row0 + place.own + place.lane / 4, q[DEPTH][4], dout[DEPTH][4], w[STEP / 16][4];
    float s[STEP / 2], dp[STEP / 2], d[HEAD / 2], shift[2], delta[2], factor[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        uint32_t i = min(row + r * 8, a.rows - 1) - t.row0;
        float2 value = ((const float2*)(place.memory + OWN_VALUES_AT))[i];
        factor[r] = ((const float*)(place.memory + FACTORS_AT))[i];
        shift[r] = -value.x - ilogbf(factor[r]), delta[r] = value.y;
    }
    place.read_own(q, dout);
    own.give_back(0);
    auto begin = [&] {
        begin_pairs(s, q, place.stage(ring.slot));
        begin_pairs(dp, dout, place.stage(ring.slot) + Rows::BYTES);
    };
    auto weigh = [&](uint32_t other) {
        weights.begin(s);
        sight.hide_unseen(s, other);
#pragma unroll
        for (int n = 0; n < STEP / 2; n++) s[n] = weights.sloped(weights.of(s[n], shift[n >> 1 & 1]), s[n]);
    };
    auto score_gradients = [&] {
#pragma unroll
        for (int n = 0; n < STEP / 2; n++) s[n] *= dp[n] - delta[n >> 1 & 1];
    };
    auto leave_out = [&](bool has_turn) {
        ring.wait_full();
        ring.give_back(ring.slot);
        ring.next();
        if (TURNS_OF_QUERIES && has_turn) place.turn(), place.pass();
    };
#pragma unroll
    for (int i = 0; i < HEAD / 2; i++) d[i] = 0.f;
    uint32_t other = t.begin, end = t.begin + t.stages() * STEP;
    for (; other < end && !sight.any(other); other += STEP) leave_out(other + STEP < end);
    if (other < end) {
        ring.wait_full();
        products_begin();
        begin();
        products_wait<1>(s);
        weigh(other);
        products_wait<0>(dp);
        score_gradients();
        pack(w, s);
        uint32_t before = ring.slot;
        ring.next();
        for (other += STEP; other < end && sight.any(other); other += STEP) {
            ring.wait_full();
            if (TURNS_OF_QUERIES) place.turn();
            products_begin();
            begin();
            begin_sums(d, w, place.stage(before));
            if (TURNS_OF_QUERIES) place.pass();
            products_wait<2>(s);
            weigh(other);
            made(s);
            products_wait<1>(dp);
            score_gradients();
            products_wait<0>(d);
            ring.give_back(before);
            pack(w, s);
            before = ring.slot;
            ring.next();
        }
        products_begin();
        begin_sums(d, w, place.stage(before));
        products_wait<0>(d);
        ring.give_back(before);
        for (; other < end; other += STEP) leave_out(true);
    }
    leave(a, a.dq + t.own_head * HEAD, d, row, a.heads * HEAD, {factor[0] / a.k_scale, factor[1] / a.k_scale}, false);
}

// Multiplies what is copied. Tasks of keys are the first.
__device__ __forceinline__ void multiply_tasks(const Backward& a, const Place& place, OwnSlot own, Ring ring) {
    const volatile Said& said = *(const volatile Said*)(place.memory + SAID_AT);
    uint32_t of_keys = Task::of_keys(a), all = Task::count(a), i;
    auto task = [&](Way way) {
        Task t(a, i, way);
        t.begin = said.begin, t.end = said.end;
        return t;
    };
    auto next = [&] {
        own.wait_full();
        i = said.task;
    };
    if (place.group == 1) place.pass();
    for (next(); i < of_keys; own.next(), next()) keys_of(a, place, task(OF_KEYS), said.unit, own, ring);
    for (; i < all; own.next(), next()) queries_of(a, place, task(OF_QUERIES), own, ring);
}

extern "C" __global__ void __launch_bounds__(ALL_THREADS, 1) backward(const __grid_constant__ Backward a) {
    extern __shared__ __align__(1024) char memory[];
    uint32_t base = (uint32_t)__cvta_generic_to_shared(memory);
    OwnSlot own(base);
    Ring ring(base);
    if (threadIdx.x == 0) {
        OwnSlot of_own = own;
        Ring of_stages = ring;
        // What is said of a task arrives by itself.
        of_own.init(COPIERS + 1), of_stages.init(COPIERS);
    }
    __syncthreads();
    wait_for_previous();
    if (threadIdx.x < COPIERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        Copier{a, memory, base, own, ring}.run();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        multiply_tasks(a, Place(memory, base), own, ring);
    }
}
