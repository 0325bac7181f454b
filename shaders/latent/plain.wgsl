// Heads of keys and values of a latent vector: the turned part that all heads share, in front of each head's own part, and zeros behind.

// Twin of `Params` in src/ops/latent/mod.rs.
struct Params {
    rows: u32,              // T
    heads: u32,             // H
    size4: u32,             // K / 4
    shared4: u32,           // vec4s of the shared part
    own4: u32,              // vec4s of a head's own part
    heads_stride4: u32,     // vec4s from one row of heads to the next
    heads_offset4: u32,     // the first of them
    own_stride4: u32,
    shared_stride4: u32,
    shared_offset4: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> own: array<vec4<f32>>;                // [T, H, own]
@group(0) @binding(2) var<storage, read> shared_part: array<vec4<f32>>;        // [T, shared]
@group(0) @binding(3) var<storage, read_write> whole: array<vec4<f32>>;        // [T, H, K]
@group(0) @binding(4) var<storage, read> heads: array<vec4<f32>>;              // [T, H, K]
@group(0) @binding(5) var<storage, read_write> own_out: array<vec4<f32>>;      // [T, H, own]
@group(0) @binding(6) var<storage, read_write> shared_out: array<vec4<f32>>;   // [T, shared]

fn index(group: vec3<u32>, groups: vec3<u32>, lane: u32) -> u32 {
    return (group.x + group.y * groups.x) * 64u + lane;
}

// The place of vec4 `i` of head `head` in a row of heads.
fn place(row: u32, head: u32, i: u32) -> u32 {
    return row * params.heads_stride4 + params.heads_offset4 + head * params.size4 + i;
}

@compute @workgroup_size(64)
fn join(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = index(group, groups, lane);
    let row = at / (params.heads * params.size4);
    if row >= params.rows {
        return;
    }
    let head = at / params.size4 % params.heads;
    let i = at % params.size4;
    var value = vec4<f32>();
    if i < params.shared4 {
        value = shared_part[row * params.shared_stride4 + params.shared_offset4 + i];
    } else if i < params.shared4 + params.own4 {
        value = own[row * params.own_stride4 + head * params.own4 + i - params.shared4];
    }
    whole[place(row, head, i)] = value;
}

@compute @workgroup_size(64)
fn part(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = index(group, groups, lane);
    let row = at / (params.heads * params.own4);
    if row >= params.rows {
        return;
    }
    let head = at / params.own4 % params.heads;
    let i = at % params.own4;
    own_out[row * params.own_stride4 + head * params.own4 + i] = heads[place(row, head, params.shared4 + i)];
}

// The heads are added up in their order.
@compute @workgroup_size(64)
fn sum(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = index(group, groups, lane);
    let row = at / params.shared4;
    if row >= params.rows {
        return;
    }
    let i = at % params.shared4;
    var total = vec4<f32>();
    for (var head = 0u; head < params.heads; head++) {
        total += heads[place(row, head, i)];
    }
    shared_out[row * params.shared_stride4 + params.shared_offset4 + i] = total;
}
