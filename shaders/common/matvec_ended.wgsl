// The input of matvec/plain under ENDED, which every workgroup computes and keeps: the stream behind a block, stream + norm(y + B·z), as
// block_end/plain computes it. One workgroup stores it too. A thread has SHARES vec4s.
#import common/reduce_wide

@group(0) @binding(4) var<storage, read> before: array<vec4<f32>>;       // stream [K]
@group(0) @binding(5) var<storage, read> input_b: array<vec4<f32>>;      // Bᵀ of y [R, K]
@group(0) @binding(6) var<storage, read> norm: array<vec4<f32>>;         // [K]
@group(0) @binding(7) var<storage, read_write> after: array<vec4<f32>>;  // [K]

var<workgroup> stream: array<vec4<f32>, 768>; // [K]

fn x_at(t: u32, col4: u32) -> vec4<f32> {
    return stream[col4];
}

fn make_x(stores: bool, lane: u32) {
    let cols4 = params.weight_cols / 4u;
    // Columns past the row read its last column and count as zero.
#if {EARLY}
#for i in 0..{SHARES}
    let c{i} = min(lane + {i}u * 256u, cols4 - 1u);
    let norm{i} = norm[c{i}];
#for j in 0..{DEEP}
    var ahead{j}x{i} = vec4<f32>();
    var ahead{j}y{i} = vec4<f32>();
    var ahead{j}z{i} = vec4<f32>();
    var ahead{j}w{i} = vec4<f32>();
    if params.input_rank4 > 0u {
        ahead{j}x{i} = input_b[4u * {j}u * cols4 + c{i}];
        ahead{j}y{i} = input_b[(4u * {j}u + 1u) * cols4 + c{i}];
        ahead{j}z{i} = input_b[(4u * {j}u + 2u) * cols4 + c{i}];
        ahead{j}w{i} = input_b[(4u * {j}u + 3u) * cols4 + c{i}];
    }
#end
#end
    wait_for_kernel_ahead();
#for i in 0..{SHARES}
    var value{i} = x[params.x_offset4 + c{i}];
    let before{i} = before[c{i}];
#end
    if params.input_rank4 > 0u {
#for j in 0..{DEEP}
        let z{j} = x[params.x_offset4 + params.input_z_offset4 + {j}u];
#for i in 0..{SHARES}
        value{i} += z{j}.x * ahead{j}x{i} + z{j}.y * ahead{j}y{i} + z{j}.z * ahead{j}z{i} + z{j}.w * ahead{j}w{i};
#end
#end
    }
    for (var r = {DEEP}u; r < params.input_rank4; r += {DEEP}u) {
#else
#for i in 0..{SHARES}
    let c{i} = min(lane + {i}u * 256u, cols4 - 1u);
    var value{i} = x[params.x_offset4 + c{i}];
    let before{i} = before[c{i}];
    let norm{i} = norm[c{i}];
#end
    for (var r = 0u; r < params.input_rank4; r += {DEEP}u) {
#end
#for j in 0..{DEEP}
        let z{j} = x[params.x_offset4 + params.input_z_offset4 + r + {j}u];
        let at{j} = 4u * (r + {j}u) * cols4;
#for i in 0..{SHARES}
        let b{j}x{i} = input_b[at{j} + c{i}];
        let b{j}y{i} = input_b[at{j} + cols4 + c{i}];
        let b{j}z{i} = input_b[at{j} + 2u * cols4 + c{i}];
        let b{j}w{i} = input_b[at{j} + 3u * cols4 + c{i}];
#end
#end
#for j in 0..{DEEP}
#for i in 0..{SHARES}
        value{i} += z{j}.x * b{j}x{i} + z{j}.y * b{j}y{i} + z{j}.z * b{j}z{i} + z{j}.w * b{j}w{i};
#end
#end
    }
    var squares = 0.0;
#for i in 0..{SHARES}
    squares += select(0.0, dot(value{i}, value{i}), lane + {i}u * 256u < cols4);
#end
    let rstd = 1.0 / sqrt(wide_sum(squares, lane) / f32(params.weight_cols) + params.eps);
#for i in 0..{SHARES}
    if lane + {i}u * 256u < cols4 {
        let sum = before{i} + value{i} * rstd * norm{i};
        stream[c{i}] = sum;
        if stores {
            after[c{i}] = sum;
        }
    }
#end
    workgroupBarrier();
}
