// A gated unit is activation(gate)·value(up). `derivative` is the activation's, `passes` the value's.
#if {GELU}
// GELU in its tanh form (Hendrycks & Gimpel 2016): 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))).
// tanh's argument is clamped: some drivers return NaN for large ones, and past 10 the result is 1 to the last bit.
const GELU_A: f32 = 0.7978845608028654;
const GELU_B: f32 = 0.044715;

fn gelu_tanh(x: f32) -> f32 {
    return tanh(clamp(GELU_A * (x + GELU_B * x * x * x), -10.0, 10.0));
}

fn activation(x: f32) -> f32 {
    return 0.5 * x * (1.0 + gelu_tanh(x));
}

fn derivative(x: f32) -> f32 {
    let t = gelu_tanh(x);
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * GELU_A * (1.0 + 3.0 * GELU_B * x * x);
}
#else
// σ(x) = 1/(1 + e⁻ˣ), computed from e^-|x|, as e⁻ˣ would overflow for negative x. The argument is clamped: past -104 the result
// is 0 in f32. σ(-x) is 1 − σ(x) without cancellation.
fn sigmoid(x: f32) -> f32 {
    let e = exp(-min(abs(x), 110.0));
    return select(e, 1.0, x >= 0.0) / (1.0 + e);
}
#if {OAI}
// The SwiGLU of gpt-oss: ḡ·σ(1.702·ḡ)·(ū + 1) with ḡ = min(g, 7) and ū = clamp(u, -7, 7).
const LIMIT: f32 = 7.0;
const ALPHA: f32 = 1.702;

fn activation(x: f32) -> f32 {
    let g = min(x, LIMIT);
    return g * sigmoid(ALPHA * g);
}

fn derivative(x: f32) -> f32 {
    let g = ALPHA * min(x, LIMIT);
    return select(0.0, sigmoid(g) * (1.0 + g * sigmoid(-g)), x <= LIMIT);
}
#else
// SiLU (Elfwing et al. 2017): x·σ(x).
fn activation(x: f32) -> f32 {
    return x * sigmoid(x);
}

fn derivative(x: f32) -> f32 {
    return sigmoid(x) * (1.0 + x * sigmoid(-x));
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
