#if {SILU}
// The activation of gated units and its derivative. It is SiLU (Elfwing et al. 2017): x·σ(x) with σ(x) = 1/(1 + e⁻ˣ).
// e⁻ˣ would overflow for negative x, so σ is computed from e^-|x|. The argument is clamped: past -104 the result is 0 in f32.
fn sigmoid(x: f32) -> f32 {
    let e = exp(-min(abs(x), 110.0));
    return select(e, 1.0, x >= 0.0) / (1.0 + e);
}

fn activation(x: f32) -> f32 {
    return x * sigmoid(x);
}

// σ(-x) is 1 − σ(x) without cancellation.
fn derivative(x: f32) -> f32 {
    return sigmoid(x) * (1.0 + x * sigmoid(-x));
}
#else
// The activation of gated units and its derivative. It is GELU in its tanh form (Hendrycks & Gimpel 2016):
// 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))).
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
#end

fn activation4(x: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(activation(x.x), activation(x.y), activation(x.z), activation(x.w));
}

fn derivative4(x: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(derivative(x.x), derivative(x.y), derivative(x.z), derivative(x.w));
}
