// Quants of four bits that number a level.

// Four neighbours from the lowest bits of the halves of `q`, in order.
fn level_numbers(q: u32) -> vec4<u32> {
    return (vec4<u32>(q) >> vec4<u32>(0u, 16u, 4u, 20u)) & vec4<u32>(15u);
}
