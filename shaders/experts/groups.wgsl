// Sorts the tokens by expert, one workgroup per expert. Each thread takes a run of all choices, so that the order is that of the tokens in
// every schedule. An expert's rows begin with a tile, and padding (NONE) fills its last tile.

// Twin of `Params` in src/ops/experts/groups.rs.
struct Params {
    choices: u32,       // T·used
    experts: u32,       // E, at most 256
    tile: u32,          // rows of a tile
    tiles: u32,         // most tiles
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> chosen: array<u32>;           // expert of each choice [T·used]
@group(0) @binding(2) var<storage, read_write> counts: array<u32>;     // choices of each expert [E]
@group(0) @binding(3) var<storage, read_write> tiles: array<u32>;      // expert of each tile, NONE past the last [tiles]
@group(0) @binding(4) var<storage, read_write> choices: array<u32>;    // choice of each row, NONE for padding [tiles·tile]
@group(0) @binding(5) var<storage, read_write> places: array<u32>;     // row of each choice [T·used]
@group(0) @binding(6) var<storage, read_write> firsts: array<u32>;     // first tile of each expert [E]

const NONE: u32 = 0xffffffffu;
const THREADS: u32 = 256u;

var<workgroup> shared_values: array<u32, 256>;

// This thread takes the choices from .x to before .y.
fn own_run(lane: u32) -> vec2<u32> {
    let run = (params.choices + THREADS - 1u) / THREADS;
    return min(vec2<u32>(lane * run, (lane + 1u) * run), vec2<u32>(params.choices));
}

fn count_own(expert: u32, lane: u32) -> u32 {
    let run = own_run(lane);
    var count = 0u;
    for (var i = run.x; i < run.y; i++) {
        count += u32(chosen[i] == expert);
    }
    return count;
}

// The sum over the first `lanes` threads, after sums over runs of threads that double in length (Hillis & Steele 1986).
fn sum_below(value: u32, lanes: u32, lane: u32) -> u32 {
    var sum = value;
    shared_values[lane] = sum;
    for (var length = 1u; length < THREADS; length *= 2u) {
        workgroupBarrier();
        if lane >= length {
            sum += shared_values[lane - length];
        }
        workgroupBarrier();
        shared_values[lane] = sum;
    }
    workgroupBarrier();
    sum = select(0u, shared_values[max(lanes, 1u) - 1u], lanes > 0u);
    workgroupBarrier();
    return sum;
}

@compute @workgroup_size(256)
fn count(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let sum = sum_below(count_own(group.x, lane), THREADS, lane);
    if lane == 0u {
        counts[group.x] = sum;
    }
}

fn tiles_of(count: u32) -> u32 {
    return (count + params.tile - 1u) / params.tile;
}

@compute @workgroup_size(256)
fn place(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let expert = group.x;
    var before = 0u;
    if lane < expert {
        before = tiles_of(counts[lane]);
    }
    let first_tile = sum_below(before, THREADS, lane);
    let end_tile = first_tile + tiles_of(counts[expert]);
    if lane == 0u {
        firsts[expert] = first_tile;
    }
    var row = first_tile * params.tile + sum_below(count_own(expert, lane), lane, lane);
    let run = own_run(lane);
    for (var i = run.x; i < run.y; i++) {
        if chosen[i] == expert {
            choices[row] = i;
            places[i] = row;
            row++;
        }
    }
    for (var i = first_tile * params.tile + counts[expert] + lane; i < end_tile * params.tile; i += THREADS) {
        choices[i] = NONE;
    }
    for (var i = first_tile + lane; i < end_tile; i += THREADS) {
        tiles[i] = expert;
    }
    if expert + 1u == params.experts {
        for (var i = end_tile + lane; i < params.tiles; i += THREADS) {
            tiles[i] = NONE;
        }
    }
}
