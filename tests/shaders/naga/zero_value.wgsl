alias Four = vec4<f32>;

@group(0) @binding(0) var<storage, read_write> result: array<vec4<f32>>;

@compute @workgroup_size(1)
fn main() {
    var a = vec4<f32>();
    var b = Four();
    result[0] = a + b;
}
