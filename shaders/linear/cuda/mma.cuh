// Products by mma.sync. Eight warps multiply 64 tokens with 64 columns each, both operands from shared memory. Every thread copies a part of
// 32 steps of both at a time, a slot, three slots ahead of their products: four slots leave room for what consumer GPUs have, 99 KiB.
#pragma once
#include "../../common/cuda/matrices.cuh"
#include "parts.cuh"

constexpr int THREADS = 256, SLOTS = 4, SLOT_SLICES = 2;
constexpr int W = SLOT_SLICES * SLICE, SLOT = W + COLUMNS * SLOT_SLICES * 32, BYTES = SLOTS * SLOT;  // of shared memory

// The slices of x, or of z, that a tile sums.
struct Slices {
    uint32_t first, count;
    __device__ __forceinline__ Slices(const Numbers& n, const Tile& tile, bool low) {
        uint32_t stages = (n.steps + SLICES - 1) / SLICES, all = low ? n.low_steps : n.steps;
        uint32_t begin = low ? max(tile.first, stages) - stages : tile.first, end = low ? max(tile.end, stages) - stages : tile.end;
        first = min(begin * SLICES, all), count = min(end * SLICES, all) - first;
    }
    __device__ __forceinline__ uint32_t slots() const { return (count + SLOT_SLICES - 1) / SLOT_SLICES; }
};

// Copies the slots of this block's tiles, one after the other. A thread has half a row of x in each slice, and a sixteenth of a row in each panel
// of W. The halves of x swap in every other four rows, and the sixteenths of W change places in every other row, so that ldmatrix finds no two
// rows in one bank. Little is left to compute for a slot: all warps wait for its barrier together.
template <class Sources, class Tiles>
struct Feed {
    const Sources& sources;
    const Tiles& tiles;
    uint32_t index, count;      // the tile, and all tiles
    uint32_t product;           // of the sources
    bool low;                   // whether its slices are of z
    uint32_t left;              // its slices that are left
    const char *x, *w;          // this thread's parts of the next slot
    size_t x_step;              // bytes from a slice to the next
    uint32_t panels[COLUMNS / 64], there;   // bytes to a panel of W; those of a part of x: 0 where there is no row
    bool second;                // whether the slot has the second half of its panels

    __device__ __forceinline__ Feed(const Sources& sources, const Tiles& tiles)
        : sources(sources), tiles(tiles), index(blockIdx.x), count(tiles.count()), product(0), low(false), left(0) {
        if (index >= count) return;
        begin();
        if (left == 0) go_on();
    }
    // Begins with x or z of a tile.
    __device__ __forceinline__ void begin() {
        const Operands& o = sources.operands(product);
        const Numbers& n = sources.numbers(product);
        Tile tile = sources.part(tiles.at(index), product);
        Slices own(n, tile, low);
        left = own.count;
        uint32_t row = threadIdx.x / 2, rows = (low ? n.z_tiles : n.tiles) * 16;
        uint32_t from = Tiles::GATHERS && !low ? tiles.source(tile, tile.token + row) : tile.token + row;
        there = from < rows ? 16 : 0;
        x_step = (size_t)rows * 32;
        x = (low ? o.z : o.x) + own.first * x_step + (from < rows ? from * 32 + threadIdx.x % 2 * 16 : 0);
        uint32_t w_row = threadIdx.x / 4, across = (n.columns + 63) / 64, steps = ((low ? n.low_steps : n.steps) + SLICES - 1) / SLICES;
        // A part of the sum begins with a whole panel.
        w = (low ? o.low : o.w) + ((size_t)tile.matrix * across * steps + own.first / SLICES) * PANEL;
        w += w_row * 128 + (((threadIdx.x % 4) ^ (w_row & 7)) << 4);
        second = false;
#pragma unroll
        for (uint32_t j = 0; j < COLUMNS / 64; j++) panels[j] = min(tile.column / 64 + j, across - 1) * steps * PANEL;
    }
    // Goes on to the z, the product or the tile that has slices next.
    __device__ __forceinline__ void go_on() {
        do {
            if (low && ++product == sources.count) index += gridDim.x, product = 0;
            low = !low;
            if (index >= count) return;
            begin();
        } while (left == 0);
    }
    // Copies the next slot, where there is one, to `at`.
    __device__ __forceinline__ void copy_next(uint32_t at) {
        if (left > 0) {
            uint32_t row = threadIdx.x / 2, w_row = threadIdx.x / 4;
            uint32_t x_at = at + row * 32 + (((threadIdx.x ^ (row >> 2)) & 1) << 4);
            uint32_t w_at = at + W + w_row * 64 + (((threadIdx.x ^ (w_row >> 1)) & 3) << 4);
            copy(x_at, x, there);
            copy(x_at + SLICE, left > 1 ? x + x_step : x, left > 1 ? there : 0);
#pragma unroll
            for (uint32_t j = 0; j < COLUMNS / 64; j++) copy(w_at + j * 64 * 64, w + panels[j], 16);
            x += 2 * x_step;
            // The halves of a panel's rows are 64 bytes apart, the second one first in every other four rows.
            ptrdiff_t half = w_row & 4 ? -64 : 64;
            w += second ? PANEL - half : half;
            second = !second;
            left -= min(left, (uint32_t)SLOT_SLICES);
            if (left == 0) go_on();
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
};

// The first token and the first column of this warp in a tile.
__device__ __forceinline__ uint32_t warp_token() { return threadIdx.x / 32 % 2 * 64; }
__device__ __forceinline__ uint32_t warp_column() { return threadIdx.x / 64 * 64; }

// 16 steps of 64 rows of both operands, as this lane holds them.
struct Fragments {
    uint32_t x[4][4], w[4][4];
    __device__ __forceinline__ void read_slice(uint32_t at, uint32_t u) {
        uint32_t lane = threadIdx.x % 32, row = lane % 16, column = lane / 16 * 8 + lane % 8, part = u * 2 + (lane >> 3 & 1);
        uint32_t from = at + u * SLICE + (warp_token() + row) * 32 + ((lane / 16 ^ (row >> 2 & 1)) << 4);
        uint32_t w_from = at + W + (warp_column() + column) * 64 + ((part ^ (column >> 1 & 3)) << 4);
#pragma unroll
        for (int i = 0; i < 4; i++) read_matrices<false>(x[i], from + i * 16 * 32);
#pragma unroll
        for (int j = 0; j < 4; j++) read_matrices<false>(w[j], w_from + j * 16 * 64);
    }
    __device__ __forceinline__ void multiply_to(float (&d)[4][8][4]) const {
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) multiply_matrices(d[i][j], x[i], w[j / 2][j % 2 * 2], w[j / 2][j % 2 * 2 + 1]);
    }
};

// What scales this lane's rows of an operand, where a result sums several.
template <class Sources>
struct Ratios {
    uint32_t of[Sources::SCALES ? 8 : 1];
    __device__ __forceinline__ Ratios(const Sources& sources, const Tile& tile, uint32_t s) {
        uint32_t token = tile.token + warp_token() + threadIdx.x % 32 / 4;
#pragma unroll
        for (int i = 0; i < 8 && Sources::SCALES; i++) of[i] = token + i * 8 < tile.rows ? sources.ratio(s, token + i * 8) : 0;
    }
    __device__ __forceinline__ void scale(Fragments& fragments) const {
#pragma unroll
        for (int i = 0; i < 16 && Sources::SCALES; i++) fragments.x[i / 4][i % 4] = times(fragments.x[i / 4][i % 4], of[i / 4 * 2 + i % 2]);
    }
};

using Sums = float[4][8][4];     // of a warp: 16 rows and 8 columns each

// Stores the sums of a warp, or adds them: no other thread has these results. Begins new ones.
template <bool ADD, class Sources, class Tiles>
__device__ __forceinline__ void store(const Rows& rows, const Sources& sources, const Numbers& n, const Tiles& tiles, const Tile& tile, Sums& d) {
    uint32_t first = tile.column + warp_column() + neighbours_column();
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t token = tile.token + warp_token() + i * 8 + threadIdx.x % 32 / 4, source = tiles.source(tile, token);
        float factor = source != NONE ? sources.unit(source) : 0.f;
        float* y = rows.y + ((size_t)tile.part * n.rows + token) * n.stride + first;
        bool there = token < tile.rows;
        float4 before[4];
#pragma unroll
        for (int j = 0; j < 4; j++) before[j] = ADD && there && first + j * 16 < n.columns ? *(const float4*)(y + j * 16) : float4{0.f, 0.f, 0.f, 0.f};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float *a = &d[i / 2][j * 2][i % 2 * 2], *b = &d[i / 2][j * 2 + 1][i % 2 * 2];
            float4 v = neighbours({a[0], a[1]}, {b[0], b[1]}), w = before[j];
            if (there && first + j * 16 < n.columns)
                *(float4*)(y + j * 16) = {fmaf(v.x, factor, w.x), fmaf(v.y, factor, w.y), fmaf(v.z, factor, w.z), fmaf(v.w, factor, w.w)};
            a[0] = a[1] = b[0] = b[1] = 0.f;
        }
    }
}

template <class Sources, class Tiles>
__device__ __forceinline__ void leave(const Rows& y, const Sources& sources, const Numbers& n, const Tiles& tiles, const Tile& tile, Sums& d) {
    if (n.accumulate) store<true>(y, sources, n, tiles, tile, d);
    else store<false>(y, sources, n, tiles, tile, d);
}

// Stores the sums in f16, and begins new ones. Four warps have the columns of a token: they tell each other their largest values.
template <class Sources, class Tiles>
__device__ __forceinline__ void leave(const Halves& y, const Sources& sources, const Numbers& n, const Tiles&, const Tile& tile, Sums& d) {
    __shared__ float largest[COLUMNS / 64][TOKENS];
    uint32_t row = warp_token() + threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float most = 0.f;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float* v = &d[i / 2][j][i % 2 * 2];
            if (tile.column + warp_column() + j * 8 < n.columns) most = larger(most, v[0], v[1]);
        }
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1)), most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        if (threadIdx.x % 4 == 0) largest[warp_column() / 64][row + i * 8] = most;
    }
    __syncthreads();
    float scale[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float most = 0.f;
#pragma unroll
        for (int w = 0; w < COLUMNS / 64; w++) most = fmaxf(most, largest[w][row + i * 8]);
        uint32_t token = tile.token + row + i * 8;
        bool stores = warp_column() == 0 && threadIdx.x % 4 == 0 && token < tile.rows;
        scale[i] = y.scaling_of(tile, token, most, stores ? sources.unit(token) : 0.f, stores);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t first = tile.token + warp_token() + i * 16;
        float s = scale[i * 2], t = scale[i * 2 + 1];
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            float(&a)[4] = d[i][j], (&b)[4] = d[i][j + 1];
            uint4 half = rows_of_matrix(two(a[0] * s, a[1] * s), two(b[0] * s, b[1] * s), two(a[2] * t, a[3] * t), two(b[2] * t, b[3] * t));
            uint32_t column = tile.column + warp_column() + j * 8;
            if (first < tile.rows && column < n.columns) *y.place(column, first) = half;
#pragma unroll
            for (int k = 0; k < 4; k++) a[k] = b[k] = 0.f;
        }
    }
    __syncthreads();    // before the next tile's largest values
}

// Every thread sees what the others wrote before.
template <class Tiles>
__device__ __forceinline__ void begin(uint32_t) {
    __syncthreads();
}

// Waits for the next slot. All warps have read this one then.
__device__ __forceinline__ void wait_for_slot() {
    asm volatile("cp.async.wait_group %0;" ::"n"(SLOTS - 2) : "memory");
    __syncthreads();
}

template <class Sources, class Tiles, class Result>
__device__ __forceinline__ void run(const Sources& sources, const Result& y, const Tiles& tiles, uint32_t base) {
    Feed<Sources, Tiles> feed(sources, tiles);
    for (int i = 0; i < SLOTS - 1; i++) feed.copy_next(base + i * SLOT);
    Fragments even, odd;    // slices of a slot
    float d[4][8][4] = {};
    uint32_t at = base, free = base + (SLOTS - 1) * SLOT;
    wait_for_slot();
    even.read_slice(at, 0);
    for (uint32_t index = blockIdx.x, count = tiles.count(); index < count; index += gridDim.x) {
        Tile tile = tiles.at(index);
        for (uint32_t s = 0; s < sources.count; s++) {
            const Numbers& n = sources.numbers(s);
            Tile part = sources.part(tile, s);
            Ratios<Sources> ratios(sources, tile, s);
            for (uint32_t left = Slices(n, part, false).slots() + Slices(n, part, true).slots(); left > 0; left--) {
                feed.copy_next(free);
                odd.read_slice(at, 1);
                ratios.scale(even);
                even.multiply_to(d);
                free = at, at = at == base + (SLOTS - 1) * SLOT ? base : at + SLOT;
                wait_for_slot();
                even.read_slice(at, 0);
                ratios.scale(odd);
                odd.multiply_to(d);
            }
        }
        leave(y, sources, sources.numbers(0), tiles, tile, d);
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}
