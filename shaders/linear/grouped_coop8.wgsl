// shaders/linear/grouped.wgsl with operands in f16 on cooperative matrices of 8×8, which Apple's GPUs have.
enable f16;
enable wgpu_cooperative_matrix;
#import weight
#import common/expert_product
#import common/coop8

const ROWS: u32 = 64u;

@group(0) @binding(8) var<storage, read> factors: array<f32>; // undo the scaling of the rows of x, z and u
