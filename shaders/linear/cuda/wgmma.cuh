// Products by wgmma. x is the first operand, from registers, and W the second, from shared memory. One warp copies 64 steps of both at a time,
// three such stages ahead; two warpgroups multiply 64 tokens each.
#pragma once
#include "../../common/cuda/barriers.cuh"
#include "parts.cuh"

constexpr int THREADS = 384, STAGES = 4;
constexpr int W = SLICES * SLICE, STAGE = W + COLUMNS / 64 * PANEL;
constexpr int BARRIERS = STAGES * STAGE, BYTES = BARRIERS + STAGES * 16;    // of shared memory

// Arrives, and lets the barrier wait for so many bytes too.
__device__ __forceinline__ void expect(uint32_t b, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory");
}
// Copies bytes that barrier `b` waits for.
__device__ __forceinline__ void bulk(uint32_t to, const char* from, uint32_t bytes, uint32_t b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes),
                 "r"(b)
                 : "memory");
}
// Describes W in shared memory: rows of 128 bytes whose sixteenths are swizzled, 8 rows 1024 bytes apart.
__device__ __forceinline__ uint64_t operand(uint32_t at) {
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)64 << 32 | (uint64_t)1 << 62;
}

// sums (+)= x·Wᵀ for 64 tokens, 256 columns and 16 steps.
__device__ __forceinline__ void multiply(float (&d)[128], const uint32_t (&x)[4], uint64_t w, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %133, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "
        "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, "
        "%68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, "
        "%90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, "
        "%110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127 "
        "}, {%128, %129, %130, %131}, %132, p, 1, 1, 0;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
          "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]),
          "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]),
          "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
          "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]),
          "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]),
          "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]), "+f"(d[65]),
          "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]),
          "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]),
          "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]),
          "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]), "+f"(d[97]),
          "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), "+f"(d[104]), "+f"(d[105]),
          "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), "+f"(d[112]), "+f"(d[113]),
          "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]), "+f"(d[121]),
          "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "l"(w), "r"(add));
}

// Copies every stage of a product's tile. One thread copies all but rows that are gathered: of these, each of 128 takes one, and zeros stand for
// those that x lacks.
template <class Tiles>
__device__ __forceinline__ void feed_tile(const Operands& o, const Numbers& n, const Tiles& tiles, const Tile& tile, uint32_t base, uint32_t& stage,
                                          uint32_t& phase) {
    uint32_t own = threadIdx.x % 128, panels = (n.columns + 63) / 64;
    uint32_t source = Tiles::GATHERS ? tiles.source(tile, tile.token + own) : 0;
    for (uint32_t i = tile.first; i < tile.end; i++) {
        Stage s(o, n, i);
        bool gathers = Tiles::GATHERS && !s.low;
        uint32_t at = base + stage * STAGE, full = base + BARRIERS + stage * 16;
        wait(full + 8, phase);
        if (own == 0) {
            uint32_t bytes = gathers ? 0 : min(s.tiles * 16 - tile.token, (uint32_t)TOKENS) * 32;
            expect(full, s.valid * bytes + COLUMNS / 64 * PANEL);
#pragma unroll
            for (uint32_t j = 0; j < COLUMNS / 64; j++) {
                size_t panel = (size_t)tile.matrix * panels + min(tile.column / 64 + j, panels - 1);
                bulk(at + W + j * PANEL, s.w + (panel * s.count + s.index) * PANEL, PANEL, full);
            }
            for (uint32_t u = 0; u < s.valid && !gathers; u++)
                bulk(at + u * SLICE, s.x + ((size_t)(s.slice + u) * s.tiles * 16 + tile.token) * 32, bytes, full);
        }
        if (Tiles::GATHERS) {
            for (uint32_t u = 0; u < s.valid && gathers; u++) {
                const char* from = s.x + ((size_t)(s.slice + u) * s.tiles * 16 + (source == NONE ? 0 : source)) * 32;
                copy(at + u * SLICE + own * 32, from, source != NONE ? 16 : 0);
                copy(at + u * SLICE + own * 32 + 16, from + 16, source != NONE ? 16 : 0);
            }
            asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(full) : "memory");
        }
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
}

// Copies every stage of every tile of this block.
template <class Sources, class Tiles>
__device__ __forceinline__ void feed(const Sources& sources, const Tiles& tiles, uint32_t base) {
    uint32_t stage = 0, phase = 1;
    for (uint32_t index = blockIdx.x, count = tiles.count(); index < count; index += gridDim.x) {
        Tile tile = tiles.at(index);
        for (uint32_t s = 0; s < sources.count; s++) {
            const Operands o = sources.operands(s);
            const Numbers n = sources.numbers(s);
            feed_tile(o, n, tiles, sources.part(tile, s), base, stage, phase);
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// A warpgroup's way through the stages.
struct Sum {
    uint32_t base, from, stage = 0, phase = 0, before = STAGES;
    bool turned;
    float d[128];
    uint32_t x[SLICES][4];  // what this lane holds of 16 steps each

    // Lanes read the halves of their rows in different orders, so that no two read from one bank.
    __device__ __forceinline__ explicit Sum(uint32_t base) : base(base) {
        uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane % 16;
        from = base + row * 32 + ((lane / 16 ^ (lane >> 2 & 1)) << 4), turned = lane >= 16;
    }

    __device__ __forceinline__ uint32_t full(uint32_t stage) const { return base + BARRIERS + stage * 16; }

    // Loads x for slice `u` of the stage.
    template <bool SCALES>
    __device__ __forceinline__ void fetch(uint32_t u, uint2 ratios) {
        uint32_t r[4];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(from + stage * STAGE + u * SLICE)
                     : "memory");
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t value = turned ? r[k ^ 2] : r[k];
            if (SCALES) value = times(value, k & 1 ? ratios.y : ratios.x);
            x[u][k] = value;
            asm volatile("" : "+r"(x[u][k])::"memory");     // it is made before the next wgmma.fence
        }
    }

    __device__ __forceinline__ void issue(uint64_t w, uint32_t u, bool add) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        multiply(d, x[u], w + u * 2, add);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 2;" ::: "memory");
    }

    // Gives the stage of the last finished products back.
    __device__ __forceinline__ void release() {
        if (before < STAGES && threadIdx.x % 32 == 0) arrive(full(before) + 8);
    }

    // Waits for the next stage and returns where its W is. The last two products of the one before may still run: x of the first two is free.
    template <bool SCALES>
    __device__ __forceinline__ uint64_t enter(uint2 ratios) {
        wait(full(stage), phase);
        fetch<SCALES>(0, ratios), fetch<SCALES>(1, ratios);
        return operand(base + stage * STAGE + W);
    }

    __device__ __forceinline__ void advance() {
        before = stage;
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }

    // Adds a stage that has all slices.
    template <bool SCALES>
    __device__ __forceinline__ void add_whole(bool add, uint2 ratios) {
        uint64_t w = enter<SCALES>(ratios);
        issue(w, 0, add);
        fetch<SCALES>(2, ratios);
        issue(w, 1, true);
        release();
        fetch<SCALES>(3, ratios);
        issue(w, 2, true);
        issue(w, 3, true);
        advance();
    }

    // Adds a stage that has fewer slices, as those of most ranks.
    template <bool SCALES>
    __device__ __forceinline__ void add_short(uint32_t valid, bool add, uint2 ratios) {
        uint64_t w = enter<SCALES>(ratios);
        issue(w, 0, add);
        if (valid > 2) fetch<SCALES>(2, ratios);
        if (valid > 1) issue(w, 1, true);
        if (valid > 2) issue(w, 2, true);
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        release();
        advance();
    }

    // Sums the stages of a tile, or adds them to a sum.
    template <bool SCALES>
    __device__ __forceinline__ void run(const Numbers& n, const Tile& tile, bool add, uint2 ratios) {
        for (uint32_t i = tile.first; i < tile.end; i++, add = true) {
            uint32_t whole = whole_stages(n, i, tile.end);
            for (; whole > 0; whole--, i++, add = true) add_whole<SCALES>(add, ratios);
            if (i < tile.end) add_short<SCALES>(valid_slices(n, i), add, ratios);
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
        for (float& value : d) asm volatile("" : "+f"(value)::"memory");   // nothing reads it before the wait
        release();
        before = STAGES;
    }
};

// Stores four neighbouring results of a token, or adds them.
__device__ __forceinline__ void put(float* to, float4 v, float factor, bool add) {
    v = float4{v.x * factor, v.y * factor, v.z * factor, v.w * factor};
    if (add)
        asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
    else
        *(float4*)to = v;
}

// This lane's two rows of x, or NONE.
template <class Tiles>
__device__ __forceinline__ uint2 own_rows(const Tiles& tiles, const Tile& tile) {
    uint32_t token = tile.token + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    return {tiles.source(tile, token), tiles.source(tile, token + 8)};
}

// Stores the sums of a warpgroup.
__device__ __forceinline__ void leave(const Rows& y, const Numbers& n, const Tile& tile, float2 units, const float (&d)[128]) {
    uint32_t token = tile.token + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    float f = units.x, g = units.y;
    float* to = y.y + ((size_t)tile.part * n.rows + token) * n.stride;
#pragma unroll
    for (int j = 0; j < 128; j += 8) {
        float4 a = neighbours({d[j], d[j + 1]}, {d[j + 4], d[j + 5]}), b = neighbours({d[j + 2], d[j + 3]}, {d[j + 6], d[j + 7]});
        uint32_t column = tile.column + j * 2 + neighbours_column();
        if (column >= n.columns) continue;
        if (token < tile.rows) put(to + column, a, f, n.accumulate);
        if (token + 8 < tile.rows) put(to + (size_t)8 * n.stride + column, b, g, n.accumulate);
    }
}

// Stores them in f16. A warp has all 256 columns of its 16 tokens, so it knows their largest values.
__device__ __forceinline__ void leave(const Halves& y, const Numbers& n, const Tile& tile, float2 units, const float (&d)[128]) {
    uint32_t first = tile.token + threadIdx.x / 32 * 16, token = first + threadIdx.x % 32 / 4;
    float most = 0.f, most_below = 0.f;
#pragma unroll
    for (int j = 0; j < 128; j += 4)
        if (tile.column + j * 2 < n.columns) most = larger(most, d[j], d[j + 1]), most_below = larger(most_below, d[j + 2], d[j + 3]);
    float s = y.scaling(tile, token, most, units.x), t = y.scaling(tile, token + 8, most_below, units.y);
    uint4* to = y.place(tile.column, first);
#pragma unroll
    for (int j = 0; j < 128; j += 8) {
        uint4 half = rows_of_matrix(two(d[j] * s, d[j + 1] * s), two(d[j + 4] * s, d[j + 5] * s), two(d[j + 2] * t, d[j + 3] * t),
                                    two(d[j + 6] * t, d[j + 7] * t));
        if (first < tile.rows && tile.column + j * 2 < n.columns) to[(size_t)(j / 8) * y.tiles * 32] = half;
    }
}

// Sets the barriers of the stages up. Every thread waits for them, and sees what the others wrote before.
template <class Tiles>
__device__ __forceinline__ void begin(uint32_t base) {
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            barrier_init(base + BARRIERS + stage * 16, Tiles::GATHERS ? 129 : 1);
            barrier_init(base + BARRIERS + stage * 16 + 8, 8);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
}

// A third of the warps copies, the others multiply.
template <class Sources, class Tiles, class Result>
__device__ __forceinline__ void run(const Sources& sources, const Result& y, const Tiles& tiles, uint32_t base) {
    if (threadIdx.x >= 256) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (Tiles::GATHERS || threadIdx.x == 256) feed(sources, tiles, base);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        Sum sum(base);
        for (uint32_t index = blockIdx.x, count = tiles.count(); index < count; index += gridDim.x) {
            Tile tile = tiles.at(index);
            uint2 rows = own_rows(tiles, tile);
            float2 units = {rows.x != NONE ? sources.unit(rows.x) : 0.f, rows.y != NONE ? sources.unit(rows.y) : 0.f};
            for (uint32_t s = 0; s < sources.count; s++) {
                const Numbers n = sources.numbers(s);
                uint2 ratios = {rows.x != NONE ? sources.ratio(s, rows.x) : 0, rows.y != NONE ? sources.ratio(s, rows.y) : 0};
                sum.template run<Sources::SCALES>(n, sources.part(tile, s), s > 0, ratios);
            }
            leave(y, sources.numbers(0), tile, units, sum.d);
        }
    }
}
