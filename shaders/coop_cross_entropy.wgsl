// The backward of cross_entropy.wgsl for products on cooperative matrices: dlogits are packed at once (pack.wgsl). No value
// of a row is larger than the factor of the loss, so that factor is what undoes the row's scaling.
enable f16;
#import common/packed

// Twin of `Params` in src/ops/coop_cross_entropy.rs.
struct Params {
    rows: u32,
    vocab4: u32,        // V / 4
    stride4: u32,       // vec4s from one row of logits to the next
    tiles: u32,         // matrices from one column of them to the next: rows/16 or more
    target_offset: u32, // place of the first row in targets
    loss_offset: u32,   // and in losses
    softcap: f32,       // 0: none
    factor: f32,        // 1 / loss-carrying tokens of the optimizer step
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> logits: array<vec4<f32>>;         // [rows, V]
@group(0) @binding(2) var<storage, read> targets: array<u32>;              // [N]
@group(0) @binding(3) var<storage, read_write> losses: array<f32>;         // [N]
@group(0) @binding(4) var<storage, read_write> dlogits: array<vec4<f16>>;  // [V/16, rows/16, 16, 16]
@group(0) @binding(5) var<storage, read_write> factors: array<f32>;        // [rows]

var<workgroup> partial: array<vec2<f32>, 256>;

fn capped(z: vec4<f32>) -> vec4<f32> {
    if params.softcap == 0.0 {
        return z;
    }
    return params.softcap * tanh(clamp(z / params.softcap, vec4<f32>(-10.0), vec4<f32>(10.0)));
}

fn write(row: u32, c: u32, value: vec4<f16>) {
    dlogits[packed_at(params.tiles, row, c)] = value;
}

@compute @workgroup_size(256)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x;
    // The last matrices are full: what is below the last row, and right of the last column up to 64, is zero.
    let packed4 = (params.vocab4 + 15u) / 16u * 16u;
    if row >= params.rows {
        for (var c = lane; c < packed4; c += 256u) {
            write(row, c, vec4<f16>());
        }
        return;
    }
    let at = row * params.stride4;
    var most = -1e30;
    var sum = 0.0;
    for (var c = lane; c < params.vocab4; c += 256u) {
        let z = capped(logits[at + c]);
        let before = most;
        most = max(most, max(max(z.x, z.y), max(z.z, z.w)));
        let p = exp(z - most);
        sum = sum * exp(before - most) + (p.x + p.y) + (p.z + p.w);
    }
    partial[lane] = vec2<f32>(most, sum);
    for (var step = 128u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if lane < step {
            let a = partial[lane];
            let b = partial[lane + step];
            let m = max(a.x, b.x);
            partial[lane] = vec2<f32>(m, a.y * exp(a.x - m) + b.y * exp(b.x - m));
        }
    }
    workgroupBarrier();
    let lse = partial[0].x + log(partial[0].y);
    let target_id = targets[params.target_offset + row];
    if lane == 0u {
        factors[row] = params.factor;
    }
    for (var c = lane; c < packed4; c += 256u) {
        var gradient = vec4<f32>();
        if c < params.vocab4 {
            let z = capped(logits[at + c]);
            if c == target_id / 4u {
                losses[params.loss_offset + row] = lse - z[target_id % 4u];
            }
            let own = vec4<u32>(c * 4u) + vec4<u32>(0u, 1u, 2u, 3u) == vec4<u32>(target_id);
            let root = select(vec4<f32>(), z / params.softcap, vec4<bool>(params.softcap != 0.0));
            gradient = (exp(z - lse) - select(vec4<f32>(), vec4<f32>(1.0), own)) * (1.0 - root * root);
        }
        write(row, c, vec4<f16>(gradient));
    }
}
