// Products of matvec/plain under BYTES, with one row x in integers of 16 bits (common/integers). To multiply and add bytes takes fewer
// instructions than to make floats of weights, of which matrices with many rows have the most.
@group(0) @binding(4) var<storage, read> integers: array<vec4<u32>>;   // x [K/16, 3]

#for w in 0..{WEIGHTS}
#if {EARLY}
fn add_slice_{w}(s: Slice_{w}, i: u32) {
    {
#else
fn multiply_{w}(row: u32, part: u32) {
    if row >= params.weight_rows_{w} {
        return;
    }
    for (var i = part; i * 32u < params.weight_cols; i += PARTS) {
        let s = load_slice_{w}(row, i);
#end
        var products = vec2<i32>(); // of the halves of the slice
        var values = vec4<f32>();   // their units, and the sums of their x
#for (half, sum, j, k) in (x, z, 0, 1) (y, w, 2, 3)
        let at{j} = i * 6u + {j}u / 2u * 3u;
        let w{j} = bytes8_{w}(s, {j}u);
        let w{k} = bytes8_{w}(s, {k}u);
        let x{j} = integers[at{j}];
        let x{k} = integers[at{j} + 1u];
        let unit{j} = bitcast<vec2<f32>>(integers[at{j} + 2u].xy);
        let upper{j} = dot4I8Packed(w{j}.x, x{j}.x) + dot4I8Packed(w{j}.y, x{j}.y) + dot4I8Packed(w{k}.x, x{k}.x) + dot4I8Packed(w{k}.y, x{k}.y);
        let lower{j} = dot4I8Packed(w{j}.x, x{j}.z) + dot4I8Packed(w{j}.y, x{j}.w) + dot4I8Packed(w{k}.x, x{k}.z) + dot4I8Packed(w{k}.y, x{k}.w);
        products.{half} = 256 * upper{j} + lower{j};
        values.{half} = unit{j}.x;
        values.{sum} = unit{j}.y;
#end
        let factors = byte_factors_{w}(s);
        one += dot(factors.xy, values.xy * vec2<f32>(products)) - dot(factors.zw, values.zw);
    }
}

#end
