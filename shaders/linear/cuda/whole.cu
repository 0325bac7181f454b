// Products of all rows with one matrix.
#include MATRICES

constexpr int TOKEN_TILES = 16;  // neighbouring blocks share W over so many tiles of tokens, and x over their columns

struct Arguments { Operands o; Numbers n; };

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

extern "C" __global__ void __launch_bounds__(THREADS, 1) product(const __grid_constant__ Arguments a) {
    extern __shared__ __align__(1024) char memory[];
    uint32_t base = (uint32_t)__cvta_generic_to_shared(memory);
    begin<Whole>(base);
    wait_for_previous();
    run(a.o, a.n, Whole{a.n}, base);
}
