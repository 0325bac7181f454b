// Cross entropy as in cross_entropy/plain.wgsl where products run on cooperative matrices, with the row status of
// row_status/plain.wgsl, which saves a read of the logits. They are only read; the backward pass writes dlogits packed
// (pack/plain.wgsl). Before coefficient and temperature, no gradient of a row is larger than 1, so these are
// stored as the row's scale factor. There are few rows: each gets as many threads as a workgroup may have.
enable f16;
#import common/packed
#import common/verdict

// Twin of `Params` in src/ops/cross_entropy/coop16.rs.
struct Params {
    rows: u32,
    vocab4: u32,        // V / 4
    stride4: u32,       // vec4s from one row of logits to the next
    tiles: u32,         // matrices from one column of them to the next: rows/16 or more
    target_offset: u32, // place of the first row in targets
    loss_offset: u32,   // and in losses and coefficients
    softcap: f32,       // 0: none
    width4: u32,        // D / 4
    verdict_offset: u32, // index of the first row in verdicts
    coldness: f32,      // 1 / temperature
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> logits: array<vec4<f32>>;         // [rows, V]
@group(0) @binding(2) var<storage, read> targets: array<u32>;              // [N]
@group(0) @binding(3) var<storage, read_write> losses: array<f32>;         // [N]
@group(0) @binding(4) var<storage, read_write> dlogits: array<vec4<f16>>;  // [V/16, rows/16, 16, 16]
@group(0) @binding(5) var<storage, read_write> factors: array<f32>;        // [rows]

@group(0) @binding(6) var<storage, read> hidden: array<vec4<f32>>;         // [rows, D], before the output norm
@group(0) @binding(7) var<storage, read_write> verdicts: array<u32>;       // [N]
@group(0) @binding(8) var<storage, read> coefficients: array<f32>;         // [N], gradient of the objective by each row's loss

var<workgroup> partial: array<vec4<f32>, {THREADS}>; // the largest, the sum, and findings against the row

fn capped(z: vec4<f32>) -> vec4<f32> {
    if params.softcap == 0.0 {
        return z;
    }
    return params.softcap * tanh(clamp(z / params.softcap, vec4<f32>(-10.0), vec4<f32>(10.0)));
}

fn write(row: u32, c: u32, value: vec4<f16>) {
    dlogits[packed_at(params.tiles, row, c)] = value;
}

// Writes the row's status; returns log Σ exp of its capped logits at the temperature.
fn row_lse(row: u32, lane: u32, target_id: u32) -> f32 {
    let at = row * params.stride4;
    let target_logit = logits[at + target_id / 4u][target_id % 4u];
    var squares = 0.0;
    for (var c = lane; c < params.width4; c += {THREADS}u) {
        let v = hidden[row * params.width4 + c];
        squares += dot(v, v);
    }
    var lost = not_finite(squares);
    var wrong = false;
    var most = -1e30;
    var sum = 0.0;
    for (var c = lane; c < params.vocab4; c += {THREADS}u) {
        let raw = logits[at + c];
        wrong = wrong || any(likelier(raw, c, target_logit, target_id));
        lost = lost || any(not_finite4(raw));
        let z = params.coldness * capped(raw);
        let before = most;
        most = max(most, max(max(z.x, z.y), max(z.z, z.w)));
        let p = exp(z - most);
        sum = sum * exp(before - most) + (p.x + p.y) + (p.z + p.w);
    }
    partial[lane] = vec4<f32>(most, sum, f32(wrong), f32(lost));
    for (var step = {THREADS}u / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if lane < step {
            let a = partial[lane];
            let b = partial[lane + step];
            let m = max(a.x, b.x);
            partial[lane] = vec4<f32>(m, a.y * exp(a.x - m) + b.y * exp(b.x - m), max(a.zw, b.zw));
        }
    }
    workgroupBarrier();
    let whole = partial[0];
    if lane == 0u {
        verdicts[params.verdict_offset + row] = verdict(whole.z > 0.0, whole.w > 0.0);
    }
    return whole.x + log(whole.y);
}

@compute @workgroup_size({THREADS})
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x;
    let target_id = targets[params.target_offset + row];
    let lse = row_lse(row, lane, target_id);
    if lane == 0u {
        let z = capped(logits[row * params.stride4 + target_id / 4u]);
        losses[params.loss_offset + row] = lse - params.coldness * z[target_id % 4u];
    }
}

@compute @workgroup_size({THREADS})
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x;
    // The last matrices are full: zeros fill the rows past the last, and the columns up to the next multiple of 64.
    let packed4 = (params.vocab4 + 15u) / 16u * 16u;
    if row >= params.rows {
        for (var c = lane; c < packed4; c += {THREADS}u) {
            write(row, c, vec4<f16>());
        }
        return;
    }
    let at = row * params.stride4;
    let target_id = targets[params.target_offset + row];
    let lse = row_lse(row, lane, target_id);
    if lane == 0u {
        factors[row] = params.coldness * coefficients[params.loss_offset + row];
    }
    for (var c = lane; c < packed4; c += {THREADS}u) {
        var gradient = vec4<f32>();
        if c < params.vocab4 {
            let z = capped(logits[at + c]);
            if c == target_id / 4u {
                losses[params.loss_offset + row] = lse - params.coldness * z[target_id % 4u];
            }
            let own = vec4<u32>(c * 4u) + vec4<u32>(0u, 1u, 2u, 3u) == vec4<u32>(target_id);
            let root = select(vec4<f32>(), z / params.softcap, vec4<bool>(params.softcap != 0.0));
            gradient = (exp(params.coldness * z - lse) - select(vec4<f32>(), vec4<f32>(1.0), own)) * (1.0 - root * root);
        }
        write(row, c, vec4<f16>(gradient));
    }
}
