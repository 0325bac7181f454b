// The products of shaders/linear/tiled.wgsl over rows that are grouped by expert (shaders/experts/groups.wgsl): each of its tiles
// multiplies with the matrix of its expert, y = x·W_eᵀ + lora_scale·z·B_eᵀ, and the mirror dx = scale·dy·W_e + u·A_e. x is grouped already, or
// gathered from the rows of the tokens. W may hold some of the experts only: tiles of others are not written. With MASKED, forward is the
// product of dropped-out x with A_e: z = (mask·x)·A_eᵀ.
#if {HALF}
enable f16;
#end
#import weight
#import common/expert_product
#import common/expert_mask
#import common/tiled

#if {HALF}
@group(0) @binding(8) var<storage, read> factors: array<f32>;          // undo the scaling of x's rows
#end

fn operand4(row: u32, source: u32, col4: u32, cols4: u32) -> vec4<f32> {
#if {MASKED}
    if source != NONE {
        return mask4(choices[row], col4) * x4(source, col4, cols4);
    }
#end
    return x4(source, col4, cols4);
}
