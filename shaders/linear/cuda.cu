// y = scale·factors·(x·Wᵀ + z·Bᵀ), and its mirror dx = scale·factors·(dy·W + u·A), by the matrix instructions of NVIDIA's GPUs of
// compute capability 9.0. build-cuda compiles it to cuda.ptx, which the driver compiles for its GPU.
//
// A block computes 128 columns of y for 256 tokens at a time, as yᵀ = W·xᵀ: W is the first operand of wgmma and x the second. One
// thread copies 64 steps of both to shared memory, three such stages ahead; two warpgroups multiply 64 columns each. A result leaves
// through shared memory, 64 tokens at a time, while the next product begins.
//
// Operands are the panels of shaders/linear/panels.wgsl: [columns/64, rows, 64] in f16, where 16-byte chunk c of row r lies at
// c ^ (r & 7), as wgmma reads shared memory.
#include <stdint.h>

// Twin of the buffers and of `Numbers` in src/ops/linear/cuda.rs.
struct Arguments {
    const char* x;          // x or dy [rows, …]
    const char* z;          // z or u [rows, …]
    const char* w;          // W
    const char* low;        // B or A
    const float* factors;   // undoes the scaling of the rows of x and z [T]
    float* y;               // [T, stride]
    uint32_t rows;          // T
    uint32_t columns;       // of y, a multiple of 4
    uint32_t stride;        // floats from one row of y to the next
    uint32_t steps;         // of W, 64 of its columns (forward) or rows (backward) each
    uint32_t low_steps;     // of B or A
    uint32_t x_rows;        // rows of a panel of x and of z
    uint32_t w_rows;
    uint32_t low_rows;
    float scale;
    uint32_t accumulate;    // 1: add to y
};

constexpr int COLUMNS = 128, TOKENS = 256, STAGES = 3;
constexpr int X_BYTES = TOKENS * 128, W_BYTES = COLUMNS * 128, STAGE = X_BYTES + W_BYTES;
constexpr int ROUND = 64;                       // tokens that leave at a time
constexpr int PITCH = 64 * 4 + 16;              // bytes of a leaving row: 16 more spread the banks
constexpr int LEAVING = 2 * ROUND * PITCH;      // two rounds of a warpgroup
constexpr int FACTORS = STAGES * STAGE + 2 * LEAVING, BARRIERS = FACTORS + 2 * TOKENS * 4;
constexpr int TOKEN_TILES = 8;                  // neighbouring blocks share W over so many tiles of tokens, and x over their columns

__device__ __forceinline__ void barrier_init(uint32_t b, uint32_t count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(b), "r"(count) : "memory");
}
__device__ __forceinline__ void arrive(uint32_t b) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(b) : "memory");
}
__device__ __forceinline__ void expect(uint32_t b, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory");
}
__device__ __forceinline__ void wait(uint32_t b, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred p;\nL: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@p bra D;\nbra L;\nD:\n}" ::"r"(b), "r"(parity)
        : "memory");
}
__device__ __forceinline__ void copy(uint32_t to, const char* from, uint32_t bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(barrier)
                 : "memory");
}
// Describes an operand in shared memory: swizzled by 128 bytes, 8 rows 1024 bytes apart.
__device__ __forceinline__ uint64_t operand(uint32_t at) {
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)64 << 32 | (uint64_t)1 << 62;
}

// sums (+)= W·xᵀ for 64 columns, 256 tokens and 16 steps. TRANSPOSED: a step is a row of W.
template <int TRANSPOSED> __device__ __forceinline__ void multiply(float (&d)[128], uint64_t w, uint64_t x, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, "
        "%27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "
        "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, "
        "%77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, "
        "%101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, "
        "%121, %122, %123, %124, %125, %126, %127}, %128, %129, p, 1, 1, %131, 0;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),
          "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]),
          "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]),
          "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]),
          "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]),
          "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), "+f"(d[72]),
          "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]),
          "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]),
          "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]),
          "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]),
          "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]),
          "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]),
          "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
        : "l"(w), "l"(x), "r"(add), "n"(TRANSPOSED));
}

// The place of a block's tile: its first column and its first token. Tiles run over the tokens of a group, then over the columns.
struct Tile { uint32_t column, token; };
__device__ __forceinline__ Tile tile_of(const Arguments& a, uint32_t index) {
    uint32_t across = (a.columns + COLUMNS - 1) / COLUMNS, down = (a.rows + TOKENS - 1) / TOKENS;
    uint32_t first = index / (across * TOKEN_TILES) * TOKEN_TILES, rest = index % (across * TOKEN_TILES);
    uint32_t group = min(down - first, (uint32_t)TOKEN_TILES);
    return Tile{rest / group * COLUMNS, (first + rest % group) * TOKENS};
}

// Copies every stage of every tile of this block.
template <int BACKWARD> __device__ __forceinline__ void feed(const Arguments& a, uint32_t base, uint32_t tiles) {
    uint32_t stage = 0, phase = 1;
    for (uint32_t index = blockIdx.x; index < tiles; index += gridDim.x) {
        Tile tile = tile_of(a, index);
        for (uint32_t i = 0; i < a.steps + a.low_steps; i++) {
            bool low = i >= a.steps;
            size_t step = low ? i - a.steps : i, rows = low ? a.low_rows : a.w_rows;
            uint32_t at = base + stage * STAGE, full = base + BARRIERS + stage * 16;
            const char* w = low ? a.low : a.w;
            wait(full + 8, phase);
            expect(full, STAGE);
            copy(at, (low ? a.z : a.x) + (step * a.x_rows + tile.token) * 128, X_BYTES, full);
            if (BACKWARD) {
                for (uint32_t j = 0; j < COLUMNS / 64; j++)
                    copy(at + X_BYTES + j * 8192, w + ((tile.column / 64 + j) * rows + step * 64) * 128, 8192, full);
            } else {
                copy(at + X_BYTES, w + (step * rows + tile.column) * 128, W_BYTES, full);
            }
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
    }
}

// Stores the sums of a warpgroup: `column` is its first.
__device__ __forceinline__ void leave(const Arguments& a, const float (&d)[128], uint32_t leaving, const float* factors,
                                      uint32_t column, uint32_t token, uint32_t group) {
    uint32_t own = threadIdx.x % 128, warp = own / 32, g = own % 32 / 4, t = own % 4;
    uint32_t bytes = column < a.columns ? min(64u, a.columns - column) * 4 : 0;
#pragma unroll
    for (int round = 0; round < TOKENS / ROUND; round++) {
        uint32_t to = leaving + (round & 1) * ROUND * PITCH;
        asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
        asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
#pragma unroll
        for (int i = 0; i < ROUND / 8; i++) {
            int j = round * (ROUND / 8) + i;
            float2 f = *(const float2*)(factors + j * 8 + t * 2);
            uint32_t at = to + (i * 8 + t * 2) * PITCH + (warp * 16 + g) * 4;
            auto put = [](uint32_t at, float v) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory"); };
            put(at, d[j * 4] * f.x);
            put(at + 32, d[j * 4 + 2] * f.x);
            put(at + PITCH, d[j * 4 + 1] * f.y);
            put(at + PITCH + 32, d[j * 4 + 3] * f.y);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
        uint32_t row = token + round * ROUND + own;
        if (own < ROUND && row < a.rows && bytes > 0) {
            float* y = a.y + (size_t)row * a.stride + column;
            uint32_t from = to + own * PITCH;
            if (a.accumulate)
                asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(y), "r"(from), "r"(bytes)
                             : "memory");
            else
                asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(y), "r"(from), "r"(bytes) : "memory");
        }
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
}

template <int BACKWARD> __device__ __forceinline__ void work(const Arguments& a, uint32_t base, char* memory, uint32_t tiles) {
    uint32_t group = threadIdx.x / 128, lane = threadIdx.x % 32, stage = 0, phase = 0;
    float* factors = (float*)(memory + FACTORS) + group * TOKENS;
    float d[128];
    for (uint32_t index = blockIdx.x; index < tiles; index += gridDim.x) {
        Tile tile = tile_of(a, index);
        uint32_t before = STAGES;
        for (uint32_t i = 0; i < a.steps + a.low_steps; i++) {
            uint32_t at = base + stage * STAGE, w = at + X_BYTES + group * 8192;
            wait(base + BARRIERS + stage * 16, phase);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int k = 0; k < 4; k++)
                multiply<BACKWARD>(d, operand(w + k * (BACKWARD ? 2048 : 32)), operand(at + k * 32), i > 0 || k > 0);
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            if (before < STAGES && lane == 0) arrive(base + BARRIERS + before * 16 + 8);
            before = stage;
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
        for (uint32_t i = threadIdx.x % 128; i < TOKENS; i += 128)
            factors[i] = tile.token + i < a.rows ? a.scale * a.factors[tile.token + i] : 0.f;
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        if (lane == 0) arrive(base + BARRIERS + before * 16 + 8);
        leave(a, d, base + STAGES * STAGE + group * LEAVING, factors, tile.column + group * 64, tile.token, group);
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

template <int BACKWARD> __device__ __forceinline__ void product(const Arguments& a) {
    extern __shared__ char raw[];
    uint32_t start = (uint32_t)__cvta_generic_to_shared(raw), base = (start + 1023) & ~1023u;
    uint32_t tiles = (a.columns + COLUMNS - 1) / COLUMNS * ((a.rows + TOKENS - 1) / TOKENS);
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            barrier_init(base + BARRIERS + stage * 16, 1);
            barrier_init(base + BARRIERS + stage * 16 + 8, 8);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x >= 256) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 256) feed<BACKWARD>(a, base, tiles);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        work<BACKWARD>(a, base, raw + (base - start), tiles);
    }
}

extern "C" __global__ void __launch_bounds__(384, 1) forward(const __grid_constant__ Arguments a) { product<0>(a); }
extern "C" __global__ void __launch_bounds__(384, 1) backward(const __grid_constant__ Arguments a) { product<1>(a); }
