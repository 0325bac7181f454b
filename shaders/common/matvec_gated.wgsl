// The input of matvec/plain under GATED, which every workgroup computes and keeps: activation(gate + B·z)·up.
#import common/activation

@group(0) @binding(4) var<storage, read> up: array<vec4<f32>>;         // [T, K]
@group(0) @binding(5) var<storage, read> input_b: array<vec4<f32>>;     // Bᵀ of the gate [R, K]

var<workgroup> gated: array<vec4<f32>, 512>; // [T, K]

fn x_at(t: u32, col4: u32) -> vec4<f32> {
    return gated[t * (params.weight_cols / 4u) + col4];
}

#if {EARLY}
// Rows of B are there before z is. There are no more columns than threads.
fn make_x(stores: bool, lane: u32) {
    let cols4 = params.weight_cols / 4u;
    let n = min(lane, params.rows * cols4 - 1u);
    let c = n % cols4;
    let row = n / cols4 * params.x_stride4 + params.x_offset4;
#for j in 0..{DEEP}
    var bx{j} = vec4<f32>();
    var by{j} = vec4<f32>();
    var bz{j} = vec4<f32>();
    var bw{j} = vec4<f32>();
#end
    if params.input_rank4 > 0u {
#for j in 0..{DEEP}
        let at{j} = {j}u * 4u * cols4 + c;
        bx{j} = input_b[at{j}];
        by{j} = input_b[at{j} + cols4];
        bz{j} = input_b[at{j} + 2u * cols4];
        bw{j} = input_b[at{j} + 3u * cols4];
#end
    }
    wait_for_kernel_ahead();
    if lane == n {
        var gate = x[row + c];
        let value = value4(up[n / cols4 * params.up_stride4 + params.up_offset4 + c]);
        for (var r = 0u; r < params.input_rank4; r += {DEEP}u) {
#for j in 0..{DEEP}
            let z{j} = x[row + params.input_z_offset4 + r + {j}u];
#end
            if r > 0u {
#for j in 0..{DEEP}
                let at{j} = 4u * (r + {j}u) * cols4 + c;
                bx{j} = input_b[at{j}];
                by{j} = input_b[at{j} + cols4];
                bz{j} = input_b[at{j} + 2u * cols4];
                bw{j} = input_b[at{j} + 3u * cols4];
#end
            }
#for j in 0..{DEEP}
            gate += z{j}.x * bx{j} + z{j}.y * by{j} + z{j}.z * bz{j} + z{j}.w * bw{j};
#end
        }
        gated[n] = activation4(gate) * value;
    }
    workgroupBarrier();
}
#else
fn make_x(lane: u32) {
    let cols4 = params.weight_cols / 4u;
    for (var n = lane; n < params.rows * cols4; n += THREADS) {
        let c = n % cols4;
        let row = n / cols4 * params.x_stride4 + params.x_offset4;
        var gate = x[row + c];
        let value = value4(up[n / cols4 * params.up_stride4 + params.up_offset4 + c]);
        for (var r = 0u; r < params.input_rank4; r += {DEEP}u) {
#for j in 0..{DEEP}
            let z{j} = x[row + params.input_z_offset4 + r + {j}u];
            let at{j} = 4u * (r + {j}u) * cols4 + c;
            let bx{j} = input_b[at{j}];
            let by{j} = input_b[at{j} + cols4];
            let bz{j} = input_b[at{j} + 2u * cols4];
            let bw{j} = input_b[at{j} + 3u * cols4];
#end
#for j in 0..{DEEP}
            gate += z{j}.x * bx{j} + z{j}.y * by{j} + z{j}.z * bz{j} + z{j}.w * bw{j};
#end
        }
        gated[n] = activation4(gate) * value;
    }
    workgroupBarrier();
}
#end
