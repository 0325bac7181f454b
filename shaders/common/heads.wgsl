// Reads of heads that are normed and rotated: of one kind, or of keys and values (VALUES). The importer has `params` with `half4`, and for each
// kind `weighted_0` and `pairs4_0`, the norm's weights `w_0`, `positions` and the `table` of cosines and sines. A head is K/2/4 couples of
// vec4s; the first `pairs4` couples are rotary pairs.

#for (n, there) in (0, 1) (1, {VALUES})
#if {there}
fn w4_{n}(c: u32) -> vec4<f32> {
    if params.weighted_{n} == 0u {
        return vec4<f32>(1.0);
    }
    return w_{n}[c];
}

#end
#end
struct Rotation {
    cosines: vec4<f32>,
    sines: vec4<f32>,
}

// The places in a head of couple `c`: rotary pairs first, in the leading 2·pairs4 vec4s, then the rest.
fn couple(c: u32, pairs4: u32) -> vec2<u32> {
    if c < pairs4 {
        return vec2<u32>(c, c + pairs4);
    }
    return vec2<u32>(c + pairs4, c + params.half4);
}

// The rotation of couple `c` of a token: four neighbouring pairs, or none.
fn rotation(token: u32, c: u32, pairs4: u32) -> Rotation {
    if c >= pairs4 {
        return Rotation(vec4<f32>(1.0), vec4<f32>());
    }
    let at = (positions[token] * pairs4 + c) * 2u;
    let first = table[at];
    let second = table[at + 1u];
    return Rotation(vec4<f32>(first.x, first.z, second.x, second.z), vec4<f32>(first.y, first.w, second.y, second.w));
}
