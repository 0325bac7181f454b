// (I + A)⁻¹ of each chunk and head, A[i, j] = β[i]·D[i, j]·⟨k[i], k[j]⟩ for j < i. One workgroup of 64 threads per chunk and head.
#import common/delta_chunk

@group(0) @binding(3) var<storage, read> mixed: array<vec4<f32>>;      // queries, keys, values [T, C]
@group(0) @binding(4) var<storage, read_write> inverse: array<f32>;    // [T, Hv, 64]

var<workgroup> lower: array<f32, 2016>; // below the diagonal: row i begins at i·(i − 1)/2

fn row_at(i: u32) -> u32 {
    return i * (i - 1u) / 2u;
}

fn inverse_at(first: u32, head: u32, i: u32, lane: u32) -> u32 {
    return ((first + i) * params.value_heads + head) * CHUNK + lane;
}

// Inverts what is in `lower` row by row in place: T[i, j] = −A[i, j] − Σ A[i, m]·T[m, j] over j < m < i.
fn invert_lower(first: u32, head: u32, lane: u32) {
    let count = count_of(first);
    workgroupBarrier();
    for (var i = 1u; i < count; i++) {
        var sum = 0.0;
        if lane < i {
            sum = lower[row_at(i) + lane];
            for (var m = lane + 1u; m < i; m++) {
                sum += lower[row_at(i) + m] * lower[row_at(m) + lane];
            }
        }
        workgroupBarrier();
        if lane < i {
            lower[row_at(i) + lane] = -sum;
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < count; i++) {
        var value = select(0.0, 1.0, lane == i);
        if lane < i {
            value = lower[row_at(i) + lane];
        }
        inverse[inverse_at(first, head, i, lane)] = value;
    }
}

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.x * CHUNK;
    let head = group.y;
    load_chunk(first, head, lane);
    for (var i = 1u; i < count_of(first); i++) {
        if lane < i {
            var sum = 0.0;
            let a = key_at(first + i, head);
            let b = key_at(first + lane, head);
            for (var c = 0u; c < SIZE4; c++) {
                sum += dot(mixed[a + c], mixed[b + c]);
            }
            lower[row_at(i) + lane] = rates[i] * decay(first, i, lane) * sum;
        }
    }
    invert_lower(first, head, lane);
}

// From A in the place of its result, where shaders/delta/coop16_pairs.wgsl left it.
@compute @workgroup_size(64)
fn in_place(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.x * CHUNK;
    for (var i = 1u; i < count_of(first); i++) {
        if lane < i {
            lower[row_at(i) + lane] = inverse[inverse_at(first, group.y, i, lane)];
        }
    }
    invert_lower(first, group.y, lane);
}
