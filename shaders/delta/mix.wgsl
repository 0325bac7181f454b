// Queries, keys and values: a causal convolution over four tokens of a sample with SiLU, and the l2 norm of heads of queries and keys.
// A workgroup takes some heads and some neighbouring tokens one after the other. Each thread has four channels of a head. HALVES: queries and
// keys are stored in f16, and values apart.
#import common/delta
#import common/head_sum

@group(0) @binding(1) var<storage, read> bounds: array<vec2<u32>>;         // [T]
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;              // [T, C]
@group(0) @binding(3) var<storage, read> taps: array<vec4<f32>>;           // [C, 4]
#if {HALVES}
@group(0) @binding(4) var<storage, read_write> y: array<vec2<u32>>;        // queries, keys [T, 2, Hk, K]
@group(0) @binding(6) var<storage, read_write> values: array<vec4<f32>>;   // [T, Hv, K]
#else
@group(0) @binding(4) var<storage, read_write> y: array<vec4<f32>>;        // [T, C]
#end
@group(0) @binding(5) var<storage, read> dmixed: array<vec4<f32>>;         // of queries, keys, values by value head [T, 3, Hv, K]
@group(0) @binding(7) var<storage, read_write> dx: array<vec4<f32>>;       // [T, C]
#if {CARRIED}
#if {EACH}
#import common/steps
@group(0) @binding(8) var<storage, read> steps: array<vec2<u32>>;          // tokens before this one, and its sequence [T]
#else
@group(0) @binding(8) var<storage, read> past: array<u32>;                 // tokens before these [1]
#end
@group(0) @binding(9) var<storage, read_write> history: array<vec4<f32>>;  // x of the last tokens: that of token p in row p % 4 [4, C]
#end

const FORWARD_RUN: u32 = 4u;            // twins of those in src/ops/delta/mod.rs: tokens of a workgroup
const BACKWARD_RUN: u32 = 16u;

#if {EACH}
// x of the `n`th token before token `t` of its sequence.
fn earlier(t: u32, n: u32, c4: u32) -> vec4<f32> {
    let step = steps[t];
    if step.y != NO_SEQUENCE && step.x >= n {
        return history[history_at(step.y, step.x - n, c4)];
    }
    return vec4<f32>();
}

// Place of x of token `p` of a sequence. The rows of a sequence begin at a multiple of 256 bytes.
fn history_at(sequence: u32, p: u32, c4: u32) -> u32 {
    return sequence * ((4u * channels4() + 15u) / 16u * 16u) + p % 4u * channels4() + c4;
}

// Stores x of every token. One thread per four channels and token.
@compute @workgroup_size(64)
fn keep(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = (group.x + group.y * groups.x) * 64u + lane;
    let t = index / channels4();
    let c4 = index % channels4();
    if t < params.tokens && steps[min(t, params.tokens - 1u)].y != NO_SEQUENCE {
        history[history_at(steps[t].y, steps[t].x, c4)] = x[index];
    }
}
#else
#if {CARRIED}
// x of the `n`th token before token `t`.
fn earlier(t: u32, n: u32, c4: u32) -> vec4<f32> {
    if t >= n {
        return x[(t - n) * channels4() + c4];
    }
    if past[0] + t >= n {
        return history[(past[0] + t - n) % 4u * channels4() + c4];
    }
    return vec4<f32>();
}

// Stores the last tokens' x. One thread per four channels and token.
@compute @workgroup_size(64)
fn keep(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = (group.x + group.y * groups.x) * 64u + lane;
    if index >= min(params.tokens, 3u) * channels4() {
        return;
    }
    let t = params.tokens - 1u - index / channels4();
    let c4 = index % channels4();
    history[(past[0] + t) % 4u * channels4() + c4] = x[t * channels4() + c4];
}
#else
// x of the `n`th token before token `t`, 0 before the sample.
fn earlier(t: u32, n: u32, c4: u32) -> vec4<f32> {
    if t < bounds[t].x + n {
        return vec4<f32>();
    }
    return x[(t - n) * channels4() + c4];
}
#end
#end

// The four channels of this thread: their head, the vec4 of it, and the weights of the convolution, those of the oldest token first.
struct Own {
    exists: bool,
    head: u32,
    c: u32,
    c4: u32,        // among all channels
    weights: mat4x4<f32>,
}

fn own_of(block: u32, lane: u32) -> Own {
    let head = block * HEADS + lane / LANES;
    let exists = head < all_heads() && lane % LANES < SIZE4;
    let own = select(0u, head, exists);
    let c = select(0u, lane % LANES, exists);
    let c4 = own * SIZE4 + c;
    let at = 4u * c4;
    return Own(exists, own, c, c4, transpose(mat4x4<f32>(taps[at], taps[at + 1u], taps[at + 2u], taps[at + 3u])));
}

fn all_heads() -> u32 {
    return 2u * params.key_heads + params.value_heads;
}

fn blocks() -> u32 {
    return (all_heads() + HEADS - 1u) / HEADS;
}

// The convolution before SiLU.
fn convolve(t: u32, own: Own) -> vec4<f32> {
    let w = own.weights;
    return w[3] * x[t * channels4() + own.c4] + w[2] * earlier(t, 1u, own.c4) + w[1] * earlier(t, 2u, own.c4) + w[0] * earlier(t, 3u, own.c4);
}

fn sigmoid(x: vec4<f32>) -> vec4<f32> {
    return 1.0 / (1.0 + exp(-x));
}

// The factor of a head: of its norm, and of queries 1/√K.
fn factor(head: u32) -> f32 {
    return select(1.0, params.scale, head < params.key_heads);
}

fn put(t: u32, own: Own, value: vec4<f32>) {
#if {HALVES}
    if own.head < 2u * params.key_heads {
        y[(2u * t * params.key_heads + own.head) * SIZE4 + own.c] = vec2<u32>(pack2x16float(value.xy), pack2x16float(value.zw));
    } else {
        values[part_at(t, 1u, 0u, own.head - 2u * params.key_heads) + own.c] = value;
    }
#else
    y[t * channels4() + own.c4] = value;
#end
}

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = group.x + group.y * groups.x;
    let own = own_of(index % blocks(), lane);
    for (var n = 0u; n < FORWARD_RUN; n++) {
        let token = index / blocks() * FORWARD_RUN + n;
        let t = min(token, params.tokens - 1u);
        let sum = convolve(t, own);
        let value = select(vec4<f32>(), sum * sigmoid(sum), own.exists);
        let length = sum_of_head(vec2<f32>(dot(value, value), 0.0), lane).x + params.eps;
        let norm = select(1.0, factor(own.head) / sqrt(length), own.head < 2u * params.key_heads);
        if own.exists && token < params.tokens {
            put(t, own, norm * value);
        }
    }
}

// The gradient of a query, key or value, summed over the value heads that read it.
fn gradient(t: u32, head: u32, c: u32) -> vec4<f32> {
    if head >= 2u * params.key_heads {
        return dmixed[part_at(t, 3u, 2u, head - 2u * params.key_heads) + c];
    }
    var sum = vec4<f32>();
    for (var h = head % params.key_heads; h < params.value_heads; h += params.key_heads) {
        sum += dmixed[part_at(t, 3u, head / params.key_heads, h) + c];
    }
    return sum;
}

// The gradient of the convolution's sum, through SiLU and norm.
fn sum_gradient(t: u32, own: Own, lane: u32) -> vec4<f32> {
    let sum = convolve(t, own);
    let s = sigmoid(sum);
    let value = select(vec4<f32>(), sum * s, own.exists);
    let d = gradient(t, own.head, own.c);
    let total = sum_of_head(vec2<f32>(dot(value, value), dot(value, d)), lane);
    let length = total.x + params.eps;
    let normed = factor(own.head) / sqrt(length) * (d - value * (total.y / length));
    return select(d, normed, own.head < 2u * params.key_heads) * s * (1.0 + sum * (1.0 - s));
}

// dx[t] = Σ w[3 − n]·dsum[t + n] over the tokens of the sample. The gradients of the three sums behind the last token are computed here too.
@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = group.x + group.y * groups.x;
    let own = own_of(index % blocks(), lane);
    let w = own.weights;
    var d0 = vec4<f32>();
    var d1 = vec4<f32>();
    var d2 = vec4<f32>();
    for (var n = 0u; n < BACKWARD_RUN + 3u; n++) {
        let ahead = index / blocks() * BACKWARD_RUN + n;
        let d3 = sum_gradient(min(ahead, params.tokens - 1u), own, lane);
        if n >= 3u && ahead - 3u < params.tokens && own.exists {
            let t = ahead - 3u;
            let end = bounds[t].y;
            var sum = w[3] * d0;
            sum += select(vec4<f32>(), w[2] * d1, t + 1u < end);
            sum += select(vec4<f32>(), w[1] * d2, t + 2u < end);
            sum += select(vec4<f32>(), w[0] * d3, t + 3u < end);
            dx[t * channels4() + own.c4] = sum;
        }
        d0 = d1;
        d1 = d2;
        d2 = d3;
    }
}
