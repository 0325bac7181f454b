// GELU in its tanh form (Hendrycks & Gimpel 2016): 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), and its derivative.
// tanh's argument is clamped: some drivers return NaN for large ones, and it is 1 to the last bit past 10.
const GELU_A: f32 = 0.7978845608028654;
const GELU_B: f32 = 0.044715;

fn gelu_tanh(x: f32) -> f32 {
    return tanh(clamp(GELU_A * (x + GELU_B * x * x * x), -10.0, 10.0));
}

fn gelu(x: f32) -> f32 {
    return 0.5 * x * (1.0 + gelu_tanh(x));
}

fn dgelu(x: f32) -> f32 {
    let t = gelu_tanh(x);
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * GELU_A * (1.0 + 3.0 * GELU_B * x * x);
}

fn gelu4(x: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(gelu(x.x), gelu(x.y), gelu(x.z), gelu(x.w));
}

fn dgelu4(x: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(dgelu(x.x), dgelu(x.y), dgelu(x.z), dgelu(x.w));
}
