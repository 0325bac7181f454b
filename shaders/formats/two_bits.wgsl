// Four quants of two bits, in order from the lowest bits on.
fn two_bits(q: u32) -> vec4<u32> {
    return (vec4<u32>(q) >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(3u);
}
