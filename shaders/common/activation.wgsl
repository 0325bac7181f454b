// A gated unit is activation(gate)·value(up). `derivative` is the activation's, `passes` the value's.

// σ(x) = 1/(1 + e⁻ˣ) and σ′(x), which is σ(x)·σ(-x).
struct Sigmoid {
    value: f32,
    slope: f32,
}

// From e^-|x|: e⁻ˣ would overflow for negative x, and 1 − σ cancel for positive. The argument is clamped: past -104 the result is 0 in f32.
fn sigmoid(x: f32) -> Sigmoid {
    let e = exp(-min(abs(x), 110.0));
    let whole = 1.0 / (1.0 + e);
    return Sigmoid(select(e, 1.0, x >= 0.0) * whole, e * whole * whole);
}

#if {GELU}
// GELU in its tanh form (Hendrycks & Gimpel 2016): 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))). As 0.5·(1 + tanh(a)) is σ(2·a), that takes one
// exponential.
const GELU_A: f32 = 2.0 * 0.7978845608028654;
const GELU_B: f32 = 0.044715;

fn gelu_sigmoid(x: f32) -> Sigmoid {
    return sigmoid(GELU_A * (x + GELU_B * x * x * x));
}

fn activation(x: f32) -> f32 {
    return x * gelu_sigmoid(x).value;
}

fn derivative(x: f32) -> f32 {
    let s = gelu_sigmoid(x);
    return s.value + x * s.slope * GELU_A * (1.0 + 3.0 * GELU_B * x * x);
}
#else
#if {OAI}
// The SwiGLU of gpt-oss: ḡ·σ(1.702·ḡ)·(ū + 1) with ḡ = min(g, 7) and ū = clamp(u, -7, 7).
const LIMIT: f32 = 7.0;
const ALPHA: f32 = 1.702;

fn activation(x: f32) -> f32 {
    let g = min(x, LIMIT);
    return g * sigmoid(ALPHA * g).value;
}

fn derivative(x: f32) -> f32 {
    let g = ALPHA * min(x, LIMIT);
    let s = sigmoid(g);
    return select(0.0, s.value + g * s.slope, x <= LIMIT);
}
#else
// SiLU (Elfwing et al. 2017): x·σ(x).
fn activation(x: f32) -> f32 {
    return x * sigmoid(x).value;
}

fn derivative(x: f32) -> f32 {
    let s = sigmoid(x);
    return s.value + x * s.slope;
}
#end
#end

#if {OAI}
fn value(up: f32) -> f32 {
    return clamp(up, -LIMIT, LIMIT) + 1.0;
}

fn value4(up: vec4<f32>) -> vec4<f32> {
    return clamp(up, vec4<f32>(-LIMIT), vec4<f32>(LIMIT)) + 1.0;
}

fn passes(up: f32) -> f32 {
    return select(0.0, 1.0, abs(up) <= LIMIT);
}

fn passes4(up: vec4<f32>) -> vec4<f32> {
    return select(vec4<f32>(), vec4<f32>(1.0), abs(up) <= vec4<f32>(LIMIT));
}
#else
fn value(up: f32) -> f32 {
    return up;
}

fn value4(up: vec4<f32>) -> vec4<f32> {
    return up;
}

fn passes(up: f32) -> f32 {
    return 1.0;
}

fn passes4(up: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(1.0);
}
#end

fn activation4(x: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(activation(x.x), activation(x.y), activation(x.z), activation(x.w));
}

fn derivative4(x: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(derivative(x.x), derivative(x.y), derivative(x.z), derivative(x.w));
}
