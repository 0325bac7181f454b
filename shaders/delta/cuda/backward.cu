// The mirror of `scan` in forward.cu, a block per value head, 64 columns of its state and run of chunks: from the gradient of a state to that of
// the one before, with R and the gradients of values.
#include "backward.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 2) scan(const Backward p) {
    __shared__ __align__(128) char pieces[4 * PIECE];
    __shared__ __align__(128) char staged[PIECE];
    __shared__ float seen[2][CHUNK], left[2][CHUNK], rates[2][CHUNK];
    const Sizes& sizes = p.sizes;
    uint32_t head = blockIdx.x, column = blockIdx.y * 64 + warp_of() * 16, group = column / 16;
    Run run = run_of<true>(p.net, sizes);
    if (run.count == 0) return;

    uint32_t ring = address_of(pieces), slot = 0;
    // Keys, scores, inverse, queries, W.
    auto copy = [&](int kind, uint32_t chunk, uint32_t to) {
        uint32_t first = chunk * CHUNK, count = sizes.count(chunk);
        if (kind < 2) copy_piece(to, p.keys + sizes.key_at(first, 1, head) + kind * 64, sizes.key_stride(), count);
        else if (kind < 3) copy_piece(to, p.scores + sizes.pair_at(first, head), sizes.pair_stride(), count);
        else if (kind < 4) copy_piece(to, p.inverse + sizes.pair_at(first, head), sizes.pair_stride(), count);
        else if (kind < 6) copy_piece(to, p.keys + sizes.key_at(first, 0, head) + (kind - 4) * 64, sizes.key_stride(), count);
        else copy_piece(to, p.w + sizes.value_at(first, head) + (kind - 6) * 64, sizes.value_stride(), count);
    };
    constexpr int KINDS = 8;
    auto take = [&](int kind, uint32_t n) {
        copies_wait<2>();
        uint32_t own = n + (kind + 3) / KINDS;
        if (own < run.count) copy((kind + 3) % KINDS, run.first - own, ring + (slot + 3) % 4 * PIECE);
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
        uint32_t chunk = run.first - n, first = chunk * CHUNK, count = sizes.count(chunk);
        bool writes = n > 0 || !run.silent;
        float *own_seen = seen[n % 2], *own_left = left[n % 2], *own_rates = rates[n % 2];
        if (threadIdx.x < CHUNK) {
            own_seen[threadIdx.x] = seen_of(own, chunk);
            own_left[threadIdx.x] = left_of(own, chunk, threadIdx.x, count);
            own_rates[threadIdx.x] = own.rate;
        }
        own = token_of(p.net, sizes, chunk ? chunk - 1 : 0, threadIdx.x % CHUNK, head);
        Result dout[8]; // as `Left` has them: by 16 tokens, those of eight rows and of the eight behind
#pragma unroll
        for (int i = 0; i < 32; i++) {
            uint32_t j = i / 4 * 8 + column_of() + (i & 1), t = min(first + j, sizes.tokens - 1);
            dout[i / 4][i % 4] = p.dout[sizes.value_at(t, head) + column + row_of() + (i >> 1 & 1) * 8];
        }
        uint32_t e = exponent(most_of(state));
        Result du[8] = {};
        {
            Left s[8];
            pack(s, state, scaling(e));
            if (writes) {
#pragma unroll
                for (int i = 0; i < 32; i++) {
                    size_t at = sizes.state_at(chunk, head) + (column + row_of() + (i & 1) * 8) * HEAD + i / 4 * 16 + (i >> 1 & 1) * 8 + column_of();
                    *(uint32_t*)(p.dstates + at) = s[i / 4][i % 4];
                }
                if (lane_of() == 0) p.dscales[sizes.scale_at(chunk, head) + group] = undoing(e);
            }
            multiply_piece<true>(du, s, take(0, n));
            multiply_piece<true>(du, s + 4, take(1, n));
        }
        if (count < CHUNK) clear_behind(dout, count);
        uint32_t out_e = max(exponent(most_of(dout)), lowest_beside(e));
        Left of_out[4], of_u[4];
        pack(of_out, dout, scaling(out_e));
        // Other threads' stores before the first piece are visible.
#pragma unroll
        for (int i = 0; i < 32; i++) du[i / 4][i % 4] *= own_left[i / 4 * 8 + column_of() + (i & 1)] * undoing(e) * scaling(out_e);
        uint32_t piece = take(2, n);
#pragma unroll
        for (int step = 0; step < 4; step++)
#pragma unroll
            for (int pair = 0; pair <= step; pair++) multiply_pair<false>(du[2 * pair], du[2 * pair + 1], of_out[step], piece, pair, step);
        scale(du, undoing(out_e));
        uint32_t own_e = max(exponent(most_of(du)), lowest_beside(max(e, out_e)));
        pack(of_u, du, scaling(own_e));
        piece = take(3, n);
        {
            Result r[8] = {};
#pragma unroll
            for (int step = 0; step < 4; step++)
#pragma unroll
                for (int pair = 0; pair <= step; pair++) multiply_pair<false>(r[2 * pair], r[2 * pair + 1], of_u[step], piece, pair, step);
            scale(r, undoing(own_e));
            if (writes) {
                uint32_t r_e = exponent(most_of(r));
                Left of_r[4];
                pack(of_r, r, scaling(r_e));
                store_values(p.r + sizes.value_at(first, head) + column, sizes.value_stride(), count, of_r, address_of(staged));
                if (lane_of() == 0) p.dscales[sizes.scale_at(chunk, head) + 8 + group] = undoing(r_e);
#pragma unroll
                for (int i = 0; i < 32; i++) {
                    uint32_t j = i / 4 * 8 + column_of() + (i & 1);
                    if (j < count) p.mixed_at(first + j, 2, head)[column + row_of() + (i >> 1 & 1) * 8] = own_rates[j] * r[i / 4][i % 4];
                }
            }
        }
#pragma unroll
        for (int step = 0; step < 4; step++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t j = step * 16 + (i >> 1) * 8 + column_of();
                of_out[step][i] = times(of_out[step][i], half2_of(own_seen[j], own_seen[j + 1]));
                of_u[step][i] ^= 0x80008000;
            }
        scale(state, own_seen[count - 1] * scaling(out_e));
        multiply_piece<false>(state, of_out, take(4, n));
        multiply_piece<false>(state + 8, of_out, take(5, n));
        scale(state, undoing(out_e) * scaling(own_e));
        multiply_piece<false>(state, of_u, take(6, n));
        multiply_piece<false>(state + 8, of_u, take(7, n));
        scale(state, undoing(own_e));
    }
}
