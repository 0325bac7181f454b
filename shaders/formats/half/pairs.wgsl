// Quants as f16 without a conversion: they become the lowest bits of a number from 1024 on, whose last bit is worth 1.
fn from_1024(pair: u32) -> vec2<f16> {
    return vec2<f16>(unpack2x16float(pair | 0x64006400u));
}
