// y = factors·(x·Wᵀ + z·Bᵀ), and its mirror dx = factors·(dy·W + u·A), by the matrix instructions of NVIDIA's GPUs of compute
// capability 9.0: with one matrix (whole.cu), or with that of each row's expert (grouped.cu).
//
// A block computes 128 columns of y for 256 tokens at a time, as yᵀ = W·xᵀ: W is the first operand of wgmma, from registers, and x the
// second, from shared memory. Four warps copy 16 steps of x at a time, five such stages ahead; two warpgroups multiply 64 columns each.
// They read W as fragments (shaders/linear/fragments.wgsl), straight from memory.
//
// Vulkan's queues give a block 48 KiB of shared memory.
#include <stdint.h>

// Twin of the buffers of a product in src/ops/linear/cuda/mod.rs.
struct Operands {
    const char* x;          // x or dy [K/16, T/16, 16, 16], f16
    const char* z;          // z or u, likewise
    const char* w;          // fragments of W or Wᵀ
    const char* low;        // fragments of B or Aᵀ
    const float* factors;   // undoes the scaling of the rows of x and z [T]
    float* y;               // [T, stride]
};

// Twin of `Numbers` in src/ops/linear/cuda/mod.rs.
struct Numbers {
    uint32_t rows;          // T
    uint32_t columns;       // of y, a multiple of 4
    uint32_t stride;        // floats from one row of y to the next
    uint32_t steps;         // sixteenths of K
    uint32_t low_steps;     // sixteenths of the rank
    uint32_t tiles;         // matrices from one column of x's to the next
    uint32_t z_tiles;
    uint32_t accumulate;    // 1: add to y
    uint32_t part_steps;    // sixteenths in one part of the sum
    uint32_t parts;         // results of y's shape, one behind the other
};

constexpr int COLUMNS = 128, TOKENS = 256, STAGES = 5;
constexpr int STAGE = TOKENS * 32, FRAGMENT = 2048;         // bytes of 16 steps: of x, and of 64 columns of W
constexpr int FACTORS = STAGES * STAGE, BARRIERS = FACTORS + 2 * TOKENS * 4;
constexpr int BYTES = BARRIERS + STAGES * 16;               // of shared memory
constexpr uint32_t NONE = ~0u;
constexpr int AHEAD = 4;                                    // fragments that are loaded together

__device__ __forceinline__ void barrier_init(uint32_t b, uint32_t count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(b), "r"(count) : "memory");
}
__device__ __forceinline__ void arrive(uint32_t b) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(b) : "memory");
}
__device__ __forceinline__ void wait(uint32_t b, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred p;\nL: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@p bra D;\nbra L;\nD:\n}" ::"r"(b), "r"(parity)
        : "memory");
}
// Describes x in shared memory: rows of 32 bytes whose halves change places in every second four, 8 rows 256 bytes apart.
__device__ __forceinline__ uint64_t operand(uint32_t at) {
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)16 << 32 | (uint64_t)3 << 62;
}
__device__ __forceinline__ uint4 fragment(const char* from) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

// sums (+)= W·xᵀ for 64 columns, 256 tokens and 16 steps.
__device__ __forceinline__ void multiply(float (&d)[128], const uint4& w, uint64_t x, int add) {
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
        : "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w), "l"(x), "r"(add));
}

// 256 tokens and 128 columns of y, and the steps of their sums. What lists the tiles of a product knows the row of x that belongs to a row of
// y too (`source`, or NONE), and whether these differ (`GATHERS`).
struct Tile {
    uint32_t column, token, rows;   // the rows of y end before `rows`
    uint32_t part, first, end;      // part of the sum, and its steps
    uint32_t matrix;                // whose fragments it reads
};

// Copies 16 bytes, or zeros.
__device__ __forceinline__ void copy(uint32_t to, const char* from, bool there) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

// Copies every stage of every tile of this block: a thread takes a half of a row of every fourth matrix. Zeros stand for rows that x lacks.
template <class Tiles>
__device__ __forceinline__ void feed(const Operands& o, const Numbers& n, const Tiles& tiles, uint32_t base) {
    uint32_t stage = 0, phase = 1, own = threadIdx.x % 128, row = own / 2;
    uint32_t to = row * 32 + ((own % 2 ^ (row / 4 & 1)) << 4);
    for (uint32_t index = blockIdx.x, count = tiles.count(); index < count; index += gridDim.x) {
        Tile tile = tiles.at(index);
        uint32_t end = (tile.rows + 15) & ~15u, there = end > tile.token + row ? end - tile.token - row : 0;
        uint32_t sources[TOKENS / 64];
#pragma unroll
        for (uint32_t j = 0; j < TOKENS / 64; j++) sources[j] = Tiles::GATHERS ? tiles.source(tile, tile.token + row + j * 64) : 0;
        for (uint32_t i = tile.first; i < tile.end; i++) {
            bool low = i >= n.steps;
            size_t column = low ? (size_t)(i - n.steps) * n.z_tiles : (size_t)i * n.tiles;
            bool gathers = Tiles::GATHERS && !low;
            const char* from = (low ? o.z : o.x) + (gathers ? column * 512 + own % 2 * 16 : (column * 16 + tile.token) * 32 + own * 16);
            uint32_t at = base + stage * STAGE + to, full = base + BARRIERS + stage * 16;
            wait(full + 8, phase);
#pragma unroll
            for (uint32_t j = 0; j < TOKENS; j += 64) {
                if (gathers)
                    copy(at + j * 32, from + (sources[j / 64] != NONE ? sources[j / 64] * 32u : 0), sources[j / 64] != NONE);
                else
                    copy(at + j * 32, from + j * 32, j < there);
            }
            asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(full) : "memory");
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// Two of a lane's values for two of the lane's whose number differs in bit `bit`: it keeps those of its own kind.
__device__ __forceinline__ void exchange(float& first, float& second, uint32_t bit) {
    bool upper = threadIdx.x & bit;
    float got = __shfl_xor_sync(~0u, upper ? first : second, bit);
    first = upper ? got : first, second = upper ? second : got;
}

// Stores the sums of a warpgroup: `column` is its first. Lanes exchange them, so that each stores four neighbouring columns of a token.
__device__ __forceinline__ void leave(const Operands& o, const Numbers& n, const float (&d)[128], uint32_t factors, const Tile& tile,
                                      uint32_t column) {
    uint32_t own = threadIdx.x % 128, g = own % 32 / 4, t = own % 4;
    uint32_t row = t * 2 + (g & 1);
    column += own / 32 * 16 + (g >> 1 & 1) * 8 + g / 4 * 4;
    uint32_t token = tile.token;
    float* y = o.y + ((size_t)tile.part * n.rows + token + row) * n.stride + column;
#pragma unroll
    for (int j = 0; j < TOKENS; j += 8) {
        float v[4] = {d[j / 2], d[j / 2 + 1], d[j / 2 + 2], d[j / 2 + 3]}, f;
        exchange(v[0], v[1], 4), exchange(v[2], v[3], 4);
        exchange(v[0], v[2], 8), exchange(v[1], v[3], 8);
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(f) : "r"(factors + (row + j) * 4));
        if (column >= n.columns || token + row + j >= tile.rows) continue;
        float* at = y + (size_t)j * n.stride;
        if (n.accumulate)
            asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "f"(v[0] * f), "f"(v[1] * f), "f"(v[2] * f),
                         "f"(v[3] * f)
                         : "memory");
        else
            *(float4*)at = float4{v[0] * f, v[1] * f, v[2] * f, v[3] * f};
    }
}

// The loads and products of one tile.
struct Sum {
    const char *w, *low;    // this thread's part of the first fragments
    uint32_t steps, first, end, base;
    uint32_t stage = 0, phase = 0, before = STAGES;

    __device__ __forceinline__ void load(uint4 (&w4)[AHEAD], uint32_t i) const {
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            uint32_t step = min(i + u, end - 1);
            w4[u] = fragment(step < steps ? w + (size_t)step * FRAGMENT : low + (size_t)(step - steps) * FRAGMENT);
        }
    }

    // Loads the next fragments behind the first product of the present ones: to wait for one load is to wait for all.
    __device__ __forceinline__ void products(float (&d)[128], const uint4 (&w4)[AHEAD], uint4 (&next)[AHEAD], uint32_t i) {
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            if (i + u >= end) break;
            wait(base + BARRIERS + stage * 16, phase);
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
            multiply(d, w4[u], operand(base + stage * STAGE), i + u > first);
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            release();
            before = stage;
            if (++stage == STAGES) stage = 0, phase ^= 1;
            if (u == 0) load(next, i + AHEAD);
        }
    }

    // Gives the stage of the last finished product back.
    __device__ __forceinline__ void release() {
        if (before < STAGES && threadIdx.x % 32 == 0) arrive(base + BARRIERS + before * 16 + 8);
    }
};

template <class Tiles>
__device__ __forceinline__ void work(const Operands& o, const Numbers& n, const Tiles& tiles, uint32_t base) {
    uint32_t group = threadIdx.x / 128, own = threadIdx.x % 128, factors = base + FACTORS + group * TOKENS * 4;
    float d[128];
    uint4 w4[2][AHEAD];
    Sum sum;
    sum.steps = n.steps, sum.base = base;
    for (uint32_t index = blockIdx.x, count = tiles.count(); index < count; index += gridDim.x) {
        Tile tile = tiles.at(index);
        size_t block = (size_t)tile.matrix * (tiles.across() * 2) + tile.column / 64 + group;
        sum.w = o.w + block * n.steps * FRAGMENT + own * 16, sum.low = o.low + block * n.low_steps * FRAGMENT + own * 16;
        sum.first = tile.first, sum.end = tile.end;
        sum.load(w4[0], sum.first);
        asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");  // everyone has left
        for (uint32_t i = own; i < TOKENS; i += 128) {
            uint32_t source = tiles.source(tile, tile.token + i);
            float f = source != NONE ? o.factors[source] : 0.f;
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(factors + i * 4), "f"(f) : "memory");
        }
        for (uint32_t i = sum.first; i < sum.end; i += 2 * AHEAD) {
            sum.products(d, w4[0], w4[1], i);
            sum.products(d, w4[1], w4[0], i + AHEAD);
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
        for (float& value : d) asm volatile("" : "+f"(value)::"memory");   // nothing reads it before the wait
        sum.release();
        sum.before = STAGES;
        asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");  // the factors are there
        leave(o, n, d, factors, tile, tile.column + group * 64);
    }
}

// Sets the barriers of the stages up. Every thread waits for them, and sees what the others wrote before.
__device__ __forceinline__ void begin(uint32_t base) {
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            barrier_init(base + BARRIERS + stage * 16, 128);
            barrier_init(base + BARRIERS + stage * 16 + 8, 8);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
}

// A third of the warps copies, the others multiply.
template <class Tiles>
__device__ __forceinline__ void run(const Operands& o, const Numbers& n, const Tiles& tiles, uint32_t base) {
    if (threadIdx.x >= 256) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        feed(o, n, tiles, base);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        work(o, n, tiles, base);
    }
}
