// z = x·Aᵀ and u = scale·dy·B of 32 columns or 48, in f32 and as tiles. A block computes 128 rows, each warp 16 of them, so that fewer read the thin
// matrix than in project.cu; it lies in shared memory in f16. Where that leaves a GPU idle, several blocks share a sum, and what they have is added up
// in order, by the block that ends last.
#include "project.cuh"

// CHUNK: steps of the sum whose thin operand is in shared memory at a time. STAGES: pairs of tiles that are on their way to a warp.
constexpr int WARPS = 8, THREADS = 32 * WARPS, CHUNK = 128, STAGES = 8;
constexpr uint32_t STEP = 2 * TILE;

// 8·N columns of A: rows of CHUNK steps in shared memory.
template <int N>
struct ByRow {
    static constexpr uint32_t ROW = 2 * CHUNK + 16; // rows begin in other banks
    static __device__ __forceinline__ float4 read(const Project& p, uint32_t at, uint32_t k, uint32_t first) {
        uint32_t r = first + at / (CHUNK / 4);
        k += at % (CHUNK / 4) * 4;
        return r < p.columns && k < p.summed ? *(const float4*)(p.thin + (size_t)r * p.thin_stride + k) : float4{0.f, 0.f, 0.f, 0.f};
    }
    static __device__ __forceinline__ uint32_t place(uint32_t at) { return at / (CHUNK / 4) * ROW + at % (CHUNK / 4) * 8; }
    // The second operands for 16 steps, from the `step`-th of a chunk on, of columns 8·j and the next 8 after those.
    static __device__ __forceinline__ void operands(uint32_t (&b)[4], uint32_t from, uint32_t step, uint32_t j) {
        uint32_t lane = lane_of();
        read_matrices<false>(b, from + (8 * j + lane / 16 * 8 + lane % 8) * ROW + step * 2 + lane / 8 % 2 * 16);
    }
};

// 8·N columns of B: rows of those in shared memory.
template <int N>
struct ByColumn {
    static constexpr uint32_t ROW = 16 * N + 16;
    static __device__ __forceinline__ float4 read(const Project& p, uint32_t at, uint32_t k, uint32_t first) {
        uint32_t r = first + at % (2 * N) * 4;
        k += at / (2 * N);
        return r < p.columns && k < p.summed ? *(const float4*)(p.thin + (size_t)k * p.thin_stride + r) : float4{0.f, 0.f, 0.f, 0.f};
    }
    static __device__ __forceinline__ uint32_t place(uint32_t at) { return at / (2 * N) * ROW + at % (2 * N) * 8; }
    static __device__ __forceinline__ void operands(uint32_t (&b)[4], uint32_t from, uint32_t step, uint32_t j) {
        read_matrices<true>(b, from + (step + lane_of() % 16) * ROW + lane_of() / 16 * 16 + j * 16);
    }
};

// 16 rows of a warp, whose results are y and tiles.
template <int N>
__device__ __forceinline__ void store(const Project& p, const float (&sums)[N][4], uint32_t tile, uint32_t all, uint32_t first_column) {
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t t = tile * 16 + row_of() + 8 * h, column = first_column + 8 * j + 2 * quarter_of();
            if (t >= all * 16 || column >= p.columns) continue;
            float2 scaled = t < p.rows ? float2{p.scale * sums[j][2 * h], p.scale * sums[j][2 * h + 1]} : float2{0.f, 0.f};
            if (t < p.rows) {
                float by = p.factors[t];
                *(float2*)(p.y + (size_t)t * p.y_stride + column) = float2{by * scaled.x, by * scaled.y};
            }
            __half* to = p.packed + ((size_t)(column / 16) * p.packed_tiles + t / 16) * 256 + t % 16 * 16 + column % 16;
            *(uint32_t*)to = half2_of(scaled.x, scaled.y);
        }
}

template <class Order, int N>
__device__ __forceinline__ void project(const Project& p) {
    extern __shared__ __align__(16) char shared[]; // copies [WARPS, STAGES, 2] of a tile; the thin operand
    __shared__ uint32_t last_to_end[1];
    char* thin_at = shared + WARPS * STAGES * STEP;
    wait_for_previous();
    uint32_t tile = blockIdx.x * WARPS + warp_of(), first_column = blockIdx.y * 8 * N;
    uint32_t all = (p.rows + 15) / 16, begin = blockIdx.z * p.part_steps, end = min(begin + p.part_steps, (p.summed + 15) / 16);
    const char* wide = p.wide + (size_t)min(tile, all - 1) * TILE + lane_of() * 16;
    uint32_t own = address_of(shared) + warp_of() * STAGES * STEP, b_at = address_of(thin_at);
    auto copy_tiles = [&](uint32_t step, uint32_t slot) {
        if (step < end)
#pragma unroll
            for (int h = 0; h < 2; h++)
                copy(own + slot * STEP + h * TILE + place_of(), wide + (size_t)min(step + h, end - 1) * p.tiles * TILE);
        copies_end();
    };
#pragma unroll
    for (int s = 0; s < STAGES; s++) copy_tiles(begin + 2 * s, s);

    float4 thin[N]; // of the next chunk
    auto read_thin = [&](uint32_t step) {
#pragma unroll
        for (int i = 0; i < N; i++)
            thin[i] = step < end ? Order::read(p, i * THREADS + threadIdx.x, step * 16, first_column) : float4{0.f, 0.f, 0.f, 0.f};
    };
    read_thin(begin);
    float sums[N][4] = {};
    uint32_t slot = 0;
    for (uint32_t chunk = begin; chunk < end; chunk += CHUNK / 16) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < N; i++) *(uint2*)(thin_at + Order::place(i * THREADS + threadIdx.x)) = halves_of(thin[i]);
        __syncthreads();
        read_thin(chunk + CHUNK / 16);
#pragma unroll 2
        for (int s = 0; s < CHUNK / 32 && chunk + 2 * s < end; s++) {
            copies_wait<STAGES - 1>();
            __syncwarp();
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t a[4];
                read_matrices<false>(a, own + slot * STEP + h * TILE + matrix_of<false>());
#pragma unroll
                for (int j = 0; j < N; j += 2) {
                    uint32_t b[4];
                    Order::operands(b, b_at, s * 32 + h * 16, j);
                    multiply_matrices(sums[j], a, b[0], b[1]);
                    multiply_matrices(sums[j + 1], a, b[2], b[3]);
                }
            }
            __syncwarp();
            copy_tiles(chunk + 2 * s + 2 * STAGES, slot);
            slot = (slot + 1) % STAGES;
        }
    }
    if (add_up<4 * N, THREADS>((float(&)[4 * N]) sums, p.parts, p.arrivals, last_to_end)) store(p, sums, tile, all, first_column);
}

#define KERNELS(columns)                                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) project_##columns(const __grid_constant__ Project p) { \
        project<ByRow<columns / 8>, columns / 8>(p);                                                                \
    }                                                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) back_##columns(const __grid_constant__ Project p) {    \
        project<ByColumn<columns / 8>, columns / 8>(p);                                                             \
    }
KERNELS(32)
KERNELS(48)
