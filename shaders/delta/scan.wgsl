// The part of the recurrence that runs chunk after chunk: U = U₀ − W·S and S' = Γ[last]·S + Σ D[last, j]·k[j]·u[j]ᵀ, and its mirror
// dU = dU₀ + D[last]·K·dS' and dS = Γ[last]·dS' + (Γ·Q)ᵀ·dO − Wᵀ·dU. Columns of a state do not depend on each other: one workgroup per
// head, 16 columns and run of chunks.
#import common/delta_runs

@group(0) @binding(3) var<storage, read> mixed: array<vec4<f32>>;          // queries, keys, values [T, C]
@group(0) @binding(4) var<storage, read_write> wu: array<vec4<f32>>;       // W, U [T, 2, Hv, K]
@group(0) @binding(5) var<storage, read_write> states: array<vec4<f32>>;   // before each chunk; backward: gradients behind it [N, Hv, K, K]
@group(0) @binding(6) var<storage, read> dout: array<vec4<f32>>;           // [T, Hv, K]
@group(0) @binding(7) var<storage, read_write> du: array<vec4<f32>>;       // of U [T, 2, Hv, K]
#if {CARRIED}
@group(0) @binding(8) var<storage, read> past: array<u32>;                 // tokens before these [1]
@group(0) @binding(9) var<storage, read_write> carried: array<vec4<f32>>;  // state behind those, then behind these [Hv, K, K]
#end

var<workgroup> state: array<vec4<f32>, {STATE}>;   // [K, 16 columns]
var<workgroup> tile: array<vec4<f32>, 256>;        // U or dU of the chunk [64, 16 columns]

fn store_state(chunk: u32, head: u32, column: u32, lane: u32) {
    for (var k = lane / 4u; k < SIZE; k += 64u) {
        if column < SIZE4 {
            states[state_at(chunk, head) + k * SIZE4 + column] = state[k * 4u + lane % 4u];
        }
    }
}

@compute @workgroup_size(256)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let head = group.x;
    let c = lane % 4u;
    let column = group.y * 4u + c;
    for (var k = lane / 4u; k < SIZE; k += 64u) {
        state[k * 4u + c] = vec4<f32>();
#if {CARRIED}
        if past[0] > 0u && column < SIZE4 {
            state[k * 4u + c] = carried[state_at(0u, head) + k * SIZE4 + column];
        }
#end
    }
    let run = run_forward(group.z, groups.z);
    for (var n = 0u; n < run.count; n++) {
        let first = (run.first + n) * CHUNK;
        let writes = n > 0u || !run.silent;
        let count = count_of(first);
        load_chunk(first, head, lane);
        if writes {
            store_state(first / CHUNK, head, column, lane);
        }
        let i = lane / 4u;
        var u = vec4<f32>();
        if i < count && column < SIZE4 {
            let at = part_at(first + i, 2u, 1u, head) + column;
            let w = part_at(first + i, 2u, 0u, head);
            for (var k = 0u; k < SIZE4; k++) {
                let own = wu[w + k];
                u += own.x * state[16u * k + c] + own.y * state[16u * k + 4u + c] + own.z * state[16u * k + 8u + c] + own.w * state[16u * k + 12u + c];
            }
            u = wu[at] - u;
            if writes {
                wu[at] = u;
            }
        }
        tile[lane] = left[i] * u;
        workgroupBarrier();
        let kept = kept_of(first);
        for (var k = lane / 4u; k < SIZE; k += 64u) {
            var sum = kept * state[k * 4u + c];
            for (var j = 0u; j < count; j++) {
                sum += mixed[key_at(first + j, head) + k / 4u][k % 4u] * tile[j * 4u + c];
            }
            state[k * 4u + c] = sum;
        }
        workgroupBarrier();
    }
#if {CARRIED}
    for (var k = lane / 4u; k < SIZE; k += 64u) {
        if column < SIZE4 {
            carried[state_at(0u, head) + k * SIZE4 + column] = state[k * 4u + c];
        }
    }
#end
}

@compute @workgroup_size(256)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let head = group.x;
    let c = lane % 4u;
    let column = group.y * 4u + c;
    for (var k = lane / 4u; k < SIZE; k += 64u) {
        state[k * 4u + c] = vec4<f32>();
    }
    let run = run_backward(group.z, groups.z);
    for (var n = 0u; n < run.count; n++) {
        let first = (run.first - n) * CHUNK;
        let writes = n > 0u || !run.silent;
        let count = count_of(first);
        load_chunk(first, head, lane);
        if writes {
            store_state(first / CHUNK, head, column, lane);
        }
        let i = lane / 4u;
        var d = vec4<f32>();
        if i < count && column < SIZE4 {
            let at = part_at(first + i, 2u, 0u, head) + column;
            let key = key_at(first + i, head);
            for (var k = 0u; k < SIZE4; k++) {
                let own = mixed[key + k];
                d += own.x * state[16u * k + c] + own.y * state[16u * k + 4u + c] + own.z * state[16u * k + 8u + c] + own.w * state[16u * k + 12u + c];
            }
            d = du[at] + left[i] * d;
            if writes {
                du[at] = d;
            } else if seen[i] == 0.0 {
                d = vec4<f32>(); // of another sample, and perhaps being written
            }
        }
        tile[lane] = d;
        workgroupBarrier();
        let kept = kept_of(first);
        for (var k = lane / 4u; k < SIZE; k += 64u) {
            var sum = kept * state[k * 4u + c];
            if column < SIZE4 {
                for (var j = 0u; j < count; j++) {
                    let query = seen[j] * mixed[query_at(first + j, head) + k / 4u][k % 4u];
                    sum += query * dout[part_at(first + j, 1u, 0u, head) + column];
                    sum -= wu[part_at(first + j, 2u, 0u, head) + k / 4u][k % 4u] * tile[j * 4u + c];
                }
            }
            state[k * 4u + c] = sum;
        }
        workgroupBarrier();
    }
}
