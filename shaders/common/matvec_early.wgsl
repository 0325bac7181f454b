// The products of matvec/plain under EARLY: a thread asks for its first AHEAD slices of W, or AHEAD_A vec4s of A, before it waits for x.
#import common/ahead

#if !{GATED}
#if !{ENDED}
fn make_x(stores: bool, lane: u32) {
    wait_for_kernel_ahead();
}
#end
#end

// Rows past the matrix read its last one, and nothing stores their sums.
#for w in 0..{WEIGHTS}
fn multiply_{w}(any_row: u32, part: u32, stores: bool, lane: u32) {
    let row = min(any_row, params.weight_rows_{w} - 1u);
    let slices = (params.weight_cols + 31u) / 32u;
#for n in 0..{AHEAD}
    let ahead{n} = load_slice_{w}(row, min(part + {n}u * PARTS, slices - 1u));
#end
    make_x(stores, lane);
#for n in 0..{AHEAD}
    if part + {n}u * PARTS < slices {
        add_slice_{w}(ahead{n}, part + {n}u * PARTS);
    }
#end
    for (var i = part + {AHEAD}u * PARTS; i < slices; i += PARTS) {
        add_slice_{w}(load_slice_{w}(row, i), i);
    }
}

#end
fn multiply_a(any_row: u32, part: u32, parts: u32, stores: bool, lane: u32) {
    let row = min(any_row, params.a_rows - 1u);
    let cols4 = params.weight_cols / 4u;
#for i in 0..{AHEAD_A}
    let ahead{i} = a[row * cols4 + min(part + {i}u * parts, cols4 - 1u)];
#end
    make_x(stores, lane);
#for i in 0..{AHEAD_A}
    if part + {i}u * parts < cols4 {
        add_columns(ahead{i}, part + {i}u * parts);
    }
#end
    add_row_of_a(row, part + {AHEAD_A}u * parts, parts);
}
