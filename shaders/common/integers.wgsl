// A row in integers of 16 bits, sixteen columns in one unit: three vec4s for each sixteen columns. The first two have of eight columns each
// the upper bytes of columns 0, 4, 1, 5 and 2, 6, 3, 7, then the lower bytes, all of them signed; the third has the unit, and the sum of
// the sixteen values.
const MOST: f32 = 32639.0; // whose upper byte is 127

// Eight columns.
fn eight_integers(a: vec4<f32>, b: vec4<f32>, per_unit: f32) -> array<vec4<i32>, 2> {
    let first = vec4<i32>(round(per_unit * vec4<f32>(a.x, b.x, a.y, b.y)));
    return array<vec4<i32>, 2>(first, vec4<i32>(round(per_unit * vec4<f32>(a.z, b.z, a.w, b.w))));
}

fn bytes_of(eight: array<vec4<i32>, 2>) -> vec4<u32> {
    let first = eight[0];
    let last = eight[1];
    let upper = vec2<u32>(pack4xI8((first + 128) >> vec4<u32>(8u)), pack4xI8((last + 128) >> vec4<u32>(8u)));
    return vec4<u32>(upper, pack4xI8(first), pack4xI8(last));
}

// Stores columns 16·n to 16·n + 15 in the shader's `integers`.
fn store_sixteen(n: u32, a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>) {
    let each = max(max(abs(a), abs(b)), max(abs(c), abs(d)));
    let largest = max(max(each.x, each.y), max(each.z, each.w));
    let per_unit = select(0.0, MOST / largest, largest > 0.0);
    let first = eight_integers(a, b, per_unit);
    let second = eight_integers(c, d, per_unit);
    let sums = first[0] + first[1] + second[0] + second[1];
    let unit = largest / MOST;
    let sum = unit * f32(sums.x + sums.y + sums.z + sums.w);
    integers[3u * n] = bytes_of(first);
    integers[3u * n + 1u] = bytes_of(second);
    integers[3u * n + 2u] = vec4<u32>(bitcast<u32>(unit), bitcast<u32>(sum), 0u, 0u);
}
