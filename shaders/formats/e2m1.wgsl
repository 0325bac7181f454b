// Floats of four bits, doubled. Twin: `LEVELS` in src/base/formats/mxfp4.rs.
#import formats/levels

// Four levels plus 16. Bit 3 is the sign; sizes are the nibbles of a word. Must match ggml's `kvalues_mxfp4`.
fn e2m1_bytes(q: u32) -> vec4<u32> {
    let n = level_numbers(q);
    let size = (vec4<u32>(0xc8643210u) >> ((n & vec4<u32>(7u)) * 4u)) & vec4<u32>(15u);
    return select(16u - size, 16u + size, n < vec4<u32>(8u));
}

fn e2m1_values(q: u32) -> vec4<f32> {
    return vec4<f32>(e2m1_bytes(q)) - 16.0;
}
