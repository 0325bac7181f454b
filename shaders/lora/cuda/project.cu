// z = x·Aᵀ and u = scale·dy·B of 16 columns, in f32 and as tiles. A block computes 32 rows, and its warps take turns at sixteenths of the sum. Where
// that leaves a GPU idle, several blocks share a sum. What the warps have, and then the blocks, is added up in order, by the block that ends last. A
// lane reads eight bytes of two rows of a tile at a time, straight from memory: four neighbouring columns, 4·(lane % 4) and on, of rows lane / 4 and
// lane / 4 + 8.
#include "project.cuh"

constexpr int WARPS = 8, DOWN = 2, AHEAD = 4; // AHEAD: tiles of a row that a warp reads before it multiplies

// The values of a row of a thin matrix from `at` on, N of them; zeros behind its last column.
template <int N>
__device__ __forceinline__ void read_thin(float (&to)[N], const float* row, uint32_t at, uint32_t columns) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
        float2 both = at + i < columns ? *(const float2*)(row + at + i) : float2{0.f, 0.f};
        to[i] = both.x;
        to[i + 1] = both.y;
    }
}

// The second operand for 16 steps and 8 columns. Steps are in the order in which lanes have those of the first operand.
struct Thin { uint32_t low, high; };

// 8·N columns of A. Column 8·j + n is the n-th of operand j.
template <int N>
struct ByRow {
    static __device__ __forceinline__ uint32_t column(uint32_t j, uint32_t n) { return 8 * j + n; }
    static __device__ __forceinline__ void read(Thin (&to)[N], const Project& p, uint32_t step, uint32_t first) {
        uint32_t k = step * 16 + 4 * quarter_of();
#pragma unroll
        for (int j = 0; j < N; j++) {
            uint32_t r = first + column(j, row_of());
            float4 v = r < p.columns && k < p.summed ? *(const float4*)(p.thin + (size_t)r * p.thin_stride + k) : float4{0.f, 0.f, 0.f, 0.f};
            to[j] = Thin{half2_of(v.x, v.y), half2_of(v.z, v.w)};
        }
    }
};

// 8·N columns of B. Column N·n + j is the n-th of operand j: a lane's columns are neighbours in memory.
template <int N>
struct ByColumn {
    static __device__ __forceinline__ uint32_t column(uint32_t j, uint32_t n) { return N * n + j; }
    static __device__ __forceinline__ void read(Thin (&to)[N], const Project& p, uint32_t step, uint32_t first) {
        uint32_t k = step * 16 + 4 * quarter_of(), at = first + N * row_of(), columns = k < p.summed ? p.columns : 0;
        float v[4][N];
#pragma unroll
        for (int i = 0; i < 4; i++) read_thin(v[i], p.thin + (size_t)(k + i) * p.thin_stride, at, columns);
#pragma unroll
        for (int j = 0; j < N; j++) to[j] = Thin{half2_of(v[0][j], v[1][j]), half2_of(v[2][j], v[3][j])};
    }
};

template <template <int> class Order, int N>
__device__ __forceinline__ void project(const Project& p) {
    __shared__ float shares[WARPS][16][8 * N];
    __shared__ uint32_t last[1];
    wait_for_previous();
    uint32_t warp = warp_of(), row = row_of(), first = blockIdx.x * DOWN, first_column = blockIdx.y * 8 * N;
    uint32_t all = (p.rows + 15) / 16, begin = blockIdx.z * p.part_steps, end = min(begin + p.part_steps, (p.summed + 15) / 16);
    size_t at[DOWN];
#pragma unroll
    for (int m = 0; m < DOWN; m++) at[m] = (size_t)min(first + m, all - 1) * TILE + row * 32 + quarter_of() * 8;
    float sums[DOWN][N][4] = {};
    for (uint32_t step = begin + warp; step < end; step += WARPS * AHEAD) {
        uint2 low[AHEAD][DOWN], high[AHEAD][DOWN];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
#pragma unroll
            for (int m = 0; m < DOWN; m++) {
                const char* tile = p.wide + (size_t)min(step + i * WARPS, end - 1) * p.tiles * TILE + at[m];
                low[i][m] = *(const uint2*)tile;
                high[i][m] = *(const uint2*)(tile + TILE / 2);
            }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (step + i * WARPS >= end) break;
            Thin thin[N];
            Order<N>::read(thin, p, step + i * WARPS, first_column);
#pragma unroll
            for (int m = 0; m < DOWN; m++) {
                uint32_t a[4] = {low[i][m].x, high[i][m].x, low[i][m].y, high[i][m].y};
#pragma unroll
                for (int j = 0; j < N; j++) multiply_matrices(sums[m][j], a, thin[j].low, thin[j].high);
            }
        }
    }
    // A thread finishes N / 2 results of a row of each 16.
    uint32_t own = threadIdx.x / 16, across = threadIdx.x % 16;
    float results[DOWN][N / 2];
#pragma unroll
    for (int m = 0; m < DOWN; m++) {
        __syncthreads();
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                shares[warp][row + i / 2 * 8][Order<N>::column(j, 2 * quarter_of() + i % 2)] = sums[m][j][i];
        __syncthreads();
#pragma unroll
        for (int j = 0; j < N / 2; j++) {
            results[m][j] = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) results[m][j] += shares[w][own][j * 16 + across];
        }
    }
    if (gridDim.z > 1) {
        uint32_t tile = blockIdx.y * gridDim.x + blockIdx.x;
        float* parts = p.parts + (size_t)tile * gridDim.z * (256 * DOWN * N / 2) + threadIdx.x;
#pragma unroll
        for (int q = 0; q < DOWN * N / 2; q++) parts[(blockIdx.z * (DOWN * N / 2) + q) * 256] = results[q / (N / 2)][q % (N / 2)];
        if (!ends_last(p.arrivals + tile, last)) return;
#pragma unroll
        for (int q = 0; q < DOWN * N / 2; q++) {
            float sum = 0;
            for (uint32_t z = 0; z < gridDim.z; z++) sum += __ldcg(parts + (z * (DOWN * N / 2) + q) * 256);
            results[q / (N / 2)][q % (N / 2)] = sum;
        }
    }
#pragma unroll
    for (int m = 0; m < DOWN; m++)
#pragma unroll
        for (int j = 0; j < N / 2; j++) {
            uint32_t t = (first + m) * 16 + own, column = first_column + j * 16 + across;
            if (t >= all * 16 || column >= p.columns) continue;
            float scaled = t < p.rows ? p.scale * results[m][j] : 0.f;
            if (t < p.rows) p.y[(size_t)t * p.y_stride + column] = p.factors[t] * scaled;
            p.packed[((size_t)(column / 16) * p.packed_tiles + t / 16) * 256 + t % 16 * 16 + column % 16] = __float2half_rn(scaled);
        }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 4) project_16(const __grid_constant__ Project p) { project<ByRow, 2>(p); }
extern "C" __global__ void __launch_bounds__(32 * WARPS, 4) back_16(const __grid_constant__ Project p) { project<ByColumn, 2>(p); }
