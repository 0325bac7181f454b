// Runs of chunks that a scan takes at once. No state crosses a sample's first token, so a run begins with a chunk in which a sample begins.
// A chunk that also holds tokens of the sample before belongs to two runs. One of the two computes it and writes nothing.
#import common/delta_chunk

struct Run {
    first: u32,     // chunk with which the scan begins
    count: u32,     // chunks
    silent: bool,   // whether nothing of the first one is written
}

fn all_chunks() -> u32 {
    return (params.tokens + CHUNK - 1u) / CHUNK;
}

// The first chunk from `chunk` on in which a sample begins, or the number of chunks.
fn border(chunk: u32) -> u32 {
    if chunk == 0u || chunk >= all_chunks() {
        return min(chunk, all_chunks());
    }
    let bound = bounds[token(chunk * CHUNK, CHUNK - 1u)];
    if bound.x >= chunk * CHUNK {
        return chunk;
    }
    return select(bound.y / CHUNK, all_chunks(), bound.y >= params.tokens);
}

// 1 where tokens of the sample before lie in the chunk with which a run begins.
fn shares(chunk: u32) -> u32 {
    return select(0u, 1u, chunk < all_chunks() && bounds[min(chunk * CHUNK, params.tokens - 1u)].x < chunk * CHUNK);
}

// Run `n` of `runs`; it may have no chunk.
fn run_forward(n: u32, runs: u32) -> Run {
    let first = border(n * all_chunks() / runs);
    let next = border((n + 1u) * all_chunks() / runs);
    let count = select(next + shares(next) - first, 0u, first == next);
    return Run(min(first, all_chunks() - 1u), count, shares(first) == 1u);
}

// Its chunks backward: it begins with the last, which the next run shares.
fn run_backward(n: u32, runs: u32) -> Run {
    let forward = run_forward(n, runs);
    let next = border((n + 1u) * all_chunks() / runs);
    return Run(forward.first + max(forward.count, 1u) - 1u, forward.count, shares(next) == 1u);
}
