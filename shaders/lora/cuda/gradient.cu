// dA = uᵀ·x and dB = scale·dyᵀ·z, with sums over the tokens in parts. A block has a part's tokens and 64·ACROSS columns of the wide operand: ACROSS
// warps beside each other, and TURNS of each that take turns at tiles of tokens. What these have, and then the blocks, is added up in order, by the
// block that ends last. The thin operand lies in shared memory in f16.
#include "thin.cuh"

// CHUNK: tokens whose thin operand is in shared memory at a time. STEP: bytes of the tiles of a step of a warp.
constexpr int CHUNK = 128, STEP = 4 * TILE;

// Twin of the buffers and of `Gradient` in src/ops/lora/cuda.rs.
struct Gradient {
    const char* wide;           // x or dy
    const float* factors;       // undoes the scaling of its rows [T]
    const float* thin;          // u or z [T, thin_stride]
    float* y;                   // dA [R, K] or dB [K, R]
    float* parts;               // of the blocks' sums
    uint32_t* arrivals;         // finished parts of each sum; 0 before and after
    uint32_t rows;              // T
    uint32_t wide_columns;      // K
    uint32_t thin_columns;      // R, a multiple of 4
    uint32_t tiles;             // from one column of the wide operand's tiles to the next
    uint32_t thin_stride;
    uint32_t y_stride;
    uint32_t part_rows;         // a multiple of 16
    uint32_t transposed;        // 1: y is dB
    float scale;
    uint32_t padding;
};

// Adds up what the warps that took turns have: each gets the sums of some of their columns. `exchange` is shared memory for all of them.
template <int N, int ACROSS, int TURNS>
__device__ __forceinline__ void share(float (&to)[4 / TURNS][N][4], const float (&sums)[4][N][4], float* exchange) {
    uint32_t lane = lane_of(), across = warp_of() % ACROSS, turn = warp_of() / ACROSS;
#pragma unroll
    for (int r = 0; r < 4 / TURNS; r++) {
        __syncthreads();
#pragma unroll
        for (int w = 0; w < TURNS; w++)
            if (w != turn)
#pragma unroll
                for (int n = 0; n < 4 * N; n++)
                    exchange[(((w * TURNS + turn) * ACROSS + across) * 4 * N + n) * 32 + lane] = sums[r * TURNS + w][n / 4][n % 4];
        __syncthreads();
#pragma unroll
        for (int n = 0; n < 4 * N; n++) {
            float sum = 0;
#pragma unroll
            for (int w = 0; w < TURNS; w++) {
                float mine = 0; // an index that is not known would put the sums in memory
#pragma unroll
                for (int v = 0; v < TURNS; v++) mine = v == turn ? sums[r * TURNS + v][n / 4][n % 4] : mine;
                sum += w == turn ? mine : exchange[(((turn * TURNS + w) * ACROSS + across) * 4 * N + n) * 32 + lane];
            }
            to[r][n / 4][n % 4] = sum;
        }
    }
}

// Adds a warp's sums to y. They are of every TURNS-th column of tiles from `column` on.
template <int N, int TURNS>
__device__ __forceinline__ void add(const Gradient& p, const float (&sums)[4 / TURNS][N][4], uint32_t column, uint32_t first_column) {
#pragma unroll
    for (int r = 0; r < 4 / TURNS; r++)
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int n = 0; n < 4; n++) {
                uint32_t k = (column + r * TURNS) * 16 + row_of() + n / 2 * 8, at = first_column + 8 * j + 2 * quarter_of() + n % 2;
                if (k >= p.wide_columns || at >= p.thin_columns) continue;
                p.y[p.transposed ? (size_t)k * p.y_stride + at : (size_t)at * p.y_stride + k] += sums[r][j][n];
            }
}

template <int N, int ACROSS, int TURNS, int STAGES>
__device__ __forceinline__ void gradient(const Gradient& p) {
    constexpr int WARPS = ACROSS * TURNS;
    static_assert((TURNS * TURNS - 1) * ACROSS * N * 512 <= WARPS * STAGES * STEP + CHUNK * (16 * N + 16), "sums that warps share have room");
    extern __shared__ __align__(16) char shared[]; // copies [WARPS, STAGES, 4] of a tile, then sums; the thin operand [CHUNK]
    __shared__ float largest[WARPS];
    __shared__ uint32_t last_to_end[1];
    wait_for_previous();
    char* thin_at = shared + WARPS * STAGES * STEP;
    uint32_t own = address_of(shared) + warp_of() * STAGES * STEP;
    uint32_t lane = lane_of(), across = warp_of() % ACROSS, turn = warp_of() / ACROSS;
    uint32_t column = (blockIdx.x * ACROSS + across) * 4, last = (p.wide_columns - 1) / 16, first_column = blockIdx.y * 8 * N;
    uint32_t first = blockIdx.z * p.part_rows, end = max(first, min(first + p.part_rows, p.rows));
    const char* wide[4];
#pragma unroll
    for (int i = 0; i < 4; i++) wide[i] = p.wide + (size_t)min(column + i, last) * p.tiles * TILE + lane * 16;
    auto copy_tile = [&](uint32_t tile, uint32_t slot) {
        if (tile * 16 < end)
#pragma unroll
            for (int i = 0; i < 4; i++) copy(own + slot * STEP + i * TILE + place_of(), wide[i] + (size_t)tile * TILE);
        copies_end();
    };
#pragma unroll
    for (int s = 0; s < STAGES; s++) copy_tile(first / 16 + turn + s * TURNS, s);

    Thin<N, CHUNK, 32 * WARPS> thin; // of the next chunk
    ThinRows thin_rows = {p.thin, p.factors, p.thin_stride, p.thin_columns};
    thin.read(thin_rows, first, end, first_column);
    float sums[4][N][4] = {};
    uint32_t power = 1, slot = 0; // power: the exponent above every value of the thin operand so far, as in shaders/common/thin_scale.wgsl
    uint32_t b_at = address_of(thin_at) + lane % 16 * thin.ROW + lane / 16 * 16;
    for (uint32_t chunk = first; chunk < end; chunk += CHUNK) {
        largest[warp_of()] = warp_max(thin.scale());
        __syncthreads();
        uint32_t above = exponent_above(power, largest);
        thin.write(thin_at, scaling(above));
        raise(sums, power, above);
        __syncthreads();
        thin.read(thin_rows, chunk + CHUNK, end, first_column);
#pragma unroll 2
        for (int s = 0; s < CHUNK / 16 / TURNS; s++) {
            uint32_t tile = chunk / 16 + turn + s * TURNS;
            if (tile * 16 >= end) break;
            copies_wait<STAGES - 1>();
            __syncwarp();
            uint32_t b[N / 2][4];
#pragma unroll
            for (int j = 0; j < N / 2; j++) read_matrices<true>(b[j], b_at + (s * TURNS + turn) * 16 * thin.ROW + j * 32);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t a[4];
                read_matrices<true>(a, own + slot * STEP + i * TILE + matrix_of<true>());
#pragma unroll
                for (int j = 0; j < N; j++) multiply_matrices(sums[i][j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
            }
            __syncwarp();
            copy_tile(tile + STAGES * TURNS, slot);
            slot = slot + 1 == STAGES ? 0 : slot + 1;
        }
    }
    copies_wait<0>();

    float results[4 / TURNS][N][4];
    share<N, ACROSS, TURNS>(results, sums, (float*)shared);
#pragma unroll
    for (int n = 0; n < 16 / TURNS * N; n++) results[n / (4 * N)][n / 4 % N][n % 4] *= undoing(power) * p.scale;
    if (add_up<16 / TURNS * N, 32 * WARPS>((float(&)[16 / TURNS * N]) results, p.parts, p.arrivals, last_to_end))
        add<N, TURNS>(p, results, column + turn, first_column);
}

#define KERNEL(columns, across, turns, stages, resident)                                                                                 \
    extern "C" __global__ void __launch_bounds__(32 * across * turns, resident) gradient_##columns(const __grid_constant__ Gradient p) { \
        gradient<columns / 8, across, turns, stages>(p);                                                                                 \
    }
KERNEL(16, 1, 4, 4, 4)
KERNEL(32, 2, 4, 4, 2)
KERNEL(48, 2, 4, 5, 1)
