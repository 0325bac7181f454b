// Two parts of a sum of exponentials, each as its largest value v and Σ exp(scale·(w − v)), as one.
fn joined(a: vec2<f32>, b: vec2<f32>, scale: f32) -> vec2<f32> {
    let m = max(a.x, b.x);
    return vec2<f32>(m, a.y * exp((a.x - m) * scale) + b.y * exp((b.x - m) * scale));
}

fn largest_of(z: vec4<f32>) -> f32 {
    return max(max(z.x, z.y), max(z.z, z.w));
}

fn sum_of(z: vec4<f32>) -> f32 {
    return (z.x + z.y) + (z.z + z.w);
}
