// u = scale·dy·B and dB += scale·dyᵀ·z from one read of dy, for up to three products whose u lie beside each other. A block has a strip of outputs and
// a part of the tokens. It keeps its sums of dB to its end, and leaves those of u behind each chunk of tokens. `finish` adds up what blocks left, in
// order.
#include "thin.cuh"

// A product's operands and results.
struct Product {
    const char* dy;       // [N/16, tiles, 16, 16]
    const float* factors; // undoes the scaling of its rows [T]
    const float* b;       // [N, R]
    const float* z;       // [T, z_stride]
    float* u;             // [T, u_stride]
    __half* packed;       // likewise, [R/16, packed_tiles, 16, 16], scaled as the rows of dy
    float* db;            // [N, R]
};

// Twin of the buffers and of `Numbers` in src/ops/lora/backward.rs.
struct Backward {
    Product products[3];
    float* of_u;          // sums of a strip's outputs [strips, padded_rows, R]
    float* of_b;          // sums of a part's tokens [parts, strips, strip, R]
    uint32_t columns[3];  // N, even
    uint32_t tiles[3];    // from one column of dy's tiles to the next
    uint32_t ends[3];     // of the products' strips
    uint32_t count;       // of the products
    uint32_t strip;       // outputs of a strip
    uint32_t rows;        // T
    uint32_t padded_rows; // likewise, a multiple of CHUNK
    uint32_t z_stride;
    uint32_t u_stride;
    uint32_t packed_tiles;
    uint32_t part_rows;   // a multiple of CHUNK
    uint32_t parts;
    uint32_t u_blocks;    // of `finish`, before those of dB
    float scale;
};

constexpr int WARPS = 8, THREADS = 32 * WARPS;

// The product that a strip is of.
__device__ __forceinline__ uint32_t product_of(const Backward& p, uint32_t strip) {
    return strip < p.ends[0] ? 0 : strip < p.ends[1] ? 1 : 2;
}

// The second operands of J·16 rows of B from k on, 8·N ranks. Rank N·n + j is the n-th of operand j: a lane's ranks are neighbours in memory.
template <int N, int J>
__device__ __forceinline__ void read_b(uint32_t (&to)[J][N][2], const float* b, uint32_t k, uint32_t columns) {
#pragma unroll
    for (int i = 0; i < 2 * J; i++) {
        uint32_t row = k + i * 8 + 2 * quarter_of();
#pragma unroll
        for (int j = 0; j < N; j += 2) {
            const float2* from = (const float2*)(b + (size_t)row * 8 * N + N * row_of() + j);
            float2 low = row < columns ? from[0] : float2{0.f, 0.f}, high = row < columns ? from[4 * N] : float2{0.f, 0.f};
            to[i / 2][j][i % 2] = half2_of(low.x, high.x);
            to[i / 2][j + 1][i % 2] = half2_of(low.y, high.y);
        }
    }
}

// Stores a warp's sums of u of 16 tokens, in the order of ranks.
template <int N>
__device__ __forceinline__ void store_u(float* to, const float (&u)[N][4]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float v[2 * N];
#pragma unroll
        for (int n = 0; n < 2 * N; n++) v[n] = u[n % N][2 * h + n / N];
#pragma unroll
        for (int n = 0; n < 2 * N; n += 4)
            *(float4*)(to + (h * 8 + row_of()) * 8 * N + 2 * N * quarter_of() + n) = float4{v[n], v[n + 1], v[n + 2], v[n + 3]};
    }
}

// Adds up the warps' sums of u of a chunk.
template <int N, int CHUNK>
__device__ __forceinline__ void leave_u(float* to, const float* sums) {
    for (uint32_t at = threadIdx.x; at < CHUNK * 2 * N; at += THREADS) {
        float4 sum = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            float4 v = ((const float4*)sums)[w * CHUNK * 2 * N + at];
            sum = float4{sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
        }
        ((float4*)to)[at] = sum;
    }
}

// N: eights of ranks. J: columns of tiles of a warp. STAGES: steps of 16 tokens whose tiles are on their way to it. CHUNK: tokens whose z, and whose
// sums of u, are in shared memory at a time.
template <int N, int J, int STAGES, int CHUNK>
__device__ __forceinline__ void backward(const Backward& p) {
    constexpr uint32_t R = 8 * N, STEP = J * TILE;
    extern __shared__ __align__(16) char shared[]; // copies [WARPS, STAGES, J] of a tile; sums of u [WARPS, CHUNK, R]; z [CHUNK]
    __shared__ float largest[WARPS];
    wait_for_previous();
    float* u_sums = (float*)(shared + WARPS * STAGES * STEP);
    char* z_at = (char*)(u_sums + WARPS * CHUNK * R);
    uint32_t lane = lane_of(), strip = blockIdx.x, which = product_of(p, strip);
    const Product& product = p.products[which];
    uint32_t column = (strip - (which ? p.ends[which - 1] : 0)) * WARPS * J + warp_of() * J, columns = p.columns[which];
    uint32_t all = (columns + 15) / 16, there = column < all ? min(all - column, J) : 0;
    uint32_t first = blockIdx.y * p.part_rows, end = max(first, min(first + p.part_rows, p.rows));
    size_t across = (size_t)p.tiles[which] * TILE;
    const char* dy = product.dy + column * across + lane * 16;
    char* own_at = shared + warp_of() * STAGES * STEP;
    uint32_t own = address_of(own_at);
    auto copy_tiles = [&](uint32_t tile, uint32_t slot) {
        if (tile * 16 < end)
#pragma unroll
            for (int i = 0; i < J; i++)
                if (i < there) copy(own + slot * STEP + i * TILE + place_of(), dy + i * across + (size_t)tile * TILE);
        copies_end();
    };
    for (uint32_t i = there; i < J; i++) // behind the last output
        for (uint32_t s = 0; s < STAGES; s++) *(uint4*)(own_at + s * STEP + i * TILE + lane * 16) = uint4{0, 0, 0, 0};
#pragma unroll
    for (int s = 0; s < STAGES; s++) copy_tiles(first / 16 + s, s);

    Thin<N, CHUNK, THREADS> thin; // of the next chunk
    ThinRows z_rows = {product.z, product.factors, p.z_stride, R};
    thin.read(z_rows, first, end, 0);
    uint32_t b[J][N][2];
    read_b<N, J>(b, product.b, column * 16, columns);
    float sums[J][N][4] = {};
    uint32_t power = 1, slot = 0; // power: the exponent above every value of z so far, as in shaders/common/thin_scale.wgsl
    uint32_t z_from = address_of(z_at) + lane % 16 * thin.ROW + lane / 16 * 16;
    float* of_u = p.of_u + (size_t)strip * p.padded_rows * R;
    for (uint32_t chunk = first; chunk < end; chunk += CHUNK) {
        largest[warp_of()] = warp_max(thin.scale());
        __syncthreads();
        if (chunk > first) leave_u<N, CHUNK>(of_u + (size_t)(chunk - CHUNK) * R, u_sums);
        uint32_t above = exponent_above(power, largest);
        thin.write(z_at, scaling(above));
        raise(sums, power, above);
        thin.read(z_rows, chunk + CHUNK, end, 0);
        __syncthreads();
#pragma unroll 1
        for (uint32_t s = 0; s < CHUNK / 16 && chunk + 16 * s < end; s++) {
            copies_wait<STAGES - 1>();
            __syncwarp();
            uint32_t z[N / 2][4];
#pragma unroll
            for (int j = 0; j < N / 2; j++) read_matrices<true>(z[j], z_from + s * 16 * thin.ROW + j * 32);
            float u[N][4] = {};
#pragma unroll
            for (int i = 0; i < J; i++) {
                uint32_t a[4], tile = own + slot * STEP + i * TILE;
                read_matrices<false>(a, tile + matrix_of<false>());
#pragma unroll
                for (int j = 0; j < N; j++) multiply_matrices(u[j], a, b[i][j][0], b[i][j][1]);
                read_matrices<true>(a, tile + matrix_of<true>());
#pragma unroll
                for (int j = 0; j < N; j++) multiply_matrices(sums[i][j], a, z[j / 2][j % 2 * 2], z[j / 2][j % 2 * 2 + 1]);
            }
            store_u<N>(u_sums + (warp_of() * CHUNK + s * 16) * R, u);
            __syncwarp();
            copy_tiles(chunk / 16 + s + STAGES, slot);
            slot = slot + 1 == STAGES ? 0 : slot + 1;
        }
    }
    copies_wait<0>();
    __syncthreads();
    if (end > first) leave_u<N, CHUNK>(of_u + (size_t)((end - 1) / CHUNK * CHUNK) * R, u_sums);
    float* to = p.of_b + (((size_t)blockIdx.y * gridDim.x + strip) * WARPS + warp_of()) * 16 * J * R + 2 * quarter_of();
#pragma unroll
    for (int i = 0; i < 2 * J; i++)
#pragma unroll
        for (int j = 0; j < N; j++) {
            float low = sums[i / 2][j][i % 2 * 2], high = sums[i / 2][j][i % 2 * 2 + 1];
            *(float2*)(to + (i * 8 + row_of()) * R + 8 * j) = float2{low * undoing(power), high * undoing(power)};
        }
}

// scale times the sum of `count` values, `each` apart, in order.
__device__ __forceinline__ float4 scaled_sum(const float4* from, uint32_t count, size_t each, float scale) {
    float4 sum = {0.f, 0.f, 0.f, 0.f};
#pragma unroll 4
    for (uint32_t i = 0; i < count; i++) {
        float4 v = from[i * each];
        sum = float4{sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
    }
    return float4{scale * sum.x, scale * sum.y, scale * sum.z, scale * sum.w};
}

// Four values of u, in f32 and packed; those behind the last token, up to a whole tile, are zeros.
template <uint32_t R4>
__device__ __forceinline__ void finish_u(const Backward& p, uint32_t at) {
    uint32_t whole = (p.rows + 15) / 16 * 16, t = at / R4 % whole, r = at % R4, which = at / R4 / whole;
    if (which >= p.count) return;
    const Product& product = p.products[which];
    float4 v = {0.f, 0.f, 0.f, 0.f};
    if (t < p.rows) {
        uint32_t first = which ? p.ends[which - 1] : 0;
        const float4* from = (const float4*)p.of_u + ((size_t)first * p.padded_rows + t) * R4 + r;
        v = scaled_sum(from, p.ends[which] - first, (size_t)p.padded_rows * R4, p.scale);
        float by = product.factors[t];
        *(float4*)(product.u + (size_t)t * p.u_stride + 4 * r) = float4{by * v.x, by * v.y, by * v.z, by * v.w};
    }
    *(uint2*)(product.packed + ((size_t)(r / 4) * p.packed_tiles + t / 16) * 256 + t % 16 * 16 + r % 4 * 4) = halves_of(v);
}

// Adds four values to dB.
template <uint32_t R4>
__device__ __forceinline__ void finish_b(const Backward& p, uint32_t at) {
    uint32_t k = at / R4, strip = k / p.strip, strips = p.ends[p.count - 1];
    if (strip >= strips) return;
    uint32_t which = product_of(p, strip), own = k - (which ? p.ends[which - 1] : 0) * p.strip;
    if (own >= p.columns[which]) return;
    float4 v = scaled_sum((const float4*)p.of_b + at, p.parts, (size_t)strips * p.strip * R4, p.scale);
    float4* to = (float4*)p.products[which].db + (size_t)own * R4 + at % R4;
    float4 old = *to;
    *to = float4{old.x + v.x, old.y + v.y, old.z + v.z, old.w + v.w};
}

template <uint32_t R4>
__device__ __forceinline__ void finish(const Backward& p) {
    wait_for_previous();
    uint32_t at = blockIdx.x * 256 + threadIdx.x;
    if (blockIdx.x < p.u_blocks)
        finish_u<R4>(p, at);
    else
        finish_b<R4>(p, at - p.u_blocks * 256);
}

#define KERNEL(name, ranks, columns, stages, chunk)                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) backward_##name(const __grid_constant__ Backward p) { \
        backward<ranks / 8, columns, stages, chunk>(p);                                                            \
    }
#define FINISH(ranks) \
    extern "C" __global__ void __launch_bounds__(256) finish_##ranks(const __grid_constant__ Backward p) { finish<ranks / 4>(p); }
KERNEL(16, 16, 4, 3, 64)
KERNEL(16_wide, 16, 8, 2, 32)
KERNEL(32, 32, 4, 2, 32)
FINISH(16)
FINISH(32)
