// Gated short convolution: y[t] = c[t]·Σ w[3 − n]·u[t − n] over the last four tokens of a sample, with u = b·x. A row of bcx has b, c and x. A
// thread has four channels of a token.

// Twin of `Params` in src/ops/short_conv/mod.rs.
struct Params {
    tokens: u32,
    channels4: u32,     // C / 4
    in4: u32,           // vec4s from one row of bcx to the next
    out4: u32,          // vec4s from one row of y to the next
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> bounds: array<vec2<u32>>;         // [T]
@group(0) @binding(2) var<storage, read> bcx: array<vec4<f32>>;            // [T, 3, C]
@group(0) @binding(3) var<storage, read> taps: array<vec4<f32>>;           // [C, 4], that of the oldest token first
@group(0) @binding(4) var<storage, read_write> y: array<vec4<f32>>;        // [T, C]
@group(0) @binding(5) var<storage, read> dy: array<vec4<f32>>;             // [T, C]
@group(0) @binding(6) var<storage, read_write> dbcx: array<vec4<f32>>;     // [T, 3, C]
#if {CARRIED}
#if {EACH}
#import common/steps
@group(0) @binding(8) var<storage, read> steps: array<vec2<u32>>;          // tokens before this one, and its sequence [T]
#else
@group(0) @binding(8) var<storage, read> past: array<u32>;                 // tokens before these [1]
#end
@group(0) @binding(9) var<storage, read_write> history: array<vec4<f32>>;  // u of the last tokens: that of token p in row p % 4 [4, C]
#end

// u of token `t`.
fn inner(t: u32, c4: u32) -> vec4<f32> {
    let at = t * params.in4 + c4;
    return bcx[at] * bcx[at + 2u * params.channels4];
}

#if {EACH}
// u of the `n`th token before token `t` of its sequence.
fn earlier(t: u32, n: u32, c4: u32) -> vec4<f32> {
    let step = steps[t];
    if step.y != NO_SEQUENCE && step.x >= n {
        return history[history_at(step.y, step.x - n, c4)];
    }
    return vec4<f32>();
}

// Place of u of token `p` of a sequence. The rows of a sequence begin at a multiple of 256 bytes.
fn history_at(sequence: u32, p: u32, c4: u32) -> u32 {
    return sequence * ((4u * params.channels4 + 15u) / 16u * 16u) + p % 4u * params.channels4 + c4;
}

// Stores u of every token. One thread per four channels and token.
@compute @workgroup_size(64)
fn keep(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = (group.x + group.y * groups.x) * 64u + lane;
    let t = index / params.channels4;
    let c4 = index % params.channels4;
    if t < params.tokens && steps[min(t, params.tokens - 1u)].y != NO_SEQUENCE {
        history[history_at(steps[t].y, steps[t].x, c4)] = inner(t, c4);
    }
}
#else
#if {CARRIED}
// u of the `n`th token before token `t`.
fn earlier(t: u32, n: u32, c4: u32) -> vec4<f32> {
    if t >= n {
        return inner(t - n, c4);
    }
    if past[0] + t >= n {
        return history[(past[0] + t - n) % 4u * params.channels4 + c4];
    }
    return vec4<f32>();
}

// Stores u of the last tokens. One thread per four channels and token.
@compute @workgroup_size(64)
fn keep(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = (group.x + group.y * groups.x) * 64u + lane;
    if index >= min(params.tokens, 3u) * params.channels4 {
        return;
    }
    let t = params.tokens - 1u - index / params.channels4;
    let c4 = index % params.channels4;
    history[(past[0] + t) % 4u * params.channels4 + c4] = inner(t, c4);
}
#else
// u of the `n`th token before token `t`, 0 before the sample.
fn earlier(t: u32, n: u32, c4: u32) -> vec4<f32> {
    if t < bounds[t].x + n {
        return vec4<f32>();
    }
    return inner(t - n, c4);
}
#end
#end

// The weights of four channels, those of the oldest token first.
fn weights_of(c4: u32) -> mat4x4<f32> {
    let at = 4u * c4;
    return transpose(mat4x4<f32>(taps[at], taps[at + 1u], taps[at + 2u], taps[at + 3u]));
}

fn convolve(t: u32, c4: u32, w: mat4x4<f32>) -> vec4<f32> {
    return w[3] * inner(t, c4) + w[2] * earlier(t, 1u, c4) + w[1] * earlier(t, 2u, c4) + w[0] * earlier(t, 3u, c4);
}

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = (group.x + group.y * groups.x) * 64u + lane;
    let t = index / params.channels4;
    let c4 = index % params.channels4;
    if t < params.tokens {
        y[t * params.out4 + c4] = bcx[t * params.in4 + params.channels4 + c4] * convolve(t, c4, weights_of(c4));
    }
}

#if {CARRIED}
#else
// The gradient of the convolution's sum at the `n`th token behind token `t`, 0 behind the sample.
fn later(t: u32, n: u32, c4: u32) -> vec4<f32> {
    if t + n >= bounds[t].y {
        return vec4<f32>();
    }
    return dy[(t + n) * params.out4 + c4] * bcx[(t + n) * params.in4 + params.channels4 + c4];
}

@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = (group.x + group.y * groups.x) * 64u + lane;
    let t = index / params.channels4;
    let c4 = index % params.channels4;
    if t >= params.tokens {
        return;
    }
    let w = weights_of(c4);
    let at = t * params.in4 + c4;
    let du = w[3] * later(t, 0u, c4) + w[2] * later(t, 1u, c4) + w[1] * later(t, 2u, c4) + w[0] * later(t, 3u, c4);
    dbcx[at] = du * bcx[at + 2u * params.channels4];
    dbcx[at + params.channels4] = dy[t * params.out4 + c4] * convolve(t, c4, w);
    dbcx[at + 2u * params.channels4] = du * bcx[at];
}
#end
