// Products of rows that are grouped by expert (shaders/experts/groups.wgsl) with the matrix of their expert.
#include MATRICES

constexpr int EXPERTS = 256;    // at most

// Twin of the buffers and of `GroupedNumbers` in src/ops/linear/cuda/grouped.rs.
struct Arguments {
    Operands o;
    Rows y;
    const uint32_t* counts;     // rows of each expert [E]
    const uint32_t* firsts;     // first tile of each expert [E]
    const uint32_t* choices;    // choice of each row, NONE in rows that fill a tile
    Numbers n;                  // `rows` and the parts are not used
    uint32_t first_expert;      // whose panels come first
    uint32_t experts;           // whose panels there are, at most 256
    uint32_t tile;              // rows of a tile, a multiple of 16: an expert's rows fill whole ones
    uint32_t used;              // choices of a token
};

// The tiles of a product by expert. They run over the tokens of an expert, then over the columns, then over the experts.
template <bool OF_TOKENS>
struct ByExpert {
    static constexpr bool GATHERS = OF_TOKENS;
    const Arguments& a;
    const uint32_t* begins;         // tiles of 128 tokens before each expert, and of all
    __device__ __forceinline__ uint32_t across() const { return (a.n.columns + COLUMNS - 1) / COLUMNS; }
    __device__ __forceinline__ uint32_t count() const { return across() * begins[a.experts]; }
    __device__ __forceinline__ uint32_t source(const Tile& tile, uint32_t row) const {
        if (row >= tile.rows) return NONE;
        if (!OF_TOKENS) return row;
        uint32_t choice = a.choices[row];
        return choice == NONE ? NONE : choice / a.used;
    }
    __device__ __forceinline__ Tile at(uint32_t index) const {
        uint32_t across = this->across(), low = 0, high = a.experts;
        while (high - low > 1) {
            uint32_t middle = (low + high) / 2;
            (begins[middle] * across <= index ? low : high) = middle;
        }
        uint32_t expert = a.first_expert + low, down = begins[low + 1] - begins[low], rest = index - begins[low] * across;
        uint32_t row = a.firsts[expert] * a.tile, rows = (a.counts[expert] + a.tile - 1) / a.tile * a.tile;
        return Tile{rest / down * COLUMNS, row + rest % down * TOKENS, row + rows, 0, 0, all_stages(a.n), low};
    }
};

template <bool OF_TOKENS>
__device__ __forceinline__ void run_grouped(const Arguments& a, char* memory) {
    uint32_t base = (uint32_t)__cvta_generic_to_shared(memory);
    uint32_t *begins = (uint32_t*)(memory + BYTES), *own = begins + EXPERTS + 1;
    wait_for_previous();
    if (threadIdx.x < a.experts) {
        uint32_t rows = (a.counts[a.first_expert + threadIdx.x] + a.tile - 1) / a.tile * a.tile;
        own[threadIdx.x] = (rows + TOKENS - 1) / TOKENS;
    }
    __syncthreads();
    if (threadIdx.x <= a.experts) {
        uint32_t before = 0;
        for (uint32_t i = 0; i < threadIdx.x; i++) before += own[i];
        begins[threadIdx.x] = before;
    }
    begin<ByExpert<OF_TOKENS>>(base);
    run(One{a.o, a.n}, a.y, ByExpert<OF_TOKENS>{a, begins}, base);
}

// x holds the rows of y.
extern "C" __global__ void __launch_bounds__(THREADS, 1) grouped(const __grid_constant__ Arguments a) {
    extern __shared__ __align__(1024) char memory[];
    run_grouped<false>(a, memory);
}

// x holds the rows of the tokens: every row of y reads that of its choice's token.
extern "C" __global__ void __launch_bounds__(THREADS, 1) gathered(const __grid_constant__ Arguments a) {
    extern __shared__ __align__(1024) char memory[];
    run_grouped<true>(a, memory);
}
