// Gates of the recurrence: g = a·softplus(alpha + dt), whose sums from the chunk's or the sample's first token on are stored, and the
// rate σ(beta). One thread per chunk and head.
#import common/delta

@group(0) @binding(1) var<storage, read> bounds: array<vec2<u32>>;     // [T]
@group(0) @binding(2) var<storage, read_write> gates: array<f32>;      // sums, rates [T, 2, Hv]
@group(0) @binding(3) var<storage, read> alpha: array<f32>;            // [T, Hv]
@group(0) @binding(4) var<storage, read> beta: array<f32>;             // [T, Hv]
@group(0) @binding(5) var<storage, read> constants: array<vec2<f32>>;  // a, dt [Hv]
@group(0) @binding(6) var<storage, read_write> dalpha: array<f32>;     // gradients of the sums, then of alpha [T, Hv]
@group(0) @binding(7) var<storage, read_write> dbeta: array<f32>;      // [T, Hv]

fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp(-x));
}

// ln(1 + eˣ) = max(x, 0) + 2·artanh(z), as a series: 1 + e would round.
fn softplus(x: f32) -> f32 {
    let e = exp(-abs(x));
    let z = e / (2.0 + e);
    let s = z * z;
    var series = 1.0 / 15.0;
#for (n) in (13.0) (11.0) (9.0) (7.0) (5.0) (3.0) (1.0)
    series = fma(series, s, 1.0 / {n});
#end
    return fma(2.0 * z, series, max(x, 0.0));
}

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = (group.x + group.y * groups.x) * 64u + lane;
    let first = index / params.value_heads * CHUNK;
    let head = index % params.value_heads;
    if first >= params.tokens {
        return;
    }
    let own = constants[head];
    var sum = 0.0;
    for (var t = first; t < min(first + CHUNK, params.tokens); t++) {
        let at = t * gate_stride() + head;
        sum = select(sum, 0.0, bounds[t].x == t) + own.x * softplus(alpha[at] + own.y);
        gates[2u * t * gate_stride() + head] = sum;
        gates[(2u * t + 1u) * gate_stride() + head] = sigmoid(beta[at]);
    }
}

// The padding of rows becomes 0.
@compute @workgroup_size(64)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = (group.x + group.y * groups.x) * 64u + lane;
    let first = index / gate_stride() * CHUNK;
    let head = index % gate_stride();
    if first >= params.tokens {
        return;
    }
    let own = constants[min(head, params.value_heads - 1u)];
    var dg = 0.0;
    for (var t = min(first + CHUNK, params.tokens); t > first; t--) {
        let at = (t - 1u) * gate_stride() + head;
        if head >= params.value_heads {
            dalpha[at] = 0.0;
            dbeta[at] = 0.0;
            continue;
        }
        dg += dalpha[at];
        dalpha[at] = dg * own.x * sigmoid(alpha[at] + own.y);
        dg = select(dg, 0.0, bounds[t - 1u].x == t - 1u);
    }
}
