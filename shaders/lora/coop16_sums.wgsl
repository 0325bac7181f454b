// Adds up the parts of a split product with an adapter's thin matrix, in order: z or u in f32, and packed as operands of products on
// cooperative matrices, scaled as the rows of the wide operand (shaders/pack/plain.wgsl).
enable f16;
#import common/packed

// Twin of `Params` in src/ops/lora/coop16_sums.rs.
struct Params {
    rows: u32,      // T
    tiles: u32,     // stride between columns of matrices in `packed`: T/16 or more
    cols4: u32,     // R / 4
    packed4: u32,   // columns to write, / 4: R rounded up to 64
    parts: u32,
    y_stride4: u32,
    y_offset4: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> parts: array<vec4<f32>>;          // [parts, T, R]
@group(0) @binding(2) var<storage, read> factors: array<f32>;              // undoes the scaling of the wide operand's rows [T]
@group(0) @binding(3) var<storage, read_write> y: array<vec4<f32>>;        // [T, R]
@group(0) @binding(4) var<storage, read_write> packed: array<vec4<f16>>;   // [R/16, T/16, 16, 16]

@compute @workgroup_size(64)
fn sum(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + group.y * groups.x) * 64u + lane;
    let row = i / params.packed4;
    let c = i % params.packed4;
    if row >= (params.rows + 15u) / 16u * 16u {
        return;
    }
    var scaled = vec4<f32>();
    if row < params.rows && c < params.cols4 {
        var sum = vec4<f32>();
        for (var s = 0u; s < params.parts; s++) {
            sum += parts[(s * params.rows + row) * params.cols4 + c];
        }
        y[row * params.y_stride4 + params.y_offset4 + c] = sum;
        scaled = (1.0 / factors[row]) * sum;
    }
    packed[packed_at(params.tiles, row, c)] = vec4<f16>(scaled);
}
