// Levels as f16 without a conversion, as `from_1024` does it.
#import formats/half/pairs

fn bytes_from_1024(bytes: vec4<u32>) -> vec4<f16> {
    return vec4<f16>(from_1024(bytes.x | (bytes.y << 16u)), from_1024(bytes.z | (bytes.w << 16u)));
}
