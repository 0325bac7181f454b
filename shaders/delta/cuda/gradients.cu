// A block per chunk and value head: the gradients of queries, keys, rates and sums of decays' logarithms, from the states and their gradients.
#include "backward.cuh"

// 16 rows of values by 16 columns of a chunk, in registers.
__device__ __forceinline__ void read_values(Left* a, const __half* from, uint32_t steps, uint32_t first, uint32_t count, const Sizes& sizes, uint32_t head) {
    uint32_t own_row = warp_of() * 16 + row_of();
#pragma unroll
    for (int step = 0; step < steps; step++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t row = own_row + (i & 1) * 8;
            uint32_t own = *(const uint32_t*)(from + sizes.value_at(min(first + row, sizes.tokens - 1), head) + step * 16 + (i >> 1) * 8 + column_of());
            a[step][i] = row < count ? own : 0;
        }
}

// Factors of 16 columns each, relative to the largest.
struct Factors {
    float own[8], most;
    __device__ void make(const float* f, const float* g) {
        most = 1e-37f; // where all products are zero
        for (int i = 0; i < 8; i++) own[i] = f[i] * (g ? g[i] : 1.0f), most = fmaxf(most, own[i]);
        for (int i = 0; i < 8; i++) own[i] /= most;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 2) gradients(const Backward p) {
    __shared__ __align__(128) char pieces[3 * PIECE];
    __shared__ __align__(128) char query_pairs[PIECE]; // D·dP below the diagonal, by 16 rows, scaled
    __shared__ __align__(128) char key_pairs[PIECE];   // β·D·dA, likewise
    __shared__ float sums[CHUNK], rates[CHUNK], diagonal[CHUNK], pair_scales[4], totals[4];
    __shared__ uint32_t starts[CHUNK];
    __shared__ Factors by_state, by_u, r_by_state, r_by_u, u_by_dstate;
    const Sizes& sizes = p.sizes;
    uint32_t chunk = blockIdx.x, head = blockIdx.y, first = chunk * CHUNK, count = sizes.count(chunk);
    uint32_t ring = address_of(pieces), slot = 0, warp = warp_of(), own_row = warp * 16 + row_of();

    // U; then for each half of a head's rows: the state by halves of its columns, keys, queries, the gradient of the state by halves of its columns.
    auto copy = [&](int kind, uint32_t to) {
        uint32_t half = kind < 8 ? 0 : 1, of_half = kind - 2 - 6 * half;
        if (kind < 2) copy_piece(to, p.u + sizes.value_at(first, head) + kind * 64, sizes.value_stride(), count);
        else if (of_half < 2) copy_piece(to, p.states + sizes.state_at(chunk, head) + of_half * 64 * HEAD + half * 64, HEAD, CHUNK);
        else if (of_half < 4) copy_piece(to, p.keys + sizes.key_at(first, 3 - of_half, head) + half * 64, sizes.key_stride(), count);
        else copy_piece(to, p.dstates + sizes.state_at(chunk, head) + (of_half - 4) * 64 * HEAD + half * 64, HEAD, CHUNK);
    };
    constexpr int KINDS = 14;
    auto take = [&](int kind) {
        copies_wait<1>();
        if (kind + 2 < KINDS) copy(kind + 2, ring + (slot + 2) % 3 * PIECE);
        copies_end();
        return ring + slot++ % 3 * PIECE;
    };
    for (int kind = 0; kind < 2; kind++) {
        copy(kind, ring + kind * PIECE);
        copies_end();
    }
    Token token = token_of(p.net, sizes, chunk, threadIdx.x % CHUNK, head);
    if (threadIdx.x < CHUNK) {
        sums[threadIdx.x] = token.sum;
        rates[threadIdx.x] = token.rate;
        starts[threadIdx.x] = token.start;
    }
    const float *scales = p.scales + sizes.scale_at(chunk, head), *dscales = p.dscales + sizes.scale_at(chunk, head);
    if (threadIdx.x == 0) by_state.make(scales, nullptr);
    if (threadIdx.x == 32) by_u.make(scales + 8, nullptr);
    if (threadIdx.x == 64) r_by_state.make(dscales + 8, scales);
    if (threadIdx.x == 96) r_by_u.make(dscales + 8, scales + 8);
    if (threadIdx.x == 65) u_by_dstate.make(scales + 8, dscales);
    // Of this thread's two rows.
    float seen[2], left[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        Token own = token_of(p.net, sizes, chunk, own_row + 8 * r, head);
        seen[r] = seen_of(own, chunk);
        left[r] = left_of(own, chunk, own_row + 8 * r, count);
    }
    Left of_out[8], of_r[8];
    float out_undo;
    {
        Result dout[16];
#pragma unroll
        for (int n = 0; n < 16; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                uint32_t row = own_row + 8 * r;
                float2 own = *(const float2*)(p.dout + sizes.value_at(min(first + row, sizes.tokens - 1), head) + n * 8 + column_of());
                dout[n][2 * r] = row < count ? own.x : 0.0f;
                dout[n][2 * r + 1] = row < count ? own.y : 0.0f;
            }
        uint32_t e = exponent(most_of(dout));
        out_undo = undoing(e);
        pack(of_out, dout, scaling(e));
    }
    read_values(of_r, p.r, 8, first, count, sizes, head);

    // The gradients of scores and of A.
    {
        Result by_out[8] = {}, by_r[8] = {};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t piece = take(half);
#pragma unroll
            for (int step = 0; step < 4; step++) {
                Left out, r;
#pragma unroll
                for (int i = 0; i < 4; i++) out[i] = of_out[half * 4 + step][i], r[i] = of_r[half * 4 + step][i];
                scale(out, by_u.own[half * 4 + step]);
                scale(r, r_by_u.own[half * 4 + step]);
#pragma unroll
                for (uint32_t pair = 0; pair < 4; pair++)
                    if (pair <= warp) {
                        multiply_pair<true>(by_out[2 * pair], by_out[2 * pair + 1], out, piece, pair, step);
                        multiply_pair<true>(by_r[2 * pair], by_r[2 * pair + 1], r, piece, pair, step);
                    }
            }
        }
        float most = 0;
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t row = own_row + (i >> 1) * 8, j = n * 8 + column_of() + (i & 1);
                float decay = j <= row && row < count && starts[row] <= first + j ? __expf(sums[row] - sums[j]) : 0.0f;
                float by_query = out_undo * by_u.most * by_out[n][i], by_key = r_by_u.most * by_r[n][i];
                if (row == j) {
                    diagonal[row] = by_query;
                    if (row < count) p.dbeta[(size_t)(first + row) * sizes.gate_stride() + head] = (1.0f - rates[row]) * by_key;
                    decay = 0.0f;
                }
                by_out[n][i] = decay * by_query;
                by_r[n][i] = -rates[row] * decay * by_key;
                most = fmaxf(most, fmaxf(fabsf(by_out[n][i]), fabsf(by_r[n][i])));
            }
        uint32_t beside = exponent(fmaxf(out_undo * by_state.most, r_by_state.most));
        uint32_t e = max(exponent(warp_max(most)), lowest_beside(beside));
        if (lane_of() == 0) pair_scales[warp] = undoing(e);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                uint32_t at = part_at(own_row + 8 * r, n) + column_of() * 2;
                *(uint32_t*)(query_pairs + at) = half2_of(scaling(e) * by_out[n][2 * r], scaling(e) * by_out[n][2 * r + 1]);
                *(uint32_t*)(key_pairs + at) = half2_of(scaling(e) * by_r[n][2 * r], scaling(e) * by_r[n][2 * r + 1]);
            }
    }

    float dots[2] = {}, written[2] = {};
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        int kind = 2 + 6 * half;
        Result dq[8] = {}, dk[8] = {};
#pragma unroll
        for (int columns = 0; columns < 2; columns++) {
            uint32_t piece = take(kind + columns);
#pragma unroll
            for (int step = 0; step < 4; step++) {
                Left out, r;
#pragma unroll
                for (int i = 0; i < 4; i++) out[i] = of_out[columns * 4 + step][i], r[i] = of_r[columns * 4 + step][i];
                scale(out, by_state.own[columns * 4 + step]);
                scale(r, r_by_state.own[columns * 4 + step]);
#pragma unroll
                for (int pair = 0; pair < 4; pair++) {
                    multiply_pair<false>(dq[2 * pair], dq[2 * pair + 1], out, piece, pair, step);
                    multiply_pair<false>(dk[2 * pair], dk[2 * pair + 1], r, piece, pair, step);
                }
            }
        }
        uint32_t piece = take(kind + 2);
        float own_scale = pair_scales[warp], most_scale = fmaxf(fmaxf(pair_scales[0], pair_scales[1]), fmaxf(pair_scales[2], pair_scales[3]));
#pragma unroll
        for (int i = 0; i < 32; i++) {
            int r = i >> 1 & 1;
            dq[i / 4][i % 4] *= out_undo * by_state.most * seen[r] / own_scale;
            dk[i / 4][i % 4] *= -rates[own_row + 8 * r] * seen[r] * r_by_state.most / own_scale;
        }
        Result behind[8] = {}; // terms of later tokens of the chunk in the gradients of keys
        uint32_t keys[8][2];
#pragma unroll
        for (uint32_t step = 0; step < 4; step++) {
            if (step <= warp) {
                Left of_query, of_key;
                read_left<false>(of_query, address_of(query_pairs), warp * 16, step);
                read_left<false>(of_key, address_of(key_pairs), warp * 16, step);
#pragma unroll
                for (int pair = 0; pair < 4; pair++) {
                    multiply_pair<false>(dq[2 * pair], dq[2 * pair + 1], of_query, piece, pair, step);
                    multiply_pair<false>(dk[2 * pair], dk[2 * pair + 1], of_key, piece, pair, step);
                }
            }
            if (step >= warp) {
                Left of_key;
                read_left<true>(of_key, address_of(key_pairs), warp * 16, step);
                scale(of_key, pair_scales[step] / most_scale);
#pragma unroll
                for (int pair = 0; pair < 4; pair++) multiply_pair<false>(behind[2 * pair], behind[2 * pair + 1], of_key, piece, pair, step);
            }
        }
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                asm volatile("ld.shared.u32 %0, [%1];" : "=r"(keys[n][r]) : "r"(piece + part_at(own_row + 8 * r, n) + column_of() * 2) : "memory");
                float2 key = floats_of(keys[n][r]);
                dk[n][2 * r] *= own_scale, dk[n][2 * r + 1] *= own_scale;
                dots[r] += dk[n][2 * r] * key.x + dk[n][2 * r + 1] * key.y;
            }
        piece = take(kind + 3);
#pragma unroll
        for (uint32_t step = 0; step < 4; step++)
            if (step >= warp) {
                Left of_query;
                read_left<true>(of_query, address_of(query_pairs), warp * 16, step);
                scale(of_query, pair_scales[step] / most_scale);
#pragma unroll
                for (int pair = 0; pair < 4; pair++) multiply_pair<false>(behind[2 * pair], behind[2 * pair + 1], of_query, piece, pair, step);
            }
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                uint32_t row = own_row + 8 * r, query_bits;
                asm volatile("ld.shared.u32 %0, [%1];" : "=r"(query_bits) : "r"(piece + part_at(row, n) + column_of() * 2) : "memory");
                float2 query = floats_of(query_bits), key = floats_of(keys[n][r]);
                float2 of_query = {own_scale * dq[n][2 * r], own_scale * dq[n][2 * r + 1]};
                float2 of_behind = {most_scale * behind[n][2 * r], most_scale * behind[n][2 * r + 1]};
                dots[r] += of_query.x * query.x + of_query.y * query.y - of_behind.x * key.x - of_behind.y * key.y;
                float on = diagonal[row];
                if (row < count)
                    *(float2*)(p.mixed_at(first + row, 0, head) + half * 64 + n * 8 + column_of()) = {of_query.x + on * key.x, of_query.y + on * key.y};
                dk[n][2 * r] += of_behind.x + on * query.x;
                dk[n][2 * r + 1] += of_behind.y + on * query.y;
            }
        Result through[8] = {}; // terms of the state behind the chunk
#pragma unroll
        for (int columns = 0; columns < 2; columns++) {
            Left u[4];
            read_values(u, p.u + columns * 64, 4, first, count, sizes, head);
            piece = take(kind + 4 + columns);
#pragma unroll
            for (int step = 0; step < 4; step++) {
                scale(u[step], u_by_dstate.own[columns * 4 + step]);
#pragma unroll
                for (int pair = 0; pair < 4; pair++) multiply_pair<false>(through[2 * pair], through[2 * pair + 1], u[step], piece, pair, step);
            }
        }
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float2 key = floats_of(keys[n][r]);
                float factor = left[r] * u_by_dstate.most;
                float2 own = {factor * through[n][2 * r], factor * through[n][2 * r + 1]};
                written[r] += own.x * key.x + own.y * key.y;
                if (own_row + 8 * r < count)
                    *(float2*)(p.mixed_at(first + own_row + 8 * r, 1, head) + half * 64 + n * 8 + column_of()) = {dk[n][2 * r] + own.x, dk[n][2 * r + 1] + own.y};
            }
    }

    // The last sum has a part of each token, and one of the state.
    float total = 0;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        uint32_t at = i * THREADS + threadIdx.x, group = at / 256;
        uint4 s = *((const uint4*)(p.states + sizes.state_at(chunk, head)) + at), d = *((const uint4*)(p.dstates + sizes.state_at(chunk, head)) + at);
        float sum = 0;
        const uint32_t *of_s = &s.x, *of_d = &d.x;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float2 a = floats_of(of_s[j]), b = floats_of(of_d[j]);
            sum += a.x * b.x + a.y * b.y;
        }
        total += scales[group] * dscales[group] * sum;
    }
    Token last = token_of(p.net, sizes, chunk, count - 1, head);
    total *= seen_of(last, chunk);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        dots[r] -= written[r];
        total += written[r];
        dots[r] += __shfl_xor_sync(0xffffffff, dots[r], 1);
        dots[r] += __shfl_xor_sync(0xffffffff, dots[r], 2);
    }
#pragma unroll
    for (int apart = 16; apart; apart /= 2) total += __shfl_xor_sync(0xffffffff, total, apart);
    if (lane_of() == 0) totals[warp] = total;
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        uint32_t row = own_row + 8 * r;
        float sum = dots[r] + (row == count - 1 ? (totals[0] + totals[1]) + (totals[2] + totals[3]) : 0.0f);
        if (lane_of() % 4 == 0 && row < count) p.dsums[(size_t)(first + row) * sizes.gate_stride() + head] = sum;
    }
}
