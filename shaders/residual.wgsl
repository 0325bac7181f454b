// The end of a block, one workgroup a token: stream = scale·(stream + norm(y + B·z)), and the norm before the next block:
// normed = next_norm(stream). y is in the row of products that holds the adapter's z.
#import common/reduce_wide

// Twin of `Params` in src/ops/residual.rs.
struct Params {
    width4: u32,        // D / 4
    y_stride4: u32,
    z_offset4: u32,     // first vec4 of z in a row of y
    rank4: u32,         // padded rank / 4 of the adapter term; 0 for none
    next: u32,          // 0: nothing reads a normed stream
    eps: f32,
    scale: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> y: array<vec4<f32>>;          // [T, y_stride]
@group(0) @binding(2) var<storage, read> b: array<vec4<f32>>;          // B [D, R]
@group(0) @binding(3) var<storage, read> norm: array<vec4<f32>>;       // [D]
@group(0) @binding(4) var<storage, read> next_norm: array<vec4<f32>>;  // [D]
@group(0) @binding(5) var<storage, read_write> stream: array<vec4<f32>>; // [T, D]
@group(0) @binding(6) var<storage, read_write> normed: array<vec4<f32>>; // [T, D]; holds y + B·z in between

fn rstd(squares: f32, lane: u32) -> f32 {
    return 1.0 / sqrt(wide_sum(squares, lane) / f32(params.width4 * 4u) + params.eps);
}

@compute @workgroup_size(256)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let y_row = group.x * params.y_stride4;
    let row = group.x * params.width4;
    var squares = 0.0;
    for (var c = lane; c < params.width4; c += 256u) {
        var value = y[y_row + c];
        for (var r = 0u; r < params.rank4; r++) {
            let z = y[y_row + params.z_offset4 + r];
            let at = 4u * c * params.rank4 + r;
            value += vec4<f32>(
                dot(b[at], z),
                dot(b[at + params.rank4], z),
                dot(b[at + 2u * params.rank4], z),
                dot(b[at + 3u * params.rank4], z),
            );
        }
        normed[row + c] = value;
        squares += dot(value, value);
    }
    let this_rstd = rstd(squares, lane);
    squares = 0.0;
    for (var c = lane; c < params.width4; c += 256u) {
        let value = params.scale * (stream[row + c] + normed[row + c] * this_rstd * norm[c]);
        stream[row + c] = value;
        squares += dot(value, value);
    }
    let next_rstd = rstd(squares, lane);
    if params.next == 0u {
        return;
    }
    for (var c = lane; c < params.width4; c += 256u) {
        normed[row + c] = stream[row + c] * next_rstd * next_norm[c];
    }
}
