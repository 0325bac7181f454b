// Attention of forward.cuh by wgmma, for heads of up to 256 numbers. A warpgroup copies, and two others have 64 queries each, whose products take
// turns: one weighs while the other multiplies. Nobody waits for all threads.
#include "forward.cuh"
#include "rings.cuh"

constexpr int QUERIES = GROUPS * 64;
// Keys of a stage; how many sixteens of a query's numbers are in registers, the others stay in shared memory.
constexpr int KEYS = HEAD == 256 ? 64 : 128, HELD = HEAD == 256 ? DEPTH / 2 : DEPTH, STAGES = 2;
using Queries = Stage<QUERIES>;
using Keys = Stage<KEYS>;
// Shared memory: the queries, stages of keys and of values, two barriers for each of these, and the numbers of blocks.
constexpr int KEYS_AT = Queries::BYTES, VALUES_AT = KEYS_AT + STAGES * Keys::BYTES, BARRIERS_AT = VALUES_AT + STAGES * Keys::BYTES,
              BLOCK_AT = BARRIERS_AT + 16 + 2 * STAGES * 16, ALL_BYTES = BLOCK_AT + 16;
static_assert(ALL_BYTES <= 227 * 1024, "a block of compute capability 9.0 has no more");

// Blocks of queries that were taken, but for the first of each block of threads; blocks of threads that have ended. Both are 0 between launches.
__device__ uint32_t taken, ended;

// A ring of stages.
template <int ROWS, int COUNT, int AT, int BARRIERS>
struct Ring : Slots<COUNT, BARRIERS> {
    using Slots<COUNT, BARRIERS>::Slots;
    __device__ __forceinline__ uint32_t stage() const { return this->base + AT + this->slot * ROWS * HEAD * 2; }
    __device__ __forceinline__ void copy(const char* head, uint32_t tiles, uint32_t row0, uint32_t last) {
        this->wait_free();
        copy_rows<ROWS>(stage(), head, tiles, row0, last);
        arrive_copied(this->full());
        this->next();
    }
    __device__ __forceinline__ void give_back() {
        Slots<COUNT, BARRIERS>::give_back(this->slot);
        this->next();
    }
};
struct Rings {
    Ring<QUERIES, 1, 0, BARRIERS_AT> queries;
    Ring<KEYS, STAGES, KEYS_AT, BARRIERS_AT + 16> keys;
    Ring<KEYS, STAGES, VALUES_AT, BARRIERS_AT + 16 + STAGES * 16> values;
    __device__ __forceinline__ Rings(uint32_t base) : queries(base), keys(base), values(base) {}
};

// Queries of a head, and the blocks of keys that they see. The last queries see the most keys, so they are the first.
struct Block {
    uint32_t head, query0, begin, blocks;
    __device__ __forceinline__ Block(const Forward& a, uint32_t i) {
        uint32_t down = (a.rows + QUERIES - 1) / QUERIES;
        head = i % a.heads, query0 = (down - 1 - i / a.heads) * QUERIES;
        begin = first_key(a, query0) / KEYS, blocks = (min(query0 + QUERIES, a.rows) + KEYS - 1) / KEYS - begin;
    }
    static __device__ __forceinline__ uint32_t count(const Forward& a) { return (a.rows + QUERIES - 1) / QUERIES * a.heads; }
    // Starts with the keys next to the queries: block i from the end.
    __device__ __forceinline__ uint32_t key_of(uint32_t i) const { return (begin + blocks - 1 - i) * KEYS; }
};

// Copies blocks of queries, and the keys and values that they see, until there are no more.
__device__ __forceinline__ void produce(const Forward& a, volatile uint32_t* shared, Rings rings) {
    uint32_t last = (a.rows - 1) / 16, group = a.heads / a.kv_heads, all = Block::count(a), i = blockIdx.x;
    size_t head_bytes = (size_t)DEPTH * a.tiles * 512;
    while (i < all) {
        Block block(a, i);
        const char* k = a.k + block.head / group * head_bytes;
        const char* v = a.v + block.head / group * head_bytes;
        rings.keys.copy(k, a.tiles, block.key_of(0), last);
        wait(rings.queries.full() + 8, rings.queries.parity ^ 1);
        if (threadIdx.x == 0) shared[0] = i, arrive(rings.queries.full());
        rings.queries.copy(a.q + block.head * head_bytes, a.tiles, block.query0, last);
        for (uint32_t n = 0; n < block.blocks; n++) {
            if (n + 1 < block.blocks)
                rings.keys.copy(k, a.tiles, block.key_of(n + 1), last);
            else if (threadIdx.x == 0)
                i = gridDim.x + atomicAdd(&taken, 1);
            rings.values.copy(v, a.tiles, block.key_of(n), last);
        }
        if (threadIdx.x == 0) shared[1] = i;
        named_sync<COPIERS>(1 + GROUPS);
        i = shared[1];
        named_sync<COPIERS>(1 + GROUPS);
    }
    wait(rings.queries.full() + 8, rings.queries.parity ^ 1);
    if (threadIdx.x == 0) shared[0] = i, arrive(rings.queries.full());
    arrive_copied(rings.queries.full());
    if (threadIdx.x == 0 && atomicInc(&ended, gridDim.x - 1) == gridDim.x - 1) taken = 0;
}

// Scores of 64 queries and the keys of a stage.
template <int N>
__device__ __forceinline__ void begin_scores(float (&s)[N], const uint32_t (&q)[HELD][4], uint32_t queries, uint32_t keys) {
    products_begin();
#pragma unroll
    for (int n = 0; n < HELD; n++) multiply<0>(s, q[n], Keys::rows(keys, n), n > 0);
    if constexpr (N == 32)
#pragma unroll
        for (int n = HELD; n < DEPTH; n++) multiply_shared(s, Queries::rows(queries, n), Keys::rows(keys, n), n > 0);
    products_commit();
}
// Weighted values of a stage.
__device__ __forceinline__ void begin_values(float (&o)[HEAD / 2], const uint32_t (&p)[KEYS / 16][4], uint32_t values) {
    products_begin();
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++) multiply<1>(o, p[n], Keys::columns(values, n), 1);
    products_commit();
}

// Attention of the queries `own` to own + 16 of each block for a warp. The scores of the next keys are multiplied before the products with the
// values of these. Longer than 60 lines: what the steps of one loop share.
__device__ __forceinline__ void consume(const Forward& a, const char* memory, Rings rings) {
    uint32_t group = __shfl_sync(~0u, threadIdx.x / 128, 0) - 1, lane = threadIdx.x % 32, own = group * 64 + threadIdx.x / 32 % 4 * 16;
    uint32_t all = Block::count(a);
    float scale = scale_of(a);
#if CAPPED
    Cap cap(a);
#endif
    // Waits for this group's turn to multiply; gives it to the other one. Both have as many turns.
    auto turn = [&] { named_sync<256>(1 + group); };
    auto pass = [&] { named_arrive<256>(2 - group); };
    if (group == 1) pass();
    while (true) {
        rings.queries.wait_full();
        uint32_t i = *(volatile uint32_t*)(memory + BLOCK_AT);
        if (i >= all) break;
        Block block(a, i);
        uint32_t group_query = block.query0 + group * 64, warp_query = block.query0 + own, query = warp_query + lane / 4;
        uint32_t first[2] = {first_key(a, query), first_key(a, query + 8)}, end[2] = {query + 1, query + 9}, all_see = first_key(a, warp_query + 15);
        float most[2] = {LOWEST, LOWEST}, sum[2] = {0.f, 0.f}, change[2];
        uint32_t q[HELD][4], p[KEYS / 16][4];
        float s[KEYS / 2], o[HEAD / 2];
#pragma unroll
        for (int n = 0; n < HELD; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                uint32_t row = own + lane / 4 + (j & 1) * 8, half = j >> 1 ^ (row >> 2 & 1);
                q[n][j] = *(const uint32_t*)(memory + (n * QUERIES + row) * 32 + half * 16 + lane % 4 * 4);
            }
        uint32_t queries = rings.queries.stage() + group * 64 * 32;
        __syncwarp();
        if (HELD == DEPTH) rings.queries.give_back();
        // Leaves out a block that none of this group's queries sees. A stage that is not full yet is still that of an earlier block.
        auto leave_out = [&] {
            rings.keys.wait_full(), rings.values.wait_full();
            rings.keys.give_back(), rings.values.give_back();
            turn(), pass();
        };
        auto mask = [&](uint32_t n) {
            uint32_t key0 = block.key_of(n);
#if CAPPED
#pragma unroll
            for (int n = 0; n < KEYS / 2; n++) s[n] = cap.score_of(cap.share_of(s[n]));
#endif
            if (key0 + KEYS > warp_query + 1 || key0 < all_see) hide(s, key0, first, end);
        };
#pragma unroll
        for (int n = 0; n < HEAD / 2; n++) o[n] = 0.f;
        uint32_t n = block.key_of(0) >= group_query + 64 ? 1 : 0, seen = block.blocks;
        if (block.key_of(seen - 1) + KEYS <= first_key(a, group_query)) seen--;
        if (n == 1) leave_out();
        rings.keys.wait_full();
        begin_scores(s, q, queries, rings.keys.stage());
        products_wait<0>(s);
        rings.keys.give_back();
        mask(n);
        weigh(s, most, sum, change, scale);
        pack(p, s);
        for (n++; n < seen; n++) {
            rings.keys.wait_full();
            turn();
            begin_scores(s, q, queries, rings.keys.stage());
            rings.values.wait_full();
            begin_values(o, p, rings.values.stage());
            pass();
            products_wait<1>(s);
            rings.keys.give_back();
            mask(n);
            weigh(s, most, sum, change, scale);
            products_wait<0>(o);
            rings.values.give_back();
#pragma unroll
            for (int n = 0; n < HEAD / 2; n++) o[n] *= change[n >> 1 & 1];
            pack(p, s);
        }
        if (HELD < DEPTH) rings.queries.give_back();
        rings.values.wait_full();
        begin_values(o, p, rings.values.stage());
        float factor[2];
        finish(a, factor, most, sum, block.head, query, true);
        products_wait<0>(o);
        rings.values.give_back();
        if (seen < block.blocks) leave_out();
        leave(a, o, factor, block.head, 0, query);
    }
}

extern "C" __global__ void __launch_bounds__(ALL_THREADS, 1) forward(const __grid_constant__ Forward a) {
    extern __shared__ __align__(1024) char memory[];
    Rings rings((uint32_t)__cvta_generic_to_shared(memory));
    if (threadIdx.x == 0) {
        Rings all = rings;
        // The number of the block arrives by itself.
        all.queries.init(COPIERS + 1), all.keys.init(COPIERS), all.values.init(COPIERS);
    }
    __syncthreads();
    wait_for_previous();
    if (threadIdx.x < COPIERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        produce(a, (volatile uint32_t*)(memory + BLOCK_AT), rings);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        consume(a, memory, rings);
    }
}
