// Reads of heads that are normed and rotated. The importer has `params` with `weighted`, `rotated` and `half4`, the norm's weights `w`,
// `positions` and the `table` of cosines and sines.

fn w4(c: u32) -> vec4<f32> {
    if params.weighted == 0u {
        return vec4<f32>(1.0);
    }
    return w[c];
}

struct Rotation {
    cosines: vec4<f32>,
    sines: vec4<f32>,
}

// The rotation of four neighbouring pairs of a token, from pair 4·c on; none without a rotary embedding.
fn rotation(token: u32, c: u32) -> Rotation {
    if params.rotated == 0u {
        return Rotation(vec4<f32>(1.0), vec4<f32>());
    }
    let at = (positions[token] * params.half4 + c) * 2u;
    let first = table[at];
    let second = table[at + 1u];
    return Rotation(vec4<f32>(first.x, first.z, second.x, second.z), vec4<f32>(first.y, first.w, second.y, second.w));
}
