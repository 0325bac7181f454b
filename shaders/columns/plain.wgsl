// Some columns of rows, copied to columns of other rows.

// Twin of `Params` in src/ops/columns/mod.rs.
struct Params {
    count: u32,         // values in all
    columns: u32,       // of each row
    from_stride: u32,   // floats from one row to the next
    from_first: u32,    // the first column
    to_stride: u32,
    to_first: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> source: array<f32>;              // [rows, from_stride]
@group(0) @binding(2) var<storage, read_write> copied: array<f32>;        // [rows, to_stride]

@compute @workgroup_size(256)
fn copy(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + group.y * groups.x) * 256u + lane;
    if i < params.count {
        let row = i / params.columns;
        let column = i % params.columns;
        copied[row * params.to_stride + params.to_first + column] = source[row * params.from_stride + params.from_first + column];
    }
}
