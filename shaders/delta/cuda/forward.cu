// The delta net between its convolution and its norm, in two kernels. `prepare`, a block per chunk and value head: the inverse of I + A, W, U₀ and
// the scores P. `scan`, a block per value head, 64 columns of its state and run of chunks: from state to state, with U and the outputs. See
// src/ops/delta/mod.rs for the names.
#include "parts.cuh"

// Twin of the launches in src/ops/delta/cuda.rs.
struct Forward {
    Net net;
    const __half* keys;     // queries, keys [T, 2, Hk, K]
    float* values;          // values, then U₀ [T, Hv, K]
    __half* w;              // [T, Hv, K]
    __half* u;              // U by 16 columns of a chunk, scaled [T, Hv, K]
    __half* inverse;        // [T, Hv, 64]
    __half* scores;         // [T, Hv, 64]
    __half* states;         // before each chunk, by 16 rows, scaled [N, Hv, columns, rows]
    float* scales;          // factors that undo the scaling of states and of U [N, Hv, 2, 8]
    float* out;             // O [T, Hv, K]
    Sizes sizes;
};

constexpr uint32_t PITCH = 68; // floats of a row of A

// Column `column` of (I + A)⁻¹ from row FIRST on, where A is below the diagonal.
template <int FIRST>
__device__ __forceinline__ void invert_column(float (&x)[CHUNK], const float* a, uint32_t column) {
#pragma unroll
    for (int i = 0; i < FIRST; i++) x[i] = 0;
#pragma unroll
    for (int i = FIRST; i < CHUNK; i++) {
        float4 sum = {0, 0, 0, 0};
#pragma unroll
        for (int m = FIRST; m < i; m += 4) {
            float4 row = *(const float4*)&a[i * PITCH + m];
            sum.x += row.x * x[m];
            if (m + 1 < i) sum.y += row.y * x[m + 1];
            if (m + 2 < i) sum.z += row.z * x[m + 2];
            if (m + 3 < i) sum.w += row.w * x[m + 3];
        }
        x[i] = (column == i ? 1.0f : 0.0f) - ((sum.x + sum.y) + (sum.z + sum.w));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 3) prepare(const Forward p) {
    __shared__ __align__(128) char key_pieces[2 * PIECE];
    __shared__ __align__(128) float a[CHUNK * PITCH]; // A, then its inverse, then the values in f16
    __shared__ float sums[CHUNK], rates[CHUNK], seen[CHUNK], maxima[4];
    __shared__ uint32_t starts[CHUNK];
    const Sizes& sizes = p.sizes;
    uint32_t chunk = blockIdx.x, head = blockIdx.y, first = chunk * CHUNK, count = sizes.count(chunk);
    uint32_t keys = address_of(key_pieces), own_row = warp_of() * 16 + row_of();
    for (uint32_t half = 0; half < 2; half++) copy_piece(keys + half * PIECE, p.keys + sizes.key_at(first, 1, head) + half * 64, sizes.key_stride(), count);
    copies_end();
    if (threadIdx.x < CHUNK) {
        uint32_t i = threadIdx.x;
        Token own = token_of(p.net, sizes, chunk, i, head);
        sums[i] = own.sum;
        rates[i] = i < count ? own.rate : 0.0f;
        starts[i] = own.start;
        seen[i] = seen_of(own, chunk);
    }
    // Rows behind the last token read it, and count as nothing where they are used.
    Left queries[8];
#pragma unroll
    for (int i = 0; i < 32; i++) {
        uint32_t t = min(first + own_row + (i & 1) * 8, sizes.tokens - 1);
        queries[i / 4][i % 4] = *(const uint32_t*)(p.keys + sizes.key_at(t, 0, head) + i / 4 * 16 + (i >> 1 & 1) * 8 + column_of());
    }
    copies_wait<0>();

    Result gram[8] = {}, scores[8] = {};
#pragma unroll
    for (int step = 0; step < 8; step++) {
        Left own;
        uint32_t piece = keys + step / 4 * PIECE;
        read_left<false>(own, piece, warp_of() * 16, step % 4);
#pragma unroll
        for (uint32_t pair = 0; pair < 4; pair++)
            if (pair <= warp_of()) {
                multiply_pair<true>(gram[2 * pair], gram[2 * pair + 1], own, piece, pair, step % 4);
                multiply_pair<true>(scores[2 * pair], scores[2 * pair + 1], queries[step], piece, pair, step % 4);
            }
    }
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t i = own_row + 8 * r;
            float own[2];
#pragma unroll
            for (int c = 0; c < 2; c++) {
                uint32_t j = n * 8 + column_of() + c;
                float decay = j <= i && starts[i] <= first + j ? __expf(sums[i] - sums[j]) : 0.0f;
                a[i * PITCH + j] = j < i ? rates[i] * decay * gram[n][2 * r + c] : 0.0f;
                own[c] = decay * scores[n][2 * r + c];
            }
            if (i < count) *(uint32_t*)(p.scores + sizes.pair_at(first + i, head) + n * 8 + column_of()) = half2_of(own[0], own[1]);
        }
    __syncthreads();
    if (threadIdx.x < CHUNK) {
        float x[CHUNK];
        if (threadIdx.x < 32) invert_column<0>(x, a, threadIdx.x);
        else invert_column<32>(x, a, threadIdx.x);
        asm volatile("bar.sync 1, 64;" ::: "memory");
#pragma unroll
        for (int i = 0; i < CHUNK; i++) a[i * PITCH + threadIdx.x] = x[i];
    }
    __syncthreads();

    Left for_w[4], for_u[4];
#pragma unroll
    for (int step = 0; step < 4; step++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t j = step * 16 + (i >> 1) * 8 + column_of();
            float2 own = *(const float2*)&a[(own_row + (i & 1) * 8) * PITCH + j];
            own.x *= rates[j], own.y *= rates[j + 1];
            for_u[step][i] = half2_of(own.x, own.y);
            for_w[step][i] = half2_of(own.x * seen[j], own.y * seen[j + 1]);
        }
    {
        uint32_t i = threadIdx.x / 2, from = threadIdx.x % 2 * 32;
        const float4* row = (const float4*)&a[i * PITCH + from];
        uint4* to = (uint4*)(p.inverse + sizes.pair_at(first + i, head) + from);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float4 low = row[2 * j], high = row[2 * j + 1];
            if (i < count) to[j] = {half2_of(low.x, low.y), half2_of(low.z, low.w), half2_of(high.x, high.y), half2_of(high.z, high.w)};
        }
    }
    // The values, eight at a time.
    float4 values[16];
    float most = 0;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        uint32_t row = threadIdx.x / 16 + i / 2 * 8, t = min(first + row, sizes.tokens - 1);
        values[i] = *(const float4*)(p.values + sizes.value_at(t, head) + threadIdx.x % 16 * 8 + i % 2 * 4);
        if (row >= count) values[i] = {0, 0, 0, 0};
        most = fmaxf(most, fmaxf(fmaxf(fabsf(values[i].x), fabsf(values[i].y)), fmaxf(fabsf(values[i].z), fabsf(values[i].w))));
    }
    most = warp_max(most);
    if (lane_of() == 0) maxima[warp_of()] = most;
    __syncthreads();
    uint32_t e = exponent(fmaxf(fmaxf(maxima[0], maxima[1]), fmaxf(maxima[2], maxima[3])));
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t row = threadIdx.x / 16 + i * 8, part = threadIdx.x % 16;
        float4 low = values[2 * i], high = values[2 * i + 1];
        float f = scaling(e);
        *(uint4*)((char*)a + part / 8 * PIECE + part_at(row, part % 8)) = {half2_of(f * low.x, f * low.y), half2_of(f * low.z, f * low.w),
                                                                          half2_of(f * high.x, f * high.y), half2_of(f * high.z, f * high.w)};
    }
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        Result w[8] = {}, u[8] = {};
#pragma unroll
        for (uint32_t step = 0; step < 4; step++)
            if (step <= warp_of())
#pragma unroll
                for (int pair = 0; pair < 4; pair++) {
                    multiply_pair<false>(w[2 * pair], w[2 * pair + 1], for_w[step], keys + half * PIECE, pair, step);
                    multiply_pair<false>(u[2 * pair], u[2 * pair + 1], for_u[step], address_of(a) + half * PIECE, pair, step);
                }
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                if (own_row + 8 * r < count) {
                    size_t to = sizes.value_at(first + own_row + 8 * r, head) + half * 64 + n * 8 + column_of();
                    *(uint32_t*)(p.w + to) = half2_of(w[n][2 * r], w[n][2 * r + 1]);
                    *(float2*)(p.values + to) = {undoing(e) * u[n][2 * r], undoing(e) * u[n][2 * r + 1]};
                }
    }
}

// A warp holds 16 columns of the state, as the rows of a result: Sᵀ, and with the chunk's tokens as columns Uᵀ and Oᵀ.
extern "C" __global__ void __launch_bounds__(THREADS, 2) scan(const Forward p) {
    __shared__ __align__(128) char pieces[4 * PIECE];
    __shared__ __align__(128) char staged[PIECE];
    __shared__ float seen[2][CHUNK], left[2][CHUNK];
    const Sizes& sizes = p.sizes;
    uint32_t head = blockIdx.x, column = blockIdx.y * 64 + warp_of() * 16, group = column / 16;
    Run run = run_of<false>(p.net, sizes);
    if (run.count == 0) return;

    uint32_t ring = address_of(pieces), slot = 0;
    // Queries, W, scores, keys.
    auto copy = [&](int kind, uint32_t chunk, uint32_t to) {
        uint32_t first = chunk * CHUNK, count = sizes.count(chunk);
        if (kind < 2) copy_piece(to, p.keys + sizes.key_at(first, 0, head) + kind * 64, sizes.key_stride(), count);
        else if (kind < 4) copy_piece(to, p.w + sizes.value_at(first, head) + (kind - 2) * 64, sizes.value_stride(), count);
        else if (kind < 5) copy_piece(to, p.scores + sizes.pair_at(first, head), sizes.pair_stride(), count);
        else copy_piece(to, p.keys + sizes.key_at(first, 1, head) + (kind - 5) * 64, sizes.key_stride(), count);
    };
    constexpr int KINDS = 7;
    auto take = [&](int kind, uint32_t n) {
        copies_wait<2>();
        uint32_t own = n + (kind + 3) / KINDS;
        if (own < run.count) copy((kind + 3) % KINDS, run.first + own, ring + (slot + 3) % 4 * PIECE);
        copies_end();
        return ring + slot++ % 4 * PIECE;
    };
    for (int kind = 0; kind < 3; kind++) {
        copy(kind, run.first, ring + kind * PIECE);
        copies_end();
    }

    Result state[16] = {};
    Token own = token_of(p.net, sizes, run.first, threadIdx.x % CHUNK, head);
    for (uint32_t n = 0; n < run.count; n++) {
        uint32_t chunk = run.first + n, first = chunk * CHUNK, count = sizes.count(chunk);
        bool writes = n > 0 || !run.silent;
        float *own_seen = seen[n % 2], *own_left = left[n % 2];
        if (threadIdx.x < CHUNK) {
            own_seen[threadIdx.x] = seen_of(own, chunk);
            own_left[threadIdx.x] = left_of(own, chunk, threadIdx.x, count);
        }
        own = token_of(p.net, sizes, min(chunk + 1, sizes.chunks() - 1), threadIdx.x % CHUNK, head);
        Result u[8];
#pragma unroll
        for (int i = 0; i < 32; i++) {
            uint32_t j = i / 4 * 8 + column_of() + (i & 1), t = min(first + j, sizes.tokens - 1);
            u[i / 4][i % 4] = p.values[sizes.value_at(t, head) + column + row_of() + (i >> 1 & 1) * 8];
        }
        uint32_t e = exponent(most_of(state));
        Left s[8];
        pack(s, state, scaling(e));
        if (writes) {
#pragma unroll
            for (int i = 0; i < 32; i++) {
                size_t at = sizes.state_at(chunk, head) + (column + row_of() + (i & 1) * 8) * HEAD + i / 4 * 16 + (i >> 1 & 1) * 8 + column_of();
                *(uint32_t*)(p.states + at) = s[i / 4][i % 4];
            }
            if (lane_of() == 0) p.scales[sizes.scale_at(chunk, head) + group] = undoing(e);
        }

        Result out[8] = {};
        multiply_piece<true>(out, s, take(0, n));
        multiply_piece<true>(out, s + 4, take(1, n));
        {
            Result by_state[8] = {};
            multiply_piece<true>(by_state, s, take(2, n));
            multiply_piece<true>(by_state, s + 4, take(3, n));
#pragma unroll
            for (int i = 0; i < 32; i++) u[i / 4][i % 4] -= undoing(e) * by_state[i / 4][i % 4];
        }
        if (count < CHUNK) clear_behind(u, count);
        uint32_t own_e = max(exponent(most_of(u)), lowest_beside(e));
        Left of_u[4];
        pack(of_u, u, scaling(own_e));
#pragma unroll
        for (int i = 0; i < 32; i++) out[i / 4][i % 4] *= own_seen[i / 4 * 8 + column_of() + (i & 1)] * undoing(e) * scaling(own_e);
        uint32_t piece = take(4, n);
#pragma unroll
        for (int step = 0; step < 4; step++)
#pragma unroll
            for (int pair = step; pair < 4; pair++) multiply_pair<true>(out[2 * pair], out[2 * pair + 1], of_u[step], piece, pair, step);
        if (writes) {
#pragma unroll
            for (int i = 0; i < 32; i++) {
                uint32_t j = i / 4 * 8 + column_of() + (i & 1);
                if (j < count) p.out[sizes.value_at(first + j, head) + column + row_of() + (i >> 1 & 1) * 8] = undoing(own_e) * out[i / 4][i % 4];
            }
            store_values(p.u + sizes.value_at(first, head) + column, sizes.value_stride(), count, of_u, address_of(staged));
            if (lane_of() == 0) p.scales[sizes.scale_at(chunk, head) + 8 + group] = undoing(own_e);
        }
#pragma unroll
        for (int i = 0; i < 32; i++) u[i / 4][i % 4] *= own_left[i / 4 * 8 + column_of() + (i & 1)];
        pack(of_u, u, scaling(own_e));
        scale(state, own_seen[count - 1] * scaling(own_e));
        multiply_piece<false>(state, of_u, take(5, n));
        multiply_piece<false>(state + 8, of_u, take(6, n));
        scale(state, undoing(own_e));
    }
}
