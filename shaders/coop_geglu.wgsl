// The GeGLU of geglu.wgsl, packed at once as operands of products on cooperative matrices (pack.wgsl): each row is computed
// twice, for its largest value and to be written, which costs less than storing it between.
enable f16;
#import common/gelu

// Twin of `Params` in src/ops/coop_geglu.rs.
struct Params {
    rows: u32,      // T
    tiles: u32,     // matrices from one column of them to the next: T/16 or more
    cols4: u32,     // F / 4
    packed4: u32,   // columns to write, / 4: F rounded up to 64
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> gate: array<vec4<f32>>;               // [T, F]
@group(0) @binding(2) var<storage, read> up: array<vec4<f32>>;                 // [T, F]
@group(0) @binding(3) var<storage, read> dy: array<vec4<f32>>;                 // [T, F]
@group(0) @binding(4) var<storage, read_write> first: array<vec4<f16>>;        // y or dgate [F/16, T/16, 16, 16]
@group(0) @binding(5) var<storage, read_write> first_factors: array<f32>;      // [T]
@group(0) @binding(6) var<storage, read_write> second: array<vec4<f16>>;       // dup [F/16, T/16, 16, 16]
@group(0) @binding(7) var<storage, read_write> second_factors: array<f32>;     // [T]

const ROWS: u32 = 4u;       // a workgroup
const THREADS: u32 = 64u;   // a row

var<workgroup> largest: array<vec2<f32>, 256>;

fn gelu4(x: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(gelu(x.x), gelu(x.y), gelu(x.z), gelu(x.w));
}

fn dgelu4(x: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(dgelu(x.x), dgelu(x.y), dgelu(x.z), dgelu(x.w));
}

fn most4(x: vec4<f32>) -> f32 {
    let a = abs(x);
    return max(max(a.x, a.y), max(a.z, a.w));
}

// The largest of each half over the threads of a row.
fn row_largest(most: vec2<f32>, lane: u32) -> vec2<f32> {
    largest[lane] = most;
    for (var step = THREADS / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if lane % THREADS < step {
            largest[lane] = max(largest[lane], largest[lane + step]);
        }
    }
    workgroupBarrier();
    return largest[lane / THREADS * THREADS];
}

// The exponent's bits of the largest value: 2^(253 − e − 127) scales it into [½, 1).
fn exponent(most: f32) -> u32 {
    return clamp(bitcast<u32>(most) >> 23u, 1u, 252u);
}

fn place(row: u32, c: u32) -> u32 {
    return ((c / 4u) * params.tiles + row / 16u) * 64u + row % 16u * 4u + c % 4u;
}

@compute @workgroup_size(256)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x * ROWS + lane / THREADS;
    let at = row * params.cols4;
    let end = select(0u, params.cols4, row < params.rows);
    var most = 0.0;
    for (var c = lane % THREADS; c < end; c += THREADS) {
        most = max(most, most4(gelu4(gate[at + c]) * up[at + c]));
    }
    let e = exponent(row_largest(vec2<f32>(most), lane).x);
    if lane % THREADS == 0u && row < params.rows {
        first_factors[row] = bitcast<f32>((e + 1u) << 23u);
    }
    let scale = bitcast<f32>((253u - e) << 23u);
    for (var c = lane % THREADS; c < params.packed4; c += THREADS) {
        var y = vec4<f32>();
        if c < end {
            y = scale * (gelu4(gate[at + c]) * up[at + c]);
        }
        first[place(row, c)] = vec4<f16>(y);
    }
}

// dgate = dy·up·gelu′(gate), dup = dy·gelu(gate)
@compute @workgroup_size(256)
fn backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x * ROWS + lane / THREADS;
    let at = row * params.cols4;
    let end = select(0u, params.cols4, row < params.rows);
    var most = vec2<f32>();
    for (var c = lane % THREADS; c < end; c += THREADS) {
        let d = dy[at + c];
        most = max(most, vec2<f32>(most4(d * up[at + c] * dgelu4(gate[at + c])), most4(d * gelu4(gate[at + c]))));
    }
    most = row_largest(most, lane);
    let e = vec2<u32>(exponent(most.x), exponent(most.y));
    if lane % THREADS == 0u && row < params.rows {
        first_factors[row] = bitcast<f32>((e.x + 1u) << 23u);
        second_factors[row] = bitcast<f32>((e.y + 1u) << 23u);
    }
    let scale = bitcast<vec2<f32>>((vec2<u32>(253u) - e) << vec2<u32>(23u));
    for (var c = lane % THREADS; c < params.packed4; c += THREADS) {
        var dgate = vec4<f32>();
        var dup = vec4<f32>();
        if c < end {
            let d = dy[at + c];
            dgate = scale.x * (d * up[at + c] * dgelu4(gate[at + c]));
            dup = scale.y * (d * gelu4(gate[at + c]));
        }
        first[place(row, c)] = vec4<f16>(dgate);
        second[place(row, c)] = vec4<f16>(dup);
    }
}
