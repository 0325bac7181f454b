// The levels of IQ4_NL and IQ4_XS. Must match ggml's `kvalues_iq4nl`. Twin: `LEVELS` in src/base/formats/iq4_nl.rs.
#import formats/levels

// Four levels plus 128, which fit a byte.
fn iq4_bytes(q: u32) -> vec4<u32> {
    let n = level_numbers(q);
    let odd_four = (n & vec4<u32>(4u)) != vec4<u32>();
    let negative = select(vec4<u32>(0x3f2d1801u), vec4<u32>(0x766a5d4fu), odd_four);
    let positive = select(vec4<u32>(0xa6998d81u), vec4<u32>(0xf1d9c5b5u), odd_four);
    let four = select(positive, negative, n < vec4<u32>(8u));
    return (four >> ((n & vec4<u32>(3u)) * 8u)) & vec4<u32>(255u);
}

fn iq4_values(q: u32) -> vec4<f32> {
    return vec4<f32>(iq4_bytes(q)) - 128.0;
}
