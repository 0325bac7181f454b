// Queries, keys and values: a causal convolution over four tokens of a sample with SiLU, and the l2 norm of heads of queries and keys.
// One workgroup per token and head.
#import common/delta
#import common/reduce

@group(0) @binding(1) var<storage, read> bounds: array<vec2<u32>>;     // [T]
@group(0) @binding(2) var<storage, read> x: array<f32>;                // [T, C]
@group(0) @binding(3) var<storage, read> taps: array<vec4<f32>>;       // [C, 4]
@group(0) @binding(4) var<storage, read_write> y: array<f32>;          // [T, C]
@group(0) @binding(5) var<storage, read> dmixed: array<f32>;           // of queries, keys, values by value head [T, 3, Hv, K]
@group(0) @binding(6) var<storage, read_write> dsum: array<f32>;       // of the convolution's sums [T, C]
@group(0) @binding(7) var<storage, read_write> dx: array<f32>;         // [T, C]
#if {CARRIED}
@group(0) @binding(8) var<storage, read> past: array<u32>;             // tokens before these [1]
@group(0) @binding(9) var<storage, read_write> history: array<f32>;    // x of the last tokens: that of token p in row p % 4 [4, C]

// x of the `n`th token before token `t`.
fn earlier(t: u32, n: u32, channel: u32) -> f32 {
    let width = 4u * channels4();
    if t >= n {
        return x[(t - n) * width + channel];
    }
    if past[0] + t >= n {
        return history[(past[0] + t - n) % 4u * width + channel];
    }
    return 0.0;
}

// Stores the last tokens' x. One thread per channel and token.
@compute @workgroup_size(64)
fn keep(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let width = 4u * channels4();
    let index = (group.x + group.y * groups.x) * 64u + lane;
    if index >= min(params.tokens, 3u) * width {
        return;
    }
    let t = params.tokens - 1u - index / width;
    history[(past[0] + t) % 4u * width + index % width] = x[t * width + index % width];
}
#end

// The convolution of a channel before SiLU.
fn convolve(t: u32, channel: u32) -> f32 {
    let own = taps[channel];
    let width = 4u * channels4();
    let at = t * width + channel;
    var sum = own.w * x[at];
#if {CARRIED}
    sum += own.z * earlier(t, 1u, channel) + own.y * earlier(t, 2u, channel) + own.x * earlier(t, 3u, channel);
#else
    let start = bounds[t].x;
    if t >= start + 1u {
        sum += own.z * x[at - width];
    }
    if t >= start + 2u {
        sum += own.y * x[at - 2u * width];
    }
    if t >= start + 3u {
        sum += own.x * x[at - 3u * width];
    }
#end
    return sum;
}

fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp(-x));
}

fn silu(x: f32) -> f32 {
    return x * sigmoid(x);
}

// The factor of a head: of its norm, and of queries 1/√K.
fn factor(head: u32) -> f32 {
    return select(1.0, params.scale, head < params.key_heads);
}

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let heads = 2u * params.key_heads + params.value_heads;
    let index = group.x + group.y * groups.x;
    let t = min(index / heads, params.tokens - 1u);
    let head = index % heads;
    var squares = 0.0;
    for (var c = lane; c < SIZE; c += 64u) {
        let value = silu(convolve(t, head * SIZE + c));
        squares += value * value;
    }
    let length = reduce_sum(squares, lane) + params.eps;
    let norm = select(1.0, factor(head) / sqrt(length), head < 2u * params.key_heads);
    if index >= heads * params.tokens {
        return;
    }
    for (var c = lane; c < SIZE; c += 64u) {
        let channel = head * SIZE + c;
        y[t * 4u * channels4() + channel] = norm * silu(convolve(t, channel));
    }
}

// The gradient of a query, key or value, summed over the value heads that read it.
fn gradient(t: u32, head: u32, c: u32) -> f32 {
    if head >= 2u * params.key_heads {
        return dmixed[4u * part_at(t, 3u, 2u, head - 2u * params.key_heads) + c];
    }
    var sum = 0.0;
    for (var h = head % params.key_heads; h < params.value_heads; h += params.key_heads) {
        sum += dmixed[4u * part_at(t, 3u, head / params.key_heads, h) + c];
    }
    return sum;
}

// The gradient of the convolution's sums, through SiLU and norm.
@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let heads = 2u * params.key_heads + params.value_heads;
    let index = group.x + group.y * groups.x;
    let t = min(index / heads, params.tokens - 1u);
    let head = index % heads;
    let is_normed = head < 2u * params.key_heads;
    var squares = 0.0;
    var products = 0.0;
    for (var c = lane; c < SIZE; c += 64u) {
        let value = silu(convolve(t, head * SIZE + c));
        squares += value * value;
        products += value * gradient(t, head, c);
    }
    let length = reduce_sum(squares, lane) + params.eps;
    let product = reduce_sum(products, lane);
    if index >= heads * params.tokens {
        return;
    }
    let norm = factor(head) / sqrt(length);
    for (var c = lane; c < SIZE; c += 64u) {
        let channel = head * SIZE + c;
        let sum = convolve(t, channel);
        let d = gradient(t, head, c);
        let through = select(d, norm * (d - silu(sum) * (product / length)), is_normed);
        dsum[t * 4u * channels4() + channel] = through * sigmoid(sum) * (1.0 + sum * (1.0 - sigmoid(sum)));
    }
}

// dx[t] = Σ w[3 − n]·dsum[t + n] over the tokens of the sample. One thread per value.
@compute @workgroup_size(64)
fn convolve_back(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let width = 4u * channels4();
    let at = (group.x + group.y * groups.x) * 64u + lane;
    let t = at / width;
    if t >= params.tokens {
        return;
    }
    let end = bounds[t].y;
    let own = taps[at % width];
    var sum = own.w * dsum[at];
    if t + 1u < end {
        sum += own.z * dsum[at + width];
    }
    if t + 2u < end {
        sum += own.y * dsum[at + 2u * width];
    }
    if t + 3u < end {
        sum += own.x * dsum[at + 3u * width];
    }
    dx[at] = sum;
}
