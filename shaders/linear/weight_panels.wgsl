// W as panels for shaders/linear/cuda.cu, see shaders/linear/panels.wgsl, in f16. Zeros fill the last panel, and the rows behind the last.
#import weight

// Twin of `FromWeight` in src/ops/linear/cuda.rs.
struct Params {
    weight_rows: u32,   // N
    weight_cols: u32,   // K
    rows: u32,          // of a panel: N rounded up to 128
    scale: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<vec4<u32>>;          // W [N, K]
@group(0) @binding(2) var<storage, read_write> panels: array<vec4<u32>>;

// Four values in f16.
fn half4(values: vec4<f32>) -> vec2<u32> {
    return vec2<u32>(pack2x16float(values.xy), pack2x16float(values.zw));
}

// A thread writes one slice of a row: half of its part of a panel.
@compute @workgroup_size(128)
fn from_weight(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x * 64u + lane / 2u;
    let slice = group.y * 2u + lane % 2u;
    let at = (group.y * params.rows + row) * 8u;
    if row >= params.weight_rows || slice * 32u >= params.weight_cols {
#for c in 0..4
        panels[at + ((lane % 2u * 4u + {c}u) ^ (row & 7u))] = vec4<u32>();
#end
        return;
    }
    let values = load_slice(row, slice);
    let factors = slice_factors(values);
#for (c, first, second) in (0, 0, 1) (1, 2, 3) (2, 4, 5) (3, 6, 7)
    let a{c} = half4(params.scale * slice4(values, factors, {first}u));
    let b{c} = half4(params.scale * slice4(values, factors, {second}u));
    panels[at + ((lane % 2u * 4u + {c}u) ^ (row & 7u))] = vec4<u32>(a{c}, b{c});
#end
}
