// dA = uᵀ·x and dB = scale·dyᵀ·z, with sums over the tokens in parts. A block has a part's tokens and 64·WIDE columns of the wide operand:
// four warps beside each other, and four that take turns at tiles of tokens and add up what they have at the end, in order.
#include "parts.cuh"

constexpr int ACROSS = 4, TURNS = 4, WARPS = ACROSS * TURNS;

// Twin of the buffers and of `Gradient` in src/ops/lora/cuda.rs.
struct Gradient {
    const char* wide;           // x or dy
    const float* factors;       // undoes the scaling of its rows [T]
    const float* thin;          // u or z [T, thin_stride]
    float* y;                   // dA [R, K] or dB [K, R] of each part
    uint32_t rows;              // T
    uint32_t wide_columns;      // K
    uint32_t thin_columns;      // R, a multiple of 4
    uint32_t tiles;             // from one column of the wide operand's tiles to the next
    uint32_t thin_stride;
    uint32_t y_stride;
    uint32_t part_rows;         // a multiple of 16
    uint32_t accumulate;        // 1: add to y
    uint32_t transposed;        // 1: y is dB
    float scale;
};

// The first, or second, of two f16 of each of two rows.
__device__ __forceinline__ uint32_t firsts(uint32_t upper, uint32_t lower) { return __byte_perm(upper, lower, 0x5410); }
__device__ __forceinline__ uint32_t seconds(uint32_t upper, uint32_t lower) { return __byte_perm(upper, lower, 0x7632); }

// A power of two above every value of a part's thin operand, scaled as the rows of the wide one; as thin_scale in shaders/common/thin_scale.wgsl.
template <int N>
__device__ __forceinline__ float thin_scale(const Gradient& p, uint32_t first, uint32_t end, uint32_t first_column) {
    __shared__ float largest[WARPS];
    float most = 0;
    for (uint32_t t = first + threadIdx.x / 4; t < end; t += 8 * WARPS) {
        float some[2 * N];
        read_thin(some, p.thin + (size_t)t * p.thin_stride, first_column + 2 * N * quarter_of(), p.thin_columns);
#pragma unroll
        for (int i = 0; i < 2 * N; i++) most = fmaxf(most, fabsf(p.factors[t] * some[i]));
    }
    largest[warp_of()] = warp_max(most);
    __syncthreads();
    for (int w = 0; w < WARPS; w++) most = fmaxf(most, largest[w]);
    return undoing(exponent(most));
}

template <int N, int WIDE>
__device__ __forceinline__ void gradient(const Gradient& p) {
    extern __shared__ float parts[]; // [TURNS - 1, ACROSS, 4·N, 32]
    wait_for_previous();
    uint32_t lane = lane_of(), across = warp_of() % ACROSS, turn = warp_of() / ACROSS, quarter = quarter_of();
    uint32_t column = (blockIdx.x * ACROSS + across) * WIDE, last = (p.wide_columns - 1) / 16, first_column = blockIdx.y * 8 * N;
    uint32_t first = blockIdx.z * p.part_rows, end = max(first, min(first + p.part_rows, p.rows));
    float factor = thin_scale<N>(p, first, end, first_column), inverse = 1.f / factor;
    // A lane reads four neighbouring columns of tokens 2·quarter, the next one, and those eight further on: half of the lanes have a tile, the
    // others the next one.
    const char* at[WIDE / 2];
#pragma unroll
    for (int i = 0; i < WIDE / 2; i++)
        at[i] = p.wide + (size_t)min(column + 2 * i + row_of() / 4, last) * p.tiles * TILE + quarter * 64 + row_of() % 4 * 8;

    float sums[WIDE][N][4] = {};
    for (uint32_t tile = first / 16 + turn; tile * 16 < end; tile += TURNS) {
        uint2 wide[WIDE / 2][4];
#pragma unroll
        for (int i = 0; i < WIDE / 2; i++)
#pragma unroll
            for (int t = 0; t < 4; t++) wide[i][t] = *(const uint2*)(at[i] + (size_t)tile * TILE + t % 2 * 32 + t / 2 * TILE / 2);
        float thin[4][N]; // of the same tokens
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t t = tile * 16 + 2 * quarter + i % 2 + i / 2 * 8;
            float by = t < end ? p.factors[t] : 0.f;
            read_thin(thin[i], p.thin + (size_t)t * p.thin_stride, first_column + N * row_of(), t < end ? p.thin_columns : 0);
#pragma unroll
            for (int j = 0; j < N; j++) thin[i][j] = thin[i][j] * by * inverse; // in this order: both factors together may be infinite
        }
#pragma unroll
        for (int i = 0; i < WIDE; i++) {
            const uint2(&rows)[4] = wide[i / 2];
            uint32_t of[4];
#pragma unroll
            for (int t = 0; t < 4; t++) of[t] = i % 2 ? rows[t].y : rows[t].x;
            uint32_t a[4] = {firsts(of[0], of[1]), seconds(of[0], of[1]), firsts(of[2], of[3]), seconds(of[2], of[3])};
#pragma unroll
            for (int j = 0; j < N; j++)
                multiply_matrices(sums[i][j], a, half2_of(thin[0][j], thin[1][j]), half2_of(thin[2][j], thin[3][j]));
        }
    }

    float* y = p.y + (size_t)blockIdx.z * (p.transposed ? p.wide_columns : p.thin_columns) * p.y_stride;
#pragma unroll
    for (int i = 0; i < WIDE; i++) {
        if (turn > 0)
#pragma unroll
            for (int n = 0; n < 4 * N; n++) parts[(((turn - 1) * ACROSS + across) * 4 * N + n) * 32 + lane] = sums[i][n / 4][n % 4];
        __syncthreads();
        if (turn == 0)
#pragma unroll
            for (int n = 0; n < 4 * N; n++) {
                float sum = sums[i][n / 4][n % 4];
#pragma unroll
                for (int w = 0; w < TURNS - 1; w++) sum += parts[((w * ACROSS + across) * 4 * N + n) * 32 + lane];
                uint32_t k = (column + i / 2 * 2 + row_of() / 4) * 16 + row_of() % 4 * 4 + i % 2 * 2 + n % 4 / 2;
                uint32_t r = first_column + N * (2 * quarter + n % 2) + n / 4;
                if (k >= p.wide_columns || r >= p.thin_columns) continue;
                float* to = y + (p.transposed ? (size_t)k * p.y_stride + r : (size_t)r * p.y_stride + k);
                *to = factor * p.scale * sum + (p.accumulate ? *to : 0.f);
            }
        __syncthreads();
    }
}

#define KERNEL(columns)                                                                                                        \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, columns > 16 ? 1 : 2) gradient_##columns(const __grid_constant__ Gradient p) {       \
        gradient<columns / 8, columns == 48 ? 2 : 4>(p);                                                                       \
    }
KERNEL(16)
KERNEL(32)
KERNEL(48)
