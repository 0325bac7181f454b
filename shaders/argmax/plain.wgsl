// The largest value of a row and its index, the first of equal values; NaN never wins. `forward` stores the largest of each workgroup's
// share, and `finish` takes the largest of these: index and value, or 0 and -inf if there is none.
const NOTHING: f32 = -3.40282e38;

// Twin of `Params` in src/ops/argmax/mod.rs.
struct Params {
    count: u32,
    groups: u32,        // workgroups of `forward`
}

struct Likeliest {
    index: u32,
    value: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> values: array<f32>;
@group(0) @binding(2) var<storage, read_write> shares: array<Likeliest>; // [groups]
@group(0) @binding(3) var<storage, read_write> result: array<Likeliest>; // [1]

var<workgroup> found: array<Likeliest, 64>;

// The larger of two, the first of equal values. A share without any value has index 0 and NOTHING.
fn larger(a: Likeliest, b: Likeliest) -> Likeliest {
    if b.value > a.value || (b.value == a.value && b.index < a.index) {
        return b;
    }
    return a;
}

fn of_workgroup(mine: Likeliest, lane: u32) -> Likeliest {
    found[lane] = mine;
    workgroupBarrier();
    if lane < 8u {
        var eight = mine;
        for (var i = lane + 8u; i < 64u; i += 8u) {
            eight = larger(eight, found[i]);
        }
        found[lane] = eight;
    }
    workgroupBarrier();
    var all = found[0];
    for (var i = 1u; i < 8u; i++) {
        all = larger(all, found[i]);
    }
    return all;
}

@compute @workgroup_size(64)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    var mine = Likeliest(0u, NOTHING);
    let threads = params.groups * 64u;
    // Eight loads at a time: each would otherwise wait for the one before. The last value may be compared twice.
    for (var i = group.x * 64u + lane; i < params.count; i += 8u * threads) {
#for n in 0..8
        let i{n} = min(i + {n}u * threads, params.count - 1u);
        let value{n} = values[i{n}];
#end
#for n in 0..8
        mine = larger(mine, Likeliest(i{n}, value{n}));
#end
    }
    let all = of_workgroup(mine, lane);
    if lane == 0u {
        shares[group.x] = all;
    }
}

@compute @workgroup_size(64)
fn finish(@builtin(local_invocation_index) lane: u32) {
    var mine = Likeliest(0u, NOTHING);
    for (var i = lane; i < params.groups; i += 64u) {
        mine = larger(mine, shares[i]);
    }
    let all = of_workgroup(mine, lane);
    if lane == 0u {
        result[0] = all;
    }
}
