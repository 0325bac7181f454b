// y = scale·x·Wᵀ + lora_scale·z·Bᵀ, and its mirror dx = scale·dy·W + u·A, with W in the format that `weight` reads.
// W may be a tile of rows of a larger matrix: then forward fills its columns of y, and backward adds to dx.
#if {HALF}
enable f16;
#end
#import weight
#import common/product
#import common/tiled

#if {HALF}
@group(0) @binding(6) var<storage, read> factors: array<f32>;          // undo the scaling of x's rows [T]
#end

fn operand4(row: u32, source: u32, col4: u32, cols4: u32) -> vec4<f32> {
    return x4(source, col4, cols4);
}
