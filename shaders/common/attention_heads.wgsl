// Entry points of shaders/attention/tiled.wgsl that its other variants take too.

// delta = Σ dout·out, and the power of two that undoes scaling dout's largest value into [½, 1), one thread per row and head; `q` is
// bound to out.
@compute @workgroup_size(64)
fn delta(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = (group.x + group.y * groups.x) * 64u + lane;
    if row >= params.rows * params.heads {
        return;
    }
    var sum = 0.0;
    var most = vec4<f32>();
    for (var d = 0u; d < HEAD4; d++) {
        let gradient = dout[row * HEAD4 + d];
        sum += dot(q[row * HEAD4 + d], gradient);
        most = max(most, abs(gradient));
    }
    row_delta[row] = vec2<f32>(sum, undoing(exponent(most4(most))));
}

// dk or dv += the gradients of the query heads that share it; `q` is bound to these [T, H, K].
@compute @workgroup_size(64)
fn sum_heads(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + group.y * groups.x) * 64u + lane;
    if i >= params.rows * params.kv_heads * HEAD4 {
        return;
    }
    let sharing = params.heads / params.kv_heads;
    let first = i / HEAD4 * sharing * HEAD4 + i % HEAD4;
    var sum = result[i];
    for (var s = 0u; s < sharing; s++) {
        sum += q[first + s * HEAD4];
    }
    result[i] = sum;
}
