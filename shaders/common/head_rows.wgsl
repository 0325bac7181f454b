// Heads of tokens in registers: 16 threads take a head of a token, and keep PAIRS pairs of vec4s of it. HEADS heads run at once, in TURNS
// rounds. Heads may come packed (shaders/pack/plain.wgsl), of keys and of values alike. The importer has `params` with `heads`, and with
// `x_tiles`, the stride between columns of matrices in packed heads, and `x_blocks`, that between factors of 256 columns. With LANES, the threads
// of a head are lanes of one subgroup of 32, which add up among themselves, and those of BESIDE tokens stand beside each other.
#import common/heads
#import common/packed

#for (n, there, at_x, at_factors) in (0, 1, 1, 8) (1, {VALUES}, 11, 18)
#if {there}
#if {MATRICES}
@group(0) @binding({at_x}) var<storage, read> x_{n}: array<vec4<f16>>;             // [heads·K/16, T/16, 16, 16]
@group(0) @binding({at_factors}) var<storage, read> x_factors_{n}: array<f32>;     // [T], or [heads·K/256, T]
#else
@group(0) @binding({at_x}) var<storage, read> x_{n}: array<vec4<f32>>;             // [T, heads, K]
#end

// Vec4 `c` of a token's heads.
fn source4_{n}(token: u32, c: u32) -> vec4<f32> {
#if {MATRICES}
    return x_factors_{n}[c / 64u * params.x_blocks + token] * vec4<f32>(x_{n}[packed_at(params.x_tiles, token, c)]);
#else
    return x_{n}[token * params.heads * params.half4 * 2u + c];
#end
}

#end
#end
const EACH_HEAD: u32 = 16u;                 // threads per head of a token
const ROW: u32 = {HEADS}u * EACH_HEAD;      // threads per token

var<workgroup> largest: array<f32, {THREADS}>;

#if {LANES}
// A thread's place among those of all tokens. Four neighbours of a token stand beside four of the next, so that a subgroup reads and writes
// longer pieces of matrices.
fn place(thread: u32) -> u32 {
    let both = thread % ({BESIDE}u * ROW);
    return thread - both + both / 4u % {BESIDE}u * ROW + both / (4u * {BESIDE}u) * 4u + both % 4u;
}

#for (name, type) in (sum, f32) (sums, vec2<f32>)
fn {name}_of_head(value: {type}) -> {type} {
    var sum = value;
#for (step) in (1) (2) (4 * {BESIDE}) (8 * {BESIDE})
    sum += subgroupShuffleXor(sum, {step}u);
#end
    return sum;
}

#end
// The largest value over the threads of a token.
fn row_largest(value: f32, lane: u32) -> f32 {
    var most = value;
#for (step) in (1) (2) (4 * {BESIDE}) (8 * {BESIDE})
    most = max(most, subgroupShuffleXor(most, {step}u));
#end
    if lane % EACH_HEAD == 0u {
        largest[lane / EACH_HEAD] = most;
    }
    workgroupBarrier();
    for (var h = 0u; h < {HEADS}u; h++) {
        most = max(most, largest[lane / ROW * {HEADS}u + h]);
    }
    return most;
}
#else
fn place(thread: u32) -> u32 {
    return thread;
}

// The largest value over the threads of a token: over the heads, then over the threads of one.
fn row_largest(value: f32, lane: u32) -> f32 {
    let own = lane % ROW;
    var most = value;
    largest[lane] = most;
    workgroupBarrier();
    for (var h = own % EACH_HEAD; h < ROW; h += EACH_HEAD) {
        most = max(most, largest[lane - own + h]);
    }
    workgroupBarrier();
    largest[lane] = most;
    workgroupBarrier();
    for (var s = 0u; s < EACH_HEAD; s++) {
        most = max(most, largest[lane / EACH_HEAD * EACH_HEAD + s]);
    }
    return most;
}
#end
