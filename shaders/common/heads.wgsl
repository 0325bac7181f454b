// Reads of heads that are normed and rotated. The importer has `params` with `weighted`, `pairs4` and `half4`, the norm's weights `w`,
// `positions` and the `table` of cosines and sines. A head is K/2/4 couples of vec4s; the first `pairs4` couples are rotary pairs.

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

// The places in a head of couple `c`: rotary pairs first, in the leading 2·pairs4 vec4s, then the rest.
fn couple(c: u32) -> vec2<u32> {
    if c < params.pairs4 {
        return vec2<u32>(c, c + params.pairs4);
    }
    return vec2<u32>(c + params.pairs4, c + params.half4);
}

// The rotation of couple `c` of a token: four neighbouring pairs, or none.
fn rotation(token: u32, c: u32) -> Rotation {
    if c >= params.pairs4 {
        return Rotation(vec4<f32>(1.0), vec4<f32>());
    }
    let at = (positions[token] * params.pairs4 + c) * 2u;
    let first = table[at];
    let second = table[at + 1u];
    return Rotation(vec4<f32>(first.x, first.z, second.x, second.z), vec4<f32>(first.y, first.w, second.y, second.w));
}
