// Products of all rows with one matrix.
#include MATRICES

constexpr int TOKEN_TILES = 16;  // neighbouring blocks share W over so many tiles of tokens, and x over their columns

constexpr int MOST = 4;         // products that a result sums, at most

// The tiles of a product with one matrix. They run over the tokens of a group, then over the columns.
struct Whole {
    static constexpr bool GATHERS = false;
    const Numbers& n;
    __device__ __forceinline__ uint32_t across() const { return (n.columns + COLUMNS - 1) / COLUMNS; }
    __device__ __forceinline__ uint32_t down() const { return (n.rows + TOKENS - 1) / TOKENS; }
    __device__ __forceinline__ uint32_t count() const { return across() * down() * n.parts; }
    __device__ __forceinline__ uint32_t source(const Tile& tile, uint32_t row) const { return row < tile.rows ? row : NONE; }
    __device__ __forceinline__ Tile at(uint32_t index) const {
        uint32_t across = this->across(), down = this->down();
        uint32_t part = index / (across * down), begin = part * n.part_stages;
        index %= across * down;
        uint32_t first = index / (across * TOKEN_TILES) * TOKEN_TILES, rest = index % (across * TOKEN_TILES);
        uint32_t group = min(down - first, (uint32_t)TOKEN_TILES);
        uint32_t end = min(begin + n.part_stages, all_stages(n));
        return Tile{rest / group * COLUMNS, (first + rest % group) * TOKENS, n.rows, part, begin, end, 0};
    }
};

template <class Sources, class Result>
__device__ __forceinline__ void run_whole(const Sources& sources, const Result& y) {
    extern __shared__ __align__(1024) char memory[];
    uint32_t base = (uint32_t)__cvta_generic_to_shared(memory);
    begin<Whole>(base);
    wait_for_previous();
    run(sources, y, Whole{sources.numbers(0)}, base);
}

struct Arguments { Operands o; Rows y; Numbers n; };

extern "C" __global__ void __launch_bounds__(THREADS, 1) product(const __grid_constant__ Arguments a) {
    run_whole(One{a.o, a.n}, a.y);
}

// The buffers come before the numbers of both.
struct HalfArguments { Operands o; uint4* y; float* factors; Numbers n; uint32_t tiles, stride; };

extern "C" __global__ void __launch_bounds__(THREADS, 1) product_in_halves(const __grid_constant__ HalfArguments a) {
    run_whole(One{a.o, a.n}, Halves{a.y, a.factors, a.tiles, a.stride});
}

struct SumArguments { Operands o[MOST]; uint4* y; float* factors; Numbers n[MOST]; uint32_t count, tiles, stride; };

extern "C" __global__ void __launch_bounds__(THREADS, 1) sum_in_halves(const __grid_constant__ SumArguments a) {
    run_whole(Several<false>{a.o, a.n, a.count}, Halves{a.y, a.factors, a.tiles, a.stride});
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) sum_of_alike_in_halves(const __grid_constant__ SumArguments a) {
    run_whole(Several<true>{a.o, a.n, a.count}, Halves{a.y, a.factors, a.tiles, a.stride});
}
